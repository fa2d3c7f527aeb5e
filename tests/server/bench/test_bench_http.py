"""The load generator of `penstock bench serve` against servers that say what a test wants."""

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server import cli
from server.batches.http_client import Address, HTTPClient
from server.bench.http_runner import HTTPRunner
from server.bench.load import ClientLoad, Load, figures_of
from server.bench.measurement import BenchError
from server.bench.words import single_token_words
from server.bench.workloads import HTTP
from tests.server.canned_server import CannedServer, answer, chunked

CASES = {case.name: case for case in HTTP}
STREAM = msgspec.structs.replace(CASES["http-gen-32x32"], count=6, in_flight=2)
EMBEDDINGS = msgspec.structs.replace(CASES["http-emb-32x128"], count=2)


def event(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def text(piece: str) -> bytes:
    return event(choices=[{"index": 0, "text": piece}], usage=None)


def usage(prompt: int = 32, completion: int = 32) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each load: of all that other tests have imported, it takes half a second."""
    monkeypatch.setattr("gc.collect", lambda: 0)


def runner_for(server: CannedServer, tokenizer: Tokenizer, clients: int = 1) -> HTTPRunner:
    words = single_token_words(tokenizer)
    return HTTPRunner(Address.of(server.url, "secret"), "writer", words, clients)


async def test_a_stream_is_timed_piece_by_piece(tokenizer: Tokenizer) -> None:
    pieces = chunked(text("a"), text("b"), text("c"), usage() + DONE)
    with CannedServer(pieces, pause=0.02) as server:
        figures = await runner_for(server, tokenizer).measure(STREAM, 0)
    assert (figures["requests"], figures["errors"]) == (6, 0)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (6 * 32, 6 * 32)
    # 20 ms between head, a, b, c, usage and the end; a busy machine takes longer.
    assert figures["ttft_p50_ms"] >= 19
    assert figures["latency_p50_ms"] >= 59
    whole = figures["ttft_mean_ms"] + 31 * figures["tpot_mean_ms"]
    assert whole == pytest.approx(figures["latency_mean_ms"])
    # 100 ms each, two at a time.
    assert figures["requests_per_s"] == pytest.approx(6 / figures["seconds"])
    assert figures["seconds"] >= 0.29


async def test_several_clients_share_a_load(tokenizer: Tokenizer) -> None:
    pieces = chunked(text("a"), text("b"), usage() + DONE)
    with CannedServer(pieces, pause=0.02) as server:
        case = msgspec.structs.replace(STREAM, in_flight=3)
        figures = await runner_for(server, tokenizer, clients=2).measure(case, 0)
        prompts = [msgspec.json.decode(request)["prompt"] for request in server.requests]
    # One whose end has not been read when the next request is due is opened anew.
    assert 3 <= server.connections <= 6
    assert len(set(prompts)) == len(prompts) == 6
    assert (figures["clients"], figures["requests"], figures["output_tokens"]) == (2, 6, 6 * 32)
    # By the clock of both: two requests a connection, some 80 ms each.
    assert 0.15 < figures["seconds"] < 10
    assert figures["ttft_p50_ms"] >= 19


def test_several_clients_keep_a_rate() -> None:
    """Each sends every second request, at its own time."""
    requests, departures = [b"0", b"1", b"2", b"3", b"4"], [0.0, 0.1, 0.2, 0.3, 0.4]
    address = Address("127.0.0.1", 9)
    load = ClientLoad(
        address=address, case=STREAM, requests=requests, in_flight=5, departures=departures
    )
    first, second = load.divided(2)
    assert (first.requests, second.requests) == ([b"0", b"2", b"4"], [b"1", b"3"])
    assert (first.departures, second.departures) == ([0.0, 0.2, 0.4], [0.1, 0.3])
    assert (first.in_flight, second.in_flight) == (3, 2)
    assert len(load.divided(9)) == 5


async def test_errors_of_all_clients_are_added_up(tokenizer: Tokenizer) -> None:
    message = "6 of 6 requests failed: 6 x status 500: no"
    answers = [answer(b"no", "500 Internal Server Error")]
    with CannedServer(answers) as server, pytest.raises(BenchError, match=message):
        await runner_for(server, tokenizer, clients=2).measure(STREAM, 0)


async def test_a_client_that_ends_is_an_error(tokenizer: Tokenizer, monkeypatch) -> None:
    monkeypatch.setattr("server.bench.load._COMMAND", ("true",))
    message = "a client's process has ended"
    with CannedServer([answer(b"")]) as server, pytest.raises(BenchError, match=message):
        await runner_for(server, tokenizer, clients=2).measure(STREAM, 0)


async def test_what_is_asked(tokenizer: Tokenizer) -> None:
    with CannedServer([*chunked(text("a"), usage(), DONE)]) as server:
        await runner_for(server, tokenizer).measure(STREAM, 0)
        bodies = [msgspec.json.decode(request) for request in server.requests]
    assert 2 <= server.connections <= 6
    prompts = [body.pop("prompt") for body in bodies]
    assert len(set(prompts)) == 6
    assert {len(ids) for ids in tokenizer.encode(prompts, add_special_tokens=False)} == {32 * 4}
    expected = {
        "model": "writer",
        "max_tokens": 32,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert all(body == expected for body in bodies)


async def test_no_text_is_asked_twice(tokenizer: Tokenizer) -> None:
    """Neither by the warm-up, nor by a second run, nor by another case of the same lengths."""
    other = msgspec.structs.replace(STREAM, name="http-gen-other")
    with CannedServer([*chunked(text("a"), usage(), DONE)]) as server:
        runner = runner_for(server, tokenizer)
        for case in (STREAM, other):
            await runner.warm_up(case)
            await runner.measure(case, 0)
            await runner.measure(case, 1)
        prompts = [msgspec.json.decode(request)["prompt"] for request in server.requests]
    assert len(set(prompts)) == len(prompts) == 2 * (2 + 6 + 6)


async def test_bytes_that_come_one_by_one(tokenizer: Tokenizer) -> None:
    whole = b"".join(chunked(text("a"), text("b"), usage(), DONE))
    with CannedServer([whole[i : i + 1] for i in range(len(whole))]) as server:
        client = HTTPClient(Address.of(server.url, None))
        answered = await client.exchange(client.address.request("POST", "/", {"a": 1}))
        client.close()
    assert answered.body == text("a") + text("b") + usage() + DONE


def embeddings(count: int, tokens: int) -> bytes:
    vectors = [{"index": index, "embedding": "AACAPw=="} for index in range(count)]
    return answer(msgspec.json.encode({"data": vectors, "usage": {"prompt_tokens": tokens}}))


@pytest.mark.parametrize(
    ("case", "pieces", "message"),
    [
        (STREAM, [answer(b"no", "500 Internal Server Error")], "status 500: no"),
        (STREAM, [answer(b"", "429 Too Many Requests")], "status 429: "),
        (STREAM, chunked(text("a"), usage()), "the stream ends without data: [DONE]"),
        (STREAM, chunked(text("a"), usage() + DONE[:5]), "the stream ends without data: [DONE]"),
        (STREAM, chunked(text("a"), usage(completion=3), DONE), "3 tokens instead of 32"),
        (STREAM, chunked(text("a"), DONE), "a stream without usage"),
        (STREAM, chunked(usage(), DONE), "a stream without text"),
        (STREAM, chunked(text("a"), event(error={"a": 1}), DONE), "within the stream: {'a': 1}"),
        (STREAM, chunked(text("a"), b"data: {\n\n", DONE), "an answer that cannot be read"),
        (STREAM, chunked(text("a"), usage(40), DONE), "the server counts 40 tokens in 1 x 32"),
        (STREAM, [b"SSH-2.0-OpenSSH_9.9\r\n"], "not HTTP"),
        (STREAM, chunked(text("a"))[:2], "the server hung up"),
        (EMBEDDINGS, [embeddings(31, 32 * 130)], "31 vectors for 32 texts"),
        (EMBEDDINGS, [embeddings(32, 32 * 512)], "the server counts 16384 tokens in 32 x 128"),
    ],
)
async def test_wrong_answers(case, pieces, message, tokenizer: Tokenizer) -> None:
    hangs_up = message.endswith("hung up")
    with CannedServer(pieces, cut=hangs_up) as server, pytest.raises(BenchError) as failure:
        await runner_for(server, tokenizer).measure(case, 0)
    count = case.count
    said = str(failure.value).removeprefix(f"{count} of {count} requests failed: {count} x ")
    assert message in said
    assert said != str(failure.value)


async def test_embeddings(tokenizer: Tokenizer) -> None:
    with CannedServer([embeddings(32, 32 * 130)]) as server:
        figures = await runner_for(server, tokenizer).measure(EMBEDDINGS, 0)
        bodies = [msgspec.json.decode(request) for request in server.requests]
    assert (figures["sequences"], figures["prompt_tokens"]) == (2 * 32, 2 * 32 * 130)
    assert "ttft_p50_ms" not in figures
    assert {body["encoding_format"] for body in bodies} == {"base64"}
    assert {len(body["input"]) for body in bodies} == {32}


async def test_arrivals_are_spread_and_do_not_wait_for_answers() -> None:
    pieces = chunked(text("a"), usage() + DONE)
    case = msgspec.structs.replace(CASES["http-gen-16"], prompt_tokens=32, outputs=32)
    with CannedServer(pieces, pause=0.1) as server:
        address = Address.of(server.url, None)
        requests = [address.request("POST", "/v1/completions", {})] * 40
        departures = [number / 80.0 for number in range(40)]
        load = Load(
            ClientLoad(
                address=address, case=case, requests=requests, in_flight=40, departures=departures
            )
        )
        result = await load.run()
        load.client.close()
    assert load.done == 40
    assert not result.errors
    # The last arrives after 40 / 80 s, and takes 0.3 s; one after another would take 12 s.
    assert 0.75 < result.ended - result.started < 6.0
    assert figures_of([result])["late_p50_ms"] >= 0


async def test_idle_connections_are_not_trusted_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.http_client._IDLE_SECONDS", 0.05)
    with CannedServer([answer(b"{}")]) as server:
        client = HTTPClient(Address.of(server.url, None))
        request = client.address.request("POST", "/", {})
        for pause in (0.0, 0.0, 0.1, 0.0):
            await asyncio.sleep(pause)
            await client.exchange(request)
        client.close()
    assert server.connections == 2


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1", "127.0.0.1:8000", "http://h:99999", "http://h/v1"]
)
def test_addresses_that_are_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "serve", "--url", url, "--case", "http-gen-16"]) == 1
    assert f"penstock: error: {url} is not an address" in capsys.readouterr().err


def test_nobody_listens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with CannedServer([]) as server:
        url = server.url
    arguments = ["--case", "http-gen-16", "--scale", "0.01"]
    arguments += ["--tokenizer", str(folder / "tokenizer.json")]
    assert cli.main(["bench", "serve", "--url", url, *arguments]) == 1
    assert re.search(r"/v1/models: .* \(asked as --model is not given\)", capsys.readouterr().out)
    assert cli.main(["bench", "serve", "--url", url, "--model", "m", *arguments]) == 1
    said = capsys.readouterr()
    assert "http-gen-16: FAILED: 6 of 6 requests failed" in said.out
    assert "penstock: error: not measured: http-gen-16" in said.err


def test_a_tokenizer_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "serve", "--url", "http://127.0.0.1:9", "--case", "http-gen-16"]
    assert cli.main([*arguments, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 1
    assert "tokenizer.json is missing" in capsys.readouterr().out
