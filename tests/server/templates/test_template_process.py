"""Chats whose template process is killed, stopped or cannot start, or whose clients leave it."""

import asyncio
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.daemon.process_stats import cpu_seconds
from engine_core.messages import NO_KEY, KeyShare
from engine_core.refusal import RefusalError
from server.service.ledger import REQUEST_BYTES
from server.settings.settings import Limits
from server.templates import template_client, template_process
from server.templates.protocol import ChatTemplate, Conversation, Message, frame
from server.templates.template_client import TemplateClient
from tests.e2e.daemon import children_of, is_alive
from tests.patience import PATIENCE, wait_until
from tests.server.api.test_ops import metric
from tests.server.chat_templates import ENDLESS, chat_deployment
from tests.server.conftest import Deployment

CHAT = "/v1/chat/completions"
HELLO = {"role": "user", "content": "Hello"}
SLOW = """\
{% if messages[0].content == 'slow' %}{% for i in range(300) %}{% for j in range(30000) %}\
{% endfor %}{% endfor %}{% endif %}{{- messages[0].content }}"""


@asynccontextmanager
async def started(folder: Path, source: str = ENDLESS) -> AsyncIterator[TemplateClient]:
    """A client whose process has been started, but may not be up yet."""
    (folder / "chat_template.jinja").write_text(source)
    chat = TemplateClient("writer", folder)
    chat.start()
    await asyncio.sleep(0)
    yield chat
    await chat.close()
    assert not pids()


def pids(parent: int | None = None) -> list[int]:
    """The templates' processes of an API process, or of this one."""
    return children_of(parent or os.getpid()).get("server.templates.template_main", [])


async def pid() -> int:
    """Of the one process, as soon as it is there."""
    while not (found := pids()):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return found[0]


def ask(chat: TemplateClient, text: str, key: KeyShare = NO_KEY) -> asyncio.Task[str]:
    return asyncio.create_task(_prompt(chat, {"role": "user", "content": text}, key))


async def _prompt(chat: TemplateClient, message: Message, key: KeyShare) -> str:
    return (await chat.prompt_of(frame(Conversation(messages=[message])), key)).prompt


