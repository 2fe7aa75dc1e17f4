"""The first generation where a runtime's image has to be built first."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from conftest import TOKEN, URL, call
from pydantic_ai_backends.remote import RemoteSandbox

QUICK = os.environ["SESSIONS_QUICK"]
SLOW = os.environ["SESSIONS_SLOW"].split(",")  # each is built once


def sandbox(runtime, name):
    return RemoteSandbox(URL, token=TOKEN, session_id=name, runtime=runtime, reuse=True)


def test_c15_a_build_holds_up_nobody():
    quick = sandbox(QUICK, "quick")
    quick.write("f", "x")
    slow = [sandbox(SLOW[0], "slow"), sandbox(SLOW[0], "slow"), sandbox(SLOW[0], "other")]
    with ThreadPoolExecutor(3) as pool:
        opening = [pool.submit(box.start) for box in slow]
        time.sleep(2)
        for _ in range(20):
            began = time.monotonic()
            assert call("GET", "/healthz", token="")[0] == call("GET", "/sessions")[0] == call("GET", "/policy")[0] == 200
            assert quick.execute("cat f").output == "x"
            assert time.monotonic() - began < 1
        assert not any(o.done() for o in opening), "it was not slow"
        for o in opening:
            o.result()
    assert slow[0]._session_token == slow[1]._session_token != slow[2]._session_token
    assert [box.execute("echo built").output for box in slow] == ["built\n"] * 3


def test_c15_over_a_restart(restart, request):
    runtime = SLOW[1 if "term" in request.node.name else 2]
    quick, slow = sandbox(QUICK, "quick"), sandbox(runtime, "slow")
    quick.write("f", "x")
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(slow.start)
        time.sleep(3)
        assert not opening.done(), "it was not slow"
        restart()
        assert opening.exception() is not None
    assert quick.read("f") == "x"
    assert slow.execute("echo built").output == "built\n"
