"""What the page shows of a daemon with several API processes, and its box to try endpoints."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from server.demo import GENERATOR_NAME, demo_models
from tests.deploy.status_page.chromium import Page
from tests.deploy.status_page.conftest import status
from tests.e2e.daemon import Daemon, running
from tests.patience import wait_until


@contextmanager
def opened(page: Page, daemon: Daemon) -> Iterator[Page]:
    """The open page. At the end it has asked nobody else, and has had nothing to complain of."""
    page.open(f"{daemon.url}/")
    page.wait_text("#state", "ready")
    yield page
    assert {urlsplit(url).netloc for url in page.requests()} == {urlsplit(daemon.url).netloc}
    assert page.complaints() == []


@pytest.fixture
def board(page: Page, demo: Daemon) -> Iterator[Page]:
    with opened(page, demo) as board:
        yield board


@contextmanager
def load(daemon: Daemon) -> Iterator[None]:
    """Two clients that generate, one after another."""
    over = threading.Event()

    def ask() -> None:
        body = {"prompt": "The Python interpreter", "max_tokens": 60}
        while not over.is_set():
            httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=60).raise_for_status()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def tile(page: Page, name: str, within: str = "#tiles") -> str:
    """The text of a tile."""
    tiles = page.value(
        f"[...document.querySelectorAll({json.dumps(within + ' .tile')})].map((t) => t.innerText)"
    )
    return next(text for text in tiles if text.startswith(name))


def lines(page: Page) -> dict[str, str]:
    """The path of each sparkline of the daemon's load, by what it shows."""
    pairs = page.value(
        "[...document.querySelectorAll('#tiles .sparkline')].map((s) =>"
        " [s.ariaLabel.split(',')[0], s.querySelector('.line').getAttribute('d')])"
    )
    return dict(pairs)


def number(text: str) -> float:
    """The first number of a text."""
    found = re.search(r"[\d,.]+", text)
    return float(found[0].replace(",", "")) if found else -1.0


def test_numbers_and_lines_move_under_load(board: Page, demo: Daemon) -> None:
    card = "#models article:first-child"
    with load(demo):
        wait_until(lambda: number(tile(board, "Generated").split("\n", 1)[1]) > 10)
        wait_until(lambda: number(tile(board, "Running", card).split("\n", 1)[1]) > 0)
        before = lines(board)
        wait_until(lambda: lines(board)["Generated"] != before["Generated"])
        wait_until(lambda: "ms" in tile(board, "First token"))
        wait_until(lambda: re.search(r"busy \d", board.text(f"{card} .stages")))
    assert "p95" in tile(board, "First token", card)
    assert "KV cache in use" in board.text(card)


def test_every_api_process_counts(board: Page, demo: Daemon) -> None:
    """Each request on a connection of its own, so that both processes have some."""
    before = status(demo)["models"][0]["generated_tokens"]
    body = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}
    for _ in range(12):
        httpx.post(f"{demo.url}/v1/completions", json=body).raise_for_status()
    for _ in range(6):
        assert status(demo)["models"][0]["generated_tokens"] == before + 24
    shown = f"{before + 24:,} since the start"
    wait_until(lambda: shown in tile(board, "Generated"))


def test_a_daemon_that_does_not_answer_is_said_to_be_gone(page: Page, demo: Daemon) -> None:
    page.open(f"{demo.url}/")
    page.wait_text("#state", "ready")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.send("Network.emulateNetworkConditions", offline=True, **network)
    page.wait_text("#state", "no answer since")
    page.send("Network.emulateNetworkConditions", offline=False, **network)
    page.wait_text("#state", "ready")


def test_refusals_are_shown_by_their_reason(board: Page, demo: Daemon) -> None:
    assert httpx.post(f"{demo.url}/v1/completions", json={"prompt": 1.5}).status_code == 400
    board.wait_text("#refusals", "invalid_request")
    assert "/v1/completions" in board.text("#answers")