async def gone(pid: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while is_alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_killed_while_idle_it_is_started_again_at_once(tmp_path, caplog):
    async with started(tmp_path) as chat:
        assert await ask(chat, "one") == "one"
        first = await pid()
        os.kill(first, signal.SIGKILL)
        await gone(first, 10)
        async with asyncio.timeout(10):
            assert await pid() != first
        texts = [*map(str, range(20))]
        assert await asyncio.gather(*(ask(chat, text) for text in texts)) == texts
        chat.check()
    (line,) = caplog.messages
    assert line.startswith("the chat template of model writer cannot be rendered now: its process")
    assert line.endswith("was killed by SIGKILL; starting it again")


@pytest.mark.parametrize(
    ("number", "logged"),
    [
        (signal.SIGKILL, "its process was killed by SIGKILL; starting"),
        (signal.SIGSTOP, "its process hung for 3 s, and was killed; starting"),
    ],
)
async def test_ended_during_a_render_the_next_process_renders(
    tmp_path, monkeypatch, caplog, number, logged
):
    monkeypatch.setattr(template_client, "_RENDER_S", 3.0)
    async with started(tmp_path, SLOW) as chat:
        assert await ask(chat, "one") == "one"
        slow, after = ask(chat, "slow"), ask(chat, "after")
        await asyncio.sleep(0.02)
        os.kill(await pid(), number)
        assert await asyncio.gather(slow, after) == ["slow", "after"]
    assert logged in caplog.text


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_killed_or_stopped_while_it_starts(tmp_path, monkeypatch, number):
    monkeypatch.setattr(template_process, "_START_S", 6.0)
    async with started(tmp_path) as chat:
        first = await pid()
        os.kill(first, number)
        with pytest.raises(RefusalError, match="being compiled") as caught:
            chat.check()
        assert caught.value.code == "not_ready"
        assert await ask(chat, "one") == "one"
        assert await pid() != first
        chat.check()


async def test_stopped_while_idle_it_is_noticed(tmp_path, monkeypatch, caplog):
    assert template_client._PING_EVERY_S + template_client._PING_S < 10
    monkeypatch.setattr(template_client, "_PING_EVERY_S", 0.2)
    monkeypatch.setattr(template_client, "_PING_S", 2.0)
    async with started(tmp_path) as chat:
        assert await ask(chat, "one") == "one"
        first = await pid()
        os.kill(first, signal.SIGSTOP)
        await gone(first, 10)
        assert await ask(chat, "two") == "two"
    assert "its process hung for 2 s, and was killed; starting" in caplog.text


async def test_who_leaves_before_his_turn_is_not_rendered(tmp_path):
    async with started(tmp_path) as chat:
        left = [ask(chat, "hang") for _ in range(50)]
        await asyncio.sleep(0.5)
        for one in left:
            one.cancel()
        async with asyncio.timeout(30):
            assert await ask(chat, "honest") == "honest"


async def test_killed_again_and_again_it_is_started_ever_later(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(template_client, "_FIRST_DELAY_S", 0.05)
    monkeypatch.setattr(template_client, "_MAX_DELAY_S", 0.2)
    async with started(tmp_path) as chat:
        begun = time.monotonic()
        for _ in range(8):
            killed = await pid()
            os.kill(killed, signal.SIGKILL)
            await gone(killed, 10)
        assert time.monotonic() - begun > 0.05 + 0.1 + 4 * 0.2
        with pytest.raises(RefusalError, match="was killed by SIGKILL") as caught:
            await ask(chat, "one")
        assert caught.value.code == "template_unavailable"
        with pytest.raises(RefusalError) as caught:
            chat.check()
        assert caught.value.code == "unhealthy"
        async with asyncio.timeout(30):
            while not await answers(chat):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        chat.check()
    *failures, again = caplog.messages
    assert len(failures) == 8
    assert all(line.endswith("starting it again") for line in failures)
    assert again.endswith("is rendered again")


async def test_it_is_started_again_after_any_number_of_failures(tmp_path, monkeypatch):
    monkeypatch.setattr(template_client, "_MAX_DELAY_S", 0.0)
    async with started(tmp_path) as chat:
        chat._failures = 5000
        await chat._back_off()


async def answers(chat: TemplateClient) -> bool:
    with suppress(RefusalError):
        return await ask(chat, "one") == "one"
    return False


async def test_the_process_knows_no_api_key(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_API_KEY", "sesame")
    async with started(tmp_path):
        file = Path(f"/proc/{await pid()}/environ")
        assert b"sesame" not in await asyncio.to_thread(file.read_bytes)


@pytest.fixture(scope="module")
def deployment(tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, {"writer": ENDLESS}) as deployment:
        yield deployment


def chat(deployment: Deployment, *messages: dict[str, str]) -> httpx.Response:
    body = {"messages": messages or [HELLO], "max_tokens": 1}
    return deployment.post(CHAT, body)


def status(answer: httpx.Response) -> tuple[int, str]:
    """The status, and the code of an error."""
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def health(deployment: Deployment, path: str = "/health/ready") -> tuple[int, str]:
    return status(deployment.http.get(path))


def kill_templates(deployment: Deployment) -> None:
    for pid in pids(deployment.api.process.pid):
        os.kill(pid, signal.SIGKILL)


def test_chats_go_on_after_kills(deployment):
    for number in (signal.SIGKILL, signal.SIGTERM):
        assert status(chat(deployment)) == (200, "")
        (pid,) = pids(deployment.api.process.pid)
        os.kill(pid, number)
        assert {status(chat(deployment)) for _ in range(10)} == {(200, "")}
        assert health(deployment) == (200, "")


def test_readiness_follows_a_process_that_keeps_ending(deployment):
    def is_refused() -> bool:
        kill_templates(deployment)
        return health(deployment) == (503, "unhealthy")

    wait_until(is_refused)
    assert status(chat(deployment)) == (500, "template_unavailable")
    assert health(deployment, "/health/live") == (200, "")
    assert deployment.post("/v1/completions", {"prompt": "a"}).status_code == 200
    wait_until(lambda: health(deployment) == (200, ""))
    assert status(chat(deployment)) == (200, "")


def test_readiness_follows_a_process_that_cannot_be_started(deployment):
    api = deployment.api.process.pid
    limits = resource.prlimit(api, resource.RLIMIT_NOFILE)
    resource.prlimit(api, resource.RLIMIT_NOFILE, (8, limits[1]))
    try:
        kill_templates(deployment)
        wait_until(lambda: health(deployment) == (503, "unhealthy"))
        _, code = status(chat(deployment))
        assert code == "template_unavailable"
    finally:
        resource.prlimit(api, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: health(deployment) == (200, ""))
    assert status(chat(deployment)) == (200, "")


TEMPLATE = ChatTemplate(source="{{ 1 }}", file="chat_template.jinja", tokens={})
COMMAND = [sys.executable, "-P", "-m", "server.templates.template_main"]


@pytest.mark.parametrize("sent", [b"", frame(TEMPLATE)], ids=["nothing", "a template"])
def test_a_process_that_nobody_listens_to_ends_without_a_word(sent):
    listener, sink = os.pipe()
    os.close(listener)
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=sink, stderr=subprocess.PIPE)
    os.close(sink)
    assert process.communicate(sent, timeout=PATIENCE) == (None, b"")


def test_a_process_whose_answer_nobody_read_ends_without_a_word():
    ours, theirs = socket.socketpair()
    with theirs:
        ends = theirs.fileno()
        process = subprocess.Popen(COMMAND, stdin=ends, stdout=ends, stderr=subprocess.PIPE)
    with ours:
        ours.sendall(frame(TEMPLATE))
        assert select.select([ours], [], [], 20)[0]
    _, complained = process.communicate(timeout=PATIENCE)
    assert (process.returncode, complained) == (0, b"")


def test_a_stopped_process_goes_with_the_api_process(tokenizer):
    with chat_deployment(tokenizer, {"writer": ENDLESS}) as own:
        (stopped,) = pids(own.api.process.pid)
        os.kill(stopped, signal.SIGSTOP)
        own.api.drain()
        assert own.api.process.wait(PATIENCE) == 0
        assert not is_alive(stopped)
        with pytest.raises(httpx.ConnectError):
            own.http.get("/health")


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


HANG = b'{"messages": [{"role": "user", "content": "hang"}]}'


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_twenty_that_left_hold_up_nobody(deployment, path):
    (running,) = pids(deployment.api.process.pid)
    begun = cpu_seconds(running)
    with ExitStack() as open_ones:
        for _ in range(20):
            open_ones.enter_context(deployment.begin(path, HANG))
        wait_until(lambda: cpu_seconds(running) > begun)
    assert chat(deployment).status_code == 200
    assert cpu_seconds(running) - begun < 5 * _RENDER_S


def test_the_largest_of_too_many_that_wait_is_refused(tokenizer):
    limits = Limits(max_unread_size=10 * REQUEST_BYTES)
    with chat_deployment(tokenizer, {"writer": ENDLESS}, limits) as own:
        with own.begin(CHAT, HANG) as hanging, ThreadPoolExecutor(2) as pool:
            empty = [{"role": "assistant", "content": ""}] * 2000
            large = pool.submit(chat, own, *empty)
            wait_until(lambda: metric(own, "penstock_in_flight", what="requests") == 2)
            other = pool.submit(chat, own, *empty[:1800])
            refused = large.result()
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            error = refused.json()["error"]
            assert error["code"] == "overloaded"
            assert "for a conversation that waits for its template" in error["message"]
            hanging.close()
            assert other.result().status_code == 200
        assert chat(own, *empty).status_code == 200


def test_the_process_has_no_socket_but_its_own(deployment):
    (running,) = pids(deployment.api.process.pid)
    files = {int(file.name): str(file.readlink()) for file in Path(f"/proc/{running}/fd").iterdir()}
    assert files.keys() == {0, 1, 2}
    assert files[0] == files[1] != files[0].removeprefix("socket:")
    assert not files[2].startswith("socket:")


def test_it_is_killed_with_the_api_process_while_it_renders(tokenizer):
    with chat_deployment(tokenizer, {"writer": ENDLESS}) as own:
        (running,) = pids(own.api.process.pid)
        idle = cpu_seconds(running)
        with own.begin(CHAT, HANG):
            wait_until(lambda: cpu_seconds(running) > idle + 0.1)
            used = [cpu_seconds(running)]
            own.api.process.kill()
        with suppress(OSError):  # until it has gone
            while is_alive(running):
                used.append(cpu_seconds(running))
        assert used[-1] - used[0] < 1
