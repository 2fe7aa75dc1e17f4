"""What the tests of both generations share: where the host is, and how to restart it."""

import collections
import itertools
import json
import os
import re
import time
import urllib.request

import pytest

URL = os.environ["SESSIONS_URL"]
TOKEN = os.environ["SESSIONS_TOKEN"]


def call(method, path, body=None, token=TOKEN):
    """One request without the client: status and body, decoded if it is JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data=data, method=method, headers={"X-Sandbox-Token": token})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, text = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text.decode()


ENDS = ["term", "kill"]  # of a host, as an operator ends it and as a crash does
RESTARTS = collections.defaultdict(set)  # ends of the host, by the test that they were in the middle of


def restarted(end):
    """Ends the host and starts it again."""
    with urllib.request.urlopen(f"{os.environ['SESSIONS_CONTROL']}/{end}", data=b"", timeout=60) as answer:
        assert answer.status == 204
    test, _, _ = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    RESTARTS[test].add(end)


def pytest_terminal_summary(terminalreporter):
    """Says of each row of the matrix that has passed, whole, over which restarts."""
    rows, failed = collections.defaultdict(set), set()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            row = re.search(r"::(?:Test|test_)([Cc]\d+)", getattr(report, "nodeid", ""))
            if row and outcome == "passed":
                rows[row[1].lower()] |= RESTARTS[report.nodeid]
            elif row and outcome:  # none is of what was done before and after a test
                failed.add(row[1].lower())
    for row in sorted(rows.keys() - failed):
        terminalreporter.write_line(" ".join(["ROW", row, *sorted(rows[row])]))


def built(runtime, state, over):
    """Waits until the image of a runtime is in a state; what waits for it must not be over."""
    until = time.monotonic() + 60
    while True:
        _, listed = call("GET", "/v1/runtimes")
        found = {r["name"]: r["preparation"]["state"] for r in listed["runtimes"]}
        if found[runtime] == state:
            return
        assert not over() and time.monotonic() < until, found
        time.sleep(0.05)


@pytest.fixture(params=ENDS)
def restart(request):
    """Restarts the host; the test is run with each end."""
    return lambda: restarted(request.param)


TURNS = itertools.cycle(ENDS)  # for who needs no more than one of them


@pytest.fixture
def policy():
    """Changes the policy for one test."""
    _, before = call("GET", "/policy")
    changed = set()

    def put(**fields):
        changed.update(fields)
        status, body = call("PUT", "/policy", fields)
        assert status == 200, body
        return body

    yield put
    if changed:
        status, body = call("PUT", "/policy", {name: before.get(name) for name in changed})
        assert status == 200, body


@pytest.fixture
def anyio_backend():
    return "asyncio"


KEPT = set()  # sessions that a later test uses


@pytest.fixture(autouse=True)
def nothing_left():
    """Every session that a test leaves is deleted with its files."""
    yield
    _, listed = call("GET", "/sessions")
    for session in listed["sessions"]:
        if session["session_id"] not in KEPT:
            assert call("DELETE", f"/sessions/{session['session_id']}?purge=true") == (204, "")
