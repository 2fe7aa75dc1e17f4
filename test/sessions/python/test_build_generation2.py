"""The second generation where a runtime's image has to be built first."""

import asyncio
import os
import time
import uuid

import anyio
import httpx
import pytest
from conftest import TOKEN, URL
from pydantic_ai_backends.workspaces import SandboxdWorkspace

pytestmark = pytest.mark.anyio

QUICK = os.environ["SESSIONS_QUICK"]
SLOW = os.environ["SESSIONS_SLOW"].split(",")  # each is built once


def opens(runtime, name):
    return SandboxdWorkspace(service_url=URL, token=TOKEN, runtime=runtime, session_name=name).backend()


def unique(name):
    return f"{name}-{uuid.uuid4().hex[:8]}"


async def test_c15_a_build_holds_up_nobody():
    quick = opens(QUICK, unique("quick"))
    await quick.run(["true"])
    name, other = unique("slow"), unique("other")
    openings = [opens(SLOW[0], name), opens(SLOW[0], name), opens(SLOW[0], other)]
    began = time.perf_counter()
    tasks = [asyncio.create_task(b.run(["pwd", "-P"])) for b in openings]
    await anyio.sleep(2)
    spent = []
    async with httpx.AsyncClient(base_url=URL, headers={"X-Sandbox-Token": TOKEN}) as client:
        for _ in range(30):
            for route in ("/healthz", "/sessions", "/policy"):
                asked = time.perf_counter()
                assert (await client.get(route)).status_code == 200
                spent.append(time.perf_counter() - asked)
            assert (await quick.run(["echo", "here"])).stdout == "here\n"
            await anyio.sleep(0.05)
    assert not any(t.done() for t in tasks), "it was not slow"
    assert sorted(spent)[-2] < 0.2, sorted(spent)[-5:]
    assert [r.stdout for r in await asyncio.gather(*tasks)] == ["/workspace\n"] * 3
    print(f"p99 of the host while it builds {sorted(spent)[-2] * 1000:.1f} ms; the openings took {time.perf_counter() - began:.1f} s")
    assert openings[0]._session.token == openings[1]._session.token != openings[2]._session.token
    assert [b.ref.id for b in openings] == [name, name, other]


async def test_c15_over_a_restart(restart, request):
    name = unique("slow")
    backend = opens(SLOW[1 if "term" in request.node.name else 2], name)
    task = asyncio.create_task(backend.run(["true"]))
    await anyio.sleep(3)
    assert not task.done(), "it was not slow"
    await anyio.to_thread.run_sync(restart)
    with pytest.raises(httpx.HTTPError):
        await task
    assert (await backend.run(["pwd", "-P"])).stdout == "/workspace\n"
    assert backend.ref.id == name
