"""What the tests of both generations share: where the host is, and how to restart it."""

import itertools
import json
import os
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


def restarted(end):
    """Ends the host and starts it again."""
    with urllib.request.urlopen(f"{os.environ['SESSIONS_CONTROL']}/{end}", data=b"", timeout=60) as answer:
        assert answer.status == 204


@pytest.fixture(params=ENDS)
def restart(request):
    """Restarts the host; the test is run with each end."""
    return lambda: restarted(request.param)


TURNS = itertools.cycle(ENDS)


@pytest.fixture
def restart_in_turn():
    """Restarts the host, with another end than in the test before."""
    return lambda: restarted(next(TURNS))


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


@pytest.fixture(autouse=True)
def nothing_left():
    """Every session that a test leaves is deleted with its files."""
    yield
    _, listed = call("GET", "/sessions")
    for session in listed["sessions"]:
        call("DELETE", f"/sessions/{session['session_id']}?purge=true")
