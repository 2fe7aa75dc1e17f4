"""The first generation where a runtime's image has to be built first."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

from conftest import ENDS, TOKEN, URL, built, call, restarted
from pydantic_ai_backends.remote import RemoteSandbox

QUICK = os.environ["SESSIONS_QUICK"]
SLOW = os.environ["SESSIONS_SLOW"]


def sandbox(runtime, name):
    return RemoteSandbox(URL, token=TOKEN, session_id=name, runtime=runtime, reuse=True)


def opened(box):
    """Opens as a product does with this client, which itself asks once: who opens the same
    id as somebody else is told so after a while, and asks again."""
    while True:
        try:
            return box.start()
        except RuntimeError as error:
            assert f'HTTP 409): {{"detail":"Session is opening: {box.session_id}"}}' in str(error), error


def test_c15_a_build_holds_up_nobody():
    quick = sandbox(QUICK, "quick")
    quick.write("f", "x")
    slow = [sandbox(SLOW, "slow"), sandbox(SLOW, "slow"), sandbox(SLOW, "other")]
    with ThreadPoolExecutor(3) as pool:
        for end in ENDS:
            opening = pool.submit(slow[0].start)
            built(SLOW, "working", opening.done)
            restarted(end)
            assert opening.exception() is not None, "it heard nothing of the host's end"
            assert quick.read("f") == "x"
        openings = [pool.submit(opened, box) for box in slow]
        built(SLOW, "working", openings[0].done)
        for _ in range(20):
            began = time.monotonic()
            assert call("GET", "/healthz", token="")[0] == call("GET", "/sessions")[0] == call("GET", "/policy")[0] == 200
            assert quick.execute("cat f").output == "x"
            assert time.monotonic() - began < 1
        assert not any(o.done() for o in openings), "it was not slow"
        for o in openings:
            o.result()
    assert slow[0]._session_token == slow[1]._session_token != slow[2]._session_token
    assert [box.execute("echo built").output for box in slow] == ["built\n"] * 3
