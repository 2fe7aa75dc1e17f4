"""The first generation: RemoteSandbox and WorkspaceArchive, as published."""

import base64
import pathlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import TOKEN, URL, call
from pydantic_ai_backends.remote import RemoteSandbox, WorkspaceArchive
from pydantic_ai_backends.remote.client import WorkspaceArchiveError


def sandbox(session_id=None, **more):
    return RemoteSandbox(URL, token=TOKEN, session_id=session_id, **more)


def test_c1_files_and_commands(restart):
    box = sandbox()
    assert box.execute("echo out; echo err >&2; exit 3").exit_code == 3
    assert box.execute("echo out; echo err >&2").output.split() == ["out", "err"]
    assert box.write("dir/text.txt", "one\ntwo\nthree\n").path == "/workspace/dir/text.txt"
    restart()
    assert box.read("dir/text.txt") == "one\ntwo\nthree"
    assert box.read("dir/text.txt", offset=1, limit=1) == "two\n\n[... 1 more lines. Use offset=2 to read more.]"
    assert box.read("dir/text.txt", offset=9) == "[End of file]"
    assert box.read("missing") == "Error: File 'missing' not found"
    raw = bytes(range(256)) * 1000
    assert box.write("/workspace/raw", raw).error is None
    assert box.read_bytes("raw") == raw
    assert box.read_bytes("missing") == b""
    assert box.exists("raw") and not box.exists("dir") and not box.exists("missing")
    edited = box.edit("dir/text.txt", "two", "2")
    assert (edited.path, edited.occurrences, edited.error) == ("/workspace/dir/text.txt", 1, None)
    assert box.edit("dir/text.txt", "nowhere", "x").error == "String 'nowhere' not found in file"
    assert box.execute("cat dir/text.txt").output == "one\n2\nthree\n"
    assert [(e["name"], e["is_dir"]) for e in box.ls_info(".")] == [("dir", True), ("raw", False)]
    assert box.ls_info("missing") == []
    assert [e["path"] for e in box.glob_info("**/*.txt")] == ["dir/text.txt"]
    assert [e["path"] for e in box.glob_info("*.txt", "/workspace")] == ["/workspace/dir/text.txt"]
    hits = box.grep_raw("^2$")
    assert [(h["path"], h["line_number"], h["line"]) for h in hits] == [("./dir/text.txt", 2, "2")]
    assert box.grep_raw("nothing like it") == []
    assert isinstance(box.grep_raw("[", "dir"), str)
    # What lies outside the workspace is the sandbox's.
    assert box.write("/tmp/elsewhere/f", "tmp").path == "/tmp/elsewhere/f"
    assert box.read("/tmp/elsewhere/f") == "tmp" and box.exists("/tmp/elsewhere/f")
    assert [e["name"] for e in box.ls_info("/tmp/elsewhere")] == ["f"]
    assert box.execute("sleep 9", timeout=1).exit_code == 124
    assert box.is_alive()
    usage = box.resource_usage()
    assert usage is not None
    box.stop()
    assert not box.is_alive()
    assert box.read("dir/text.txt") == "one\n2\nthree"  # the same object again
    box.stop(purge=True)
    assert call("POST", "/sessions", {"session_id": box.session_id, "attach": True})[0] == 404


def test_c2_reuse_from_a_second_process(restart):
    first = sandbox("conversation-1")
    first.write("note", "mine")
    with pytest.raises(RuntimeError, match="HTTP 409.*Session exists: conversation-1"):
        sandbox("conversation-1").start()
    restart()
    second = sandbox("conversation-1", reuse=True)
    second.start()
    assert second.read("note") == "mine"
    assert second._session_token == first._session_token
    assert first.execute("cat note").output == "mine"
    other = "Session conversation-1 is open on runtime 'first', not 'second'. Close it before changing runtime."
    with pytest.raises(RuntimeError, match=f"HTTP 409.*{other}"):
        sandbox("conversation-1", runtime="second", reuse=True).start()
    with pytest.raises(RuntimeError, match="HTTP 400.*Unknown runtime 'third'. Allowed: first, second"):
        sandbox("conversation-1", runtime="third", reuse=True).start()