def test_the_table_has_what_others_asked_for(board: Page, demo: Daemon) -> None:
    """The page itself asks for `/`, for its files, and for `/status`."""
    httpx.post(f"{demo.url}/v1/embeddings", json={"input": "a"}).raise_for_status()
    httpx.get(f"{demo.url}/metrics").raise_for_status()
    board.wait_text("#answers", "/metrics")
    endpoints = {row.split("\t")[0] for row in board.text("#answers tbody").splitlines()}
    assert {"/v1/embeddings", "/metrics"} <= endpoints
    assert [path for path in endpoints if re.match(r"/$|/status", path)] == []


@pytest.mark.parametrize(
    ("model", "endpoint", "part"),
    [
        ("penstock-demo", "/v1/completions", "First text after"),
        ("penstock-demo", "/v1/chat/completions", "First text after"),
        ("all-MiniLM-L6-v2", "/v1/embeddings", "384"),
        ("all-MiniLM-L6-v2", "/v1/rerank", "The giant panda lives on bamboo."),
        ("all-MiniLM-L6-v2", "/v1/score", "A kitten rested on the rug."),
        ("all-MiniLM-L6-v2", "/tokenize", "Tokens"),
    ],
)
def test_an_endpoint_can_be_tried(board: Page, model: str, endpoint: str, part: str) -> None:
    send_trial(board, model, endpoint)
    wait_until(lambda: part in board.text("#try-answer") + board.text("#try-note"))
    assert len(board.text("#try-answer")) > 10


def test_a_decision_can_be_tried(board: Page) -> None:
    send_trial(board, "penstock-demo", "/v1/decisions")
    heads, *rows = board.text("#try-answer").splitlines()
    assert heads.split("\t") == ["Question", "Probabilities"]
    asked = ["The customer asks for a refund.", "The customer is glad.", "Which team answers this?"]
    assert [row.split("\t")[0] for row in rows] == asked
    stated, _, teams = [row.split("\t")[1].split(", ") for row in rows]
    assert stated[0].startswith("true: 0.")
    shares = dict(team.split(": ") for team in teams)
    assert set(shares) == {"billing", "delivery", "sales"}
    probabilities = list(map(float, shares.values()))
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=0.002)


def test_classifiers_and_sparse_embedders_can_be_tried(page: Page, readers: Daemon) -> None:
    with opened(page, readers):
        send_trial(page, "moods", "/v1/classify")
        rows = page.text("#try-answer").splitlines()
        label, probabilities, text = rows[1].split("\t")
        assert label in ("calm", "glad", "sad")
        assert sum(map(float, probabilities.split(", "))) == pytest.approx(1, abs=0.002)
        assert text == "The cat sat on the mat."
        send_trial(page, "splade", "/embed_sparse")
        rows = page.text("#try-answer").splitlines()
        text, entries, largest = rows[1].split("\t")
        assert text == "The cat sat on the mat."
        assert int(entries) > len(largest.split(", ")) == 4
        weights = [float(entry.split(": ")[1]) for entry in largest.split(", ")]
        assert weights == sorted(weights, reverse=True)


def test_a_chat_goes_on_with_the_answer_so_far(board: Page) -> None:
    fill(board, system="You are terse.", message="Tell me about files.", temperature="0")
    answers = [send_turn(board)]
    fill(board, message="And then?")
    answers.append(send_turn(board))
    first, second = board.posted()
    opening = [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "Tell me about files."},
    ]
    assert (first["messages"], first["temperature"], first["max_tokens"]) == (opening, 0, 64)
    assert second["messages"] == [
        *opening,
        {"role": "assistant", "content": answers[0]},
        {"role": "user", "content": "And then?"},
    ]
    shown = board.text("#try-answer")
    assert [shown.count(text) for text in ("You\n", "And then?", answers[1])] == [2, 1, 1]
    assert '"And then?"' in board.value("document.getElementById('try-command').textContent")


def test_a_conversation_begins_anew_with_the_models_own_temperature(board: Page) -> None:
    assert board.text("#try-anew") == ""
    send_turn(board)
    board.value("document.getElementById('try-anew').click()")
    assert (board.text("#try-answer"), board.text("#try-anew")) == ("", "")
    fill(board, message="And then?")
    send_turn(board)
    *_, last = board.posted()
    assert last["messages"] == [{"role": "user", "content": "And then?"}]
    assert "temperature" not in last


