"""The second generation where a runtime's image has to be built first."""

import asyncio
import os
import time

import anyio
import httpx
import pytest
from conftest import ENDS, TOKEN, URL, built, restarted
from pydantic_ai_backends.workspaces import SandboxdWorkspace

pytestmark = pytest.mark.anyio

QUICK = os.environ["SESSIONS_QUICK"]
SLOW = os.environ["SESSIONS_SLOW"]


def opens(runtime, name):
    return SandboxdWorkspace(service_url=URL, token=TOKEN, runtime=runtime, session_name=name).backend()


async def test_c15_a_build_holds_up_nobody():
    quick = opens(QUICK, "quick")
    await quick.write_bytes("/workspace/f", b"x")
    openings = [opens(SLOW, name) for name in ("slow", "slow", "other")]
    for end in ENDS:
        opening = asyncio.create_task(openings[0].run(["true"]))
        await anyio.to_thread.run_sync(built, SLOW, "working", opening.done)
        await anyio.to_thread.run_sync(restarted, end)
        with pytest.raises(httpx.HTTPError):
            await opening
        assert await quick.read_bytes("/workspace/f") == b"x"
    began = time.perf_counter()
    tasks = [asyncio.create_task(b.run(["pwd", "-P"])) for b in openings]
    await anyio.to_thread.run_sync(built, SLOW, "working", tasks[0].done)
    spent = []
    async with httpx.AsyncClient(base_url=URL, headers={"X-Sandbox-Token": TOKEN}) as client:
        for _ in range(30):
            for route in ("/healthz", "/sessions", "/policy"):
                asked = time.perf_counter()
                assert (await client.get(route)).status_code == 200
                spent.append(time.perf_counter() - asked)
            assert (await quick.run(["echo", "here"])).stdout == "here\n"
    assert not any(t.done() for t in tasks), "it was not slow"
    assert sorted(spent)[-2] < 0.2, sorted(spent)[-5:]
    assert [r.stdout for r in await asyncio.gather(*tasks)] == ["/workspace\n"] * 3
    print(f"p99 of the host while it builds {sorted(spent)[-2] * 1000:.1f} ms; the openings took {time.perf_counter() - began:.1f} s")
    assert openings[0]._session.token == openings[1]._session.token != openings[2]._session.token
    assert [b.ref.id for b in openings] == ["slow", "slow", "other"]