def test_c3_stored_files(restart):
    archive = WorkspaceArchive(URL, token=TOKEN)
    with pytest.raises(WorkspaceArchiveError) as never:
        archive.ls("never-opened")
    assert never.value.status_code == 404 and "No workspace for session: never-opened" in str(never.value)
    box = sandbox("stored")
    raw = b"\x89PNG\r\n\x1a\n\x00\xff"
    box.write("uploads/chart.png", raw)
    box.write("uploads/notes.md", "# notes\nline\n")
    pdf = (pathlib.Path(__file__).parent / "report.pdf").read_bytes()
    box.write("report.pdf", pdf)
    box.write("cut.pdf", pdf[:300])
    box.execute("ln -s /etc/passwd uploads/planted; ln -s ../.. uploads/up; head -c 9000000 /dev/zero > uploads/big")
    restart()
    for closed in (False, True):
        if closed:
            box.stop()
        rows = archive.ls("stored", "uploads")
        assert [(r["name"], r["size"]) for r in rows] == [("big", 9000000), ("chart.png", len(raw)), ("notes.md", 13)]
        assert all(r["modified_at"].endswith("+00:00") for r in rows)
        assert archive.read("stored", "/workspace/uploads/notes.md") == "# notes\nline"
        assert archive.read_bytes("stored", "uploads/chart.png") == raw
        assert archive.read("stored", "report.pdf") == "Title: A report\n\n--- Page 1 ---\nFirst line\nsecond"
        with pytest.raises(WorkspaceArchiveError, match="Failed to parse PDF: "):
            archive.read("stored", "cut.pdf")
        for path, status, text in [
            ("uploads/planted", 400, "outside the workspace"),
            ("uploads/up", 400, "outside the workspace"),
            ("../../etc/passwd", 400, "outside the workspace"),
            ("/etc/passwd", 404, "No such file: etc/passwd"),
            ("uploads/big", 400, "File is 9000000 bytes, over the 8388608-byte read limit"),
            ("uploads", 404, "No such file: uploads"),
        ]:
            with pytest.raises(WorkspaceArchiveError) as refused:
                archive.read_bytes("stored", path)
            assert refused.value.status_code == status and text in str(refused.value), path
        with pytest.raises(WorkspaceArchiveError, match="Binary File"):
            archive.read("stored", "uploads/chart.png")
    assert call("GET", "/sessions")[1]["sessions"] == []
    call("DELETE", "/sessions/stored?purge=true")


def test_c9_tenants_under_a_burst(restart, policy):
    policy(max_sessions_per_tenant=3)
    outcomes = []

    def open_one():
        try:
            box = sandbox(tenant="acme")
            box.start()
            outcomes.append(box)
        except RuntimeError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=open_one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened = [o for o in outcomes if not isinstance(o, str)]
    refused = [o for o in outcomes if isinstance(o, str)]
    assert len(opened) == 3 and len(refused) == 5
    assert all("HTTP 429" in text and "Tenant 'acme' already holds 3 of 3 sessions." in text for text in refused), refused
    restart()
    assert opened[0].execute("echo still").output == "still\n"
    with pytest.raises(RuntimeError, match="already holds 3 of 3"):
        sandbox(tenant="acme").start()
    other = sandbox(tenant="other")
    other.start()
    assert other.is_alive()


def test_c11_the_stored_token_outlasts_the_host(restart):
    boxes = [sandbox(f"on-{runtime}", runtime=runtime) for runtime in ("first", "second")]
    for box in boxes:
        box.write("f", box.session_id)
        box.execute("echo x > /tmp/mark")
    restart()
    for box in boxes:
        stored = {"content_b64": base64.b64encode(box.session_id.encode()).decode()}
        assert call("POST", f"/sessions/{box.session_id}/read_bytes", {"path": "f"}, box._session_token) == (200, stored)
        assert box.execute("cat /tmp/mark").output == "x\n", "another environment"


