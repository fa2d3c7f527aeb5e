"""Conversations whose clients have left, or that are too many, and what they cost the others."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.daemon.process_stats import cpu_seconds
from engine_core.messages import KeyShare
from server.service.ledger import REQUEST_BYTES
from server.settings.settings import Limits
from tests.e2e.daemon import children_of, is_alive
from tests.patience import wait_until
from tests.server.api.test_ops import metric
from tests.server.chat_templates import ENDLESS, chat_deployment
from tests.server.conftest import Deployment
from tests.server.templates.test_template_process import ask, pid, started

# Of processor time that "hang" may take.
_RENDER_S = 2.0


async def test_one_that_leaves_while_it_is_rendered_is_given_up(tmp_path):
    async with started(tmp_path) as chat:
        assert await ask(chat, "one") == "one"
        first = await pid()
        begun = cpu_seconds(first)
        for _ in range(5):
            left = ask(chat, "hang")
            await asyncio.sleep(0.1)
            left.cancel()
            assert await ask(chat, "honest") == "honest"
        assert await pid() == first, "nobody waits for a new process"
        assert cpu_seconds(first) - begun < _RENDER_S


async def test_interrupts_outside_of_a_render_change_nothing(tmp_path):
    async with started(tmp_path) as chat:
        assert await ask(chat, "one") == "one"
        for number in range(50):
            os.kill(await pid(), signal.SIGUSR1)
            assert await ask(chat, str(number)) == str(number)


async def test_api_keys_take_turns(tmp_path):
    greedy, honest = KeyShare(1), KeyShare(2)
    async with started(tmp_path) as chat:
        ended: list[str] = []
        # The process is not up yet: all of them wait.
        waiting = [ask(chat, text, greedy) for text in ("a", "b", "c")]
        await asyncio.sleep(0)
        waiting.append(ask(chat, "honest", honest))
        for each in waiting:
            each.add_done_callback(lambda done: ended.append(done.result()))
        await asyncio.gather(*waiting)
        assert ended == ["a", "honest", "b", "c"]


@pytest.fixture(scope="module")
def deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": ENDLESS}) as deployment:
        yield deployment


def chat(deployment: Deployment, *messages: dict[str, str]) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 1}
    return deployment.post("/v1/chat/completions", body)


def leave(deployment: Deployment, path: str, open_ones: ExitStack) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hang"}]}).encode()
    url = httpx.URL(deployment.api.url)
    client = open_ones.enter_context(socket.create_connection((url.host, url.port or 80)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    client.sendall(head.encode() + body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_twenty_that_left_hold_up_nobody(deployment, path):
    (running,) = children_of(deployment.api.process.pid)["server.templates.template_main"]
    begun = cpu_seconds(running)
    with ExitStack() as open_ones:
        for _ in range(20):
            leave(deployment, path, open_ones)
        wait_until(lambda: cpu_seconds(running) > begun)
    assert chat(deployment, {"role": "user", "content": "honest"}).status_code == 200
    assert cpu_seconds(running) - begun < 5 * _RENDER_S


def test_the_largest_of_too_many_that_wait_is_refused(tokenizer):
    limits = Limits(max_unread_size=10 * REQUEST_BYTES)
    with chat_deployment(tokenizer, {"writer": ENDLESS}, limits) as own, ExitStack() as open_ones:
        leave(own, "/v1/chat/completions", open_ones)
        with ThreadPoolExecutor(2) as pool:
            empty = [{"role": "assistant", "content": ""}] * 2000
            large = pool.submit(chat, own, *empty)
            wait_until(lambda: metric(own, "penstock_in_flight", what="requests") == 2)
            other = pool.submit(chat, own, *empty[:1800])
            refused = large.result()
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            error = refused.json()["error"]
            assert error["code"] == "overloaded"
            assert "for a conversation that waits for its template" in error["message"]
            open_ones.close()
            assert other.result().status_code == 200
        assert chat(own, *empty).status_code == 200


def test_the_process_has_no_socket_but_its_own(deployment):
    (running,) = children_of(deployment.api.process.pid)["server.templates.template_main"]
    files = {int(file.name): str(file.readlink()) for file in Path(f"/proc/{running}/fd").iterdir()}
    assert files.keys() == {0, 1, 2}
    assert files[0] == files[1]
    assert files[0].startswith("socket:")
    assert not files[2].startswith("socket:")


def test_it_is_killed_with_the_api_process_while_it_renders(tokenizer):
    with chat_deployment(tokenizer, {"writer": ENDLESS}) as own, ExitStack() as open_ones:
        (running,) = children_of(own.api.process.pid)["server.templates.template_main"]
        idle = cpu_seconds(running)
        leave(own, "/v1/chat/completions", open_ones)
        wait_until(lambda: cpu_seconds(running) > idle + 0.1)
        used = [cpu_seconds(running)]
        own.api.process.kill()
        with suppress(OSError):  # until it has gone
            while is_alive(running):
                used.append(cpu_seconds(running))
        assert used[-1] - used[0] < 1
