"""Every route of the first generation, once, by the published client."""

from conftest import TOKEN, URL
from pydantic_ai_backends.remote import RemoteSandbox, WorkspaceArchive

box = RemoteSandbox(URL, token=TOKEN, session_id="recorded", tenant="acme", reuse=True)
box.execute("echo 1", timeout=5)
box.write("f.txt", "one\n")
box.read("f.txt")
box.read_bytes("f.txt")
box.edit("f.txt", "one", "two")
box.exists("f.txt")
box.ls_info(".")
box.glob_info("*.txt")
box.grep_raw("two")
box.is_alive()
box.resource_usage()
archive = WorkspaceArchive(URL, token=TOKEN)
archive.ls("recorded")
archive.read("recorded", "f.txt")
archive.read_bytes("recorded", "f.txt")
box.stop(purge=True)