def test_c6_limits(restart, policy):
    box = sandbox()
    policy(execute_timeout=1)
    restart()
    assert box.execute("sleep 9", timeout=600).exit_code == 124
    policy(execute_timeout=300)
    exact = box.execute("head -c 100000 /dev/zero | tr '\\0' a")
    assert exact.output == "a" * 100000 and not exact.truncated
    more = box.execute("head -c 100001 /dev/zero | tr '\\0' a")
    assert more.output == "a" * 100000 and more.truncated


def test_c7_kept_and_purged(restart, policy):
    box = sandbox("kept")
    box.write("f", "kept")
    box.stop()
    restart()
    again = sandbox("kept", reuse=True)
    assert again.read("f") == "kept"
    policy(max_sessions=1)  # at full capacity it still goes, and twice is no error
    again.stop(purge=True)
    again.stop(purge=True)
    assert call("POST", "/sessions", {"session_id": "kept", "attach": True}) == (404, {"detail": "Nothing to attach to: kept"})


def test_c8_a_missing_session_is_no_missing_route(restart):
    box = sandbox("there")
    box.start()
    for again in (False, True):
        if again:
            restart()
        assert call("POST", "/sessions/there/exec-of-old", {}) == (404, {"detail": "Not Found"})
        for route in ("exec", "read", "read_bytes", "write", "edit", "exists", "ls", "glob", "grep"):
            body = {"command": "true", "path": "x", "pattern": "x", "content_b64": "", "old_string": "a", "new_string": "b"}
            assert call("POST", f"/sessions/none/{route}", body) == (404, {"detail": "No such session: none"})
            assert f"/sessions/{{session_id}}/{route}" in call("GET", "/", token="")[1]["endpoints"]
    assert box.execute("echo still").output == "still\n"


def test_c10_one_name_opened_by_many(restart):
    boxes = [sandbox("shared", reuse=True) for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda box: box.start(), boxes))
    assert len({box._session_token for box in boxes}) == 1
    assert len(call("GET", "/sessions")[1]["sessions"]) == 1
    boxes[0].write("f", "x")
    restart()
    assert [box.read("f") for box in boxes] == ["x"] * 5
    assert sandbox("shared", reuse=True).read("f") == "x"


def test_c12_policy_from_an_operators_script(restart, policy):
    box = sandbox("limited")
    box.write("f", "x" * 2000)
    policy(max_read_bytes=1000)
    restart()
    assert call("GET", "/policy")[1]["max_read_bytes"] == 1000, "a change outlasts a restart here"
    with pytest.raises(WorkspaceArchiveError, match="over the 1000-byte read limit"):
        WorkspaceArchive(URL, token=TOKEN).read_bytes("limited", "f")
    assert box.execute("wc -c < f").output == "2000\n"


def test_c13_arguments(restart):
    box = sandbox()
    box.start()
    restart()
    assert box.execute("printf '%s|' 'a\nb' \"it's\" '$HOME' 'Zürich ☃'").output == "a\nb|it's|$HOME|Zürich ☃|"
    long = "ü" * 50_000
    assert box.execute(f"printf %s '{long}' | wc -c").output == "100000\n"
    status, body = call("POST", f"/sessions/{box.session_id}/exec", {"command": "echo a\0b"})
    assert 400 <= status < 500, body


def test_c14_many_sleepers_hold_up_nobody(restart):
    box = sandbox()
    box.start()
    token, path = box._session_token, f"/sessions/{box.session_id}"
    with ThreadPoolExecutor(40) as pool:
        sleeps = [pool.submit(lambda: sandbox(box.session_id, reuse=True).execute("sleep 60")) for _ in range(40)]
        counted = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -cx '6[0]'"
        until = time.monotonic() + 30
        while box.execute(counted).output != "40\n":
            assert time.monotonic() < until and not any(s.done() for s in sleeps)
        restart()
        assert call("GET", path, token=token)[1]["alive"]
        assert call("GET", "/policy")[0] == 200
        box.stop()  # ends what sleeps
        assert all(isinstance(s.exception(timeout=30), Exception) or s.result().exit_code != 0 for s in sleeps)
