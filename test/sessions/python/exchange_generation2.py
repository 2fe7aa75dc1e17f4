"""Every route of the second generation, once, by the published client."""

import anyio
from conftest import TOKEN, URL, call
from pydantic_ai_backends.remote.archive import WorkspaceArchive
from pydantic_ai_backends.workspaces import SandboxdWorkspace


async def main():
    capability = SandboxdWorkspace(service_url=URL, token=TOKEN, session_name="recorded", tenant="acme")
    backend = capability.backend()
    await backend.run(["true"], env={"A": "b"}, timeout=5)
    await backend.write_bytes("/workspace/f.txt", b"\xff\x00")
    await backend.write_bytes("/workspace/t.txt", b"text")
    await backend.read_bytes("/workspace/f.txt")
    await backend.stat("/workspace/f.txt")
    await backend.list_dir("/workspace")
    await backend.make_dir("/workspace/d")
    await backend.realpath("/workspace/d")
    await backend.remove("/workspace/d")
    await backend.exists("/workspace/none")
    with anyio.move_on_after(1):
        await backend.run(["sleep", "60"])
    archive = WorkspaceArchive(URL, token=TOKEN)
    for read in (archive.ls, archive.tree):
        await anyio.to_thread.run_sync(read, "recorded")
    for read in (archive.read, archive.read_bytes):
        await anyio.to_thread.run_sync(read, "recorded", "t.txt")
    await anyio.to_thread.run_sync(archive.trees, ["recorded"])
    # What only operators ask.
    for path in ("/", "/healthz", "/sessions?usage=true", "/sessions/recorded", "/sessions/recorded/events?after=0"):
        assert call("GET", path)[0] == 200
    assert call("PUT", "/policy", {"execute_timeout": 300})[0] == 200
    await capability.destroy(backend.ref)


anyio.run(main)