def test_a_turn_without_an_answer_can_be_sent_again(page: Page, demo: Daemon) -> None:
    page.open(f"{demo.url}/")
    page.wait_text("#state", "ready")
    fill(page, message="Once.", tokens="100000")
    page.value("document.getElementById('try-send').click()")
    page.wait_text("#try-answer", "400")
    assert page.value("document.getElementById('try-field-message').value") == "Once."
    fill(page, tokens="8")
    send_turn(page)
    assert [message["content"] for message in page.posted()[-1]["messages"]] == ["Once."]
    assert "400" not in page.text("#try-answer")


def fill(page: Page, **values: str) -> None:
    """Type into fields of the box."""
    for name, value in values.items():
        page.value(f"document.getElementById('try-field-{name}').select()")
        page.type(value)


def send_turn(page: Page) -> str:
    """The model's answer to the message in the box, which is empty then."""
    page.value("document.getElementById('try-note').textContent = ''")
    page.value("document.getElementById('try-send').click()")
    page.wait_text("#try-note", "after")
    assert page.value("document.getElementById('try-field-message').value") == ""
    return page.value("document.querySelector('#try-answer p:last-child span').textContent")


def send_trial(page: Page, model: str, endpoint: str) -> None:
    """Until its answer is there."""
    choose(page, model, endpoint)
    page.value("document.getElementById('try-send').click()")
    page.wait_text("#try-note", "after")
    assert endpoint in page.value("document.getElementById('try-command').textContent")


def choose(page: Page, model: str, endpoint: str) -> None:
    page.value(
        f"for (const [id, value] of [['try-model', {json.dumps(model)}],"
        f" ['try-endpoint', {json.dumps(endpoint)}]]) {{"
        " const list = document.getElementById(id); list.value = value;"
        " list.dispatchEvent(new Event('change')) }"
    )
    assert page.value("document.getElementById('try-endpoint').value") == endpoint


def test_a_stream_comes_in_pieces_and_can_be_stopped(board: Page) -> None:
    choose(board, "penstock-demo", "/v1/completions")
    board.value("document.getElementById('try-field-tokens').value = 1000")
    # Drawn tokens may end the text at once; these do not.
    board.value("document.getElementById('try-field-temperature').value = 0")
    board.value("document.getElementById('try-send').click()")
    wait_until(lambda: len(board.text("#try-answer")) > 20)
    first = board.text("#try-answer")
    wait_until(lambda: len(board.text("#try-answer")) > len(first))
    board.value("document.getElementById('try-stop').click()")
    board.wait_text("#try-note", "Stopped.")
    assert board.text("#try-answer").startswith(first)


def test_quantiles_lie_within_their_buckets(board: Page) -> None:
    before = {"bounds": [1, 2, 4], "counts": [5, 0, 0, 0]}
    now = {"bounds": [1, 2, 4], "counts": [5, 10, 10, 0]}
    found = board.value(
        "import('./status-page/history.js').then((h) => h.quantilesBetween("
        f"{json.dumps(before)}, {json.dumps(now)}, [0, 0.25, 0.5, 0.75, 1]))"
    )
    assert found == [1, 1.5, 2, 3, 4]
    none = board.value(
        "import('./status-page/history.js').then((h) => h.quantilesBetween("
        f"{json.dumps(now)}, {json.dumps(now)}, [0.5]))"
    )
    assert none == [None]


def test_each_copy_has_its_stages_and_its_losses(page: Page) -> None:
    generator = str(demo_models()[GENERATOR_NAME])
    words = ("--threads", "1", "--data-parallel-size", "2", "--state-dir", "none")
    with running(generator, *words) as daemon, opened(page, daemon) as board, load(daemon):
        board.wait_text("#models", "Stage of copy 0")
        board.wait_text("#models", "Stage of copy 1")
        os.kill(daemon.part("0-1.worker-0"), signal.SIGKILL)
        board.wait_text("#models", "Last loss of copy 1")
        assert board.value("document.querySelector('#state').innerText") == "ready"
