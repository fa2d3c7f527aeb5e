"""What requests leave behind in the metrics, whatever their end."""

from contextlib import suppress
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_core.messages import Failed
from server.api.tei.protocol import ERRORS as TEI_ERRORS
from server.errors import ERRORS
from server.observe.metrics import STATUSES
from tests.patience import wait_until
from tests.server.conftest import Deployment

Labels = dict[str, str]


class Page:
    """What the metrics have gained since this was made."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._before: dict[Any, float] = {}
        self._before = self.gains()

    def gains(self) -> dict[Any, float]:
        """By the sample's name and labels."""
        text = self._deployment.http.get("/metrics").text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        now = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        return {key: value - self._before.get(key, 0.0) for key, value in now.items()}

    def gained(self, name: str, labels: Labels) -> float:
        return self.gains().get((name, frozenset(labels.items())), 0.0)

    def counted(self, *expected: tuple[str, Labels, float]) -> None:
        """An answer is counted once it is sent, which its reader may be ahead of."""
        wanted = {(name, frozenset(labels.items())): value for name, labels, value in expected}

        def shown() -> dict[Any, float]:
            gains = self.gains()
            return {key: gains.get(key, 0.0) for key in wanted}

        with suppress(TimeoutError):
            wait_until(lambda: shown() == wanted)
        assert shown() == wanted


@pytest.fixture
def page(deployment: Deployment) -> Page:
    return Page(deployment)


WRITER = {"model": "writer"}


def test_a_completion(deployment: Deployment, page: Page, say) -> None:
    ids = say("The quick brown fox")
    deployment.engines["writer"].script.cached = 3
    deployment.post("/v1/completions", {"prompt": "Hello", "n": 2})
    page.counted(
        ("penstock_rows_total", {**WRITER, "reason": "stop"}, 2),
        ("penstock_prompt_tokens_total", WRITER, 5),
        ("penstock_cached_tokens_total", WRITER, 3),
        ("penstock_generated_tokens_total", WRITER, 2 * (len(ids) + 1)),
        ("penstock_request_seconds_count", WRITER, 1),
        ("penstock_time_to_first_token_seconds_count", WRITER, 1),
        ("penstock_tokenize_seconds_sum", WRITER, 0.125),
        ("penstock_queue_seconds_sum", WRITER, 0.25),
        ("penstock_prefill_seconds_sum", WRITER, 0.5),
        ("penstock_decode_seconds_count", WRITER, 1),
        ("penstock_request_prompt_tokens_sum", WRITER, 5),
        ("penstock_request_generated_tokens_sum", WRITER, 2 * (len(ids) + 1)),
    )
    assert page.gained("penstock_decode_seconds_sum", WRITER) > 0.0


def test_rows_end_at_their_length_and_at_stop_strings(
    deployment: Deployment, page: Page, say
) -> None:
    say("The quick brown fox", end=False)
    deployment.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    deployment.post("/v1/completions", {"prompt": "Hello", "stop": "quick"})
    page.counted(
        ("penstock_rows_total", {**WRITER, "reason": "length"}, 1),
        ("penstock_rows_total", {**WRITER, "reason": "stop"}, 1),
        ("penstock_queue_seconds_count", WRITER, 2),
        ("penstock_decode_seconds_count", WRITER, 2),
    )


def test_a_client_that_leaves(deployment: Deployment, page: Page, say) -> None:
    say("The quick brown fox", end=False)
    deployment.engines["writer"].script.step_seconds = 0.02
    body = {"prompt": "Hello", "stream": True, "max_tokens": 2000}
    with deployment.http.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    page.counted(
        ("penstock_rows_total", {**WRITER, "reason": "abort"}, 1),
        ("penstock_request_seconds_count", WRITER, 1),
        ("penstock_queue_seconds_count", WRITER, 1),
    )


@pytest.mark.parametrize("accepted", [True, False])
def test_a_request_whose_time_is_over(deployment: Deployment, page: Page, accepted: bool) -> None:
    script = deployment.engines["writer"].script
    script.held, script.deaf = accepted, not accepted
    deployment.post("/v1/completions", {"prompt": "Hello", "timeout": 0.05})
    page.counted(
        ("penstock_rows_total", {**WRITER, "reason": "timeout"}, 1),
        ("penstock_request_seconds_count", WRITER, 1),
        ("penstock_queue_seconds_count", WRITER, 0),
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_row_that_fails(deployment: Deployment, page: Page, say, stream: bool) -> None:
    say("The quick brown fox")
    deployment.engines["writer"].script.fail_after = 2
    deployment.post("/v1/completions", {"prompt": "Hello", "stream": stream})
    page.counted(
        ("penstock_rows_total", {**WRITER, "reason": "error"}, 1),
        ("penstock_failures_total", {"reason": "row_failed"}, 1),
    )


def test_refusals_by_their_reason(deployment: Deployment, page: Page) -> None:
    refusal = Failed(0, "overloaded", "too much")
    deployment.engines["writer"].script.refusal = refusal
    deployment.post("/v1/completions", {"prompt": "Hello"})
    deployment.post("/v1/completions", {"prompt": "Hello", "temperature": 99})
    deployment.post("/v1/completions", {"prompt": "Hello", "model": "nobody"})
    deployment.post("/embed", {"inputs": []})
    deployment.http.get("/nothing")
    page.counted(
        ("penstock_refusals_total", {"reason": "overloaded"}, 1),
        ("penstock_refusals_total", {"reason": "invalid_request"}, 2),
        ("penstock_refusals_total", {"reason": "model_not_found"}, 1),
        ("penstock_refusals_total", {"reason": "not_found"}, 1),
        ("penstock_request_seconds_count", WRITER, 0),
    )


@pytest.mark.parametrize(
    ("path", "model", "body", "rows"),
    [
        ("/v1/embeddings", "embedder", {"input": ["a", "b", "c"]}, 3),
        ("/v1/rerank", "ranker", {"query": "a", "documents": ["b", "c"]}, 2),
        ("/v1/score", "embedder", {"text_1": "a", "text_2": ["b", "c"]}, 3),
        ("/v1/classify", "ranker", {"input": "a"}, 1),
        ("/embed", "embedder", {"inputs": "a"}, 1),
    ],
)
def test_models_that_only_read(
    deployment: Deployment, page: Page, path: str, model: str, body: dict[str, object], rows: int
) -> None:
    named = {"model": model} if path.startswith("/v1/") else {}
    answer = deployment.post(path, body | named)
    assert answer.status_code == 200
    own = {"model": model}
    page.counted(
        ("penstock_rows_total", {**own, "reason": "stop"}, rows),
        ("penstock_cached_tokens_total", own, 2),
        ("penstock_tokenize_seconds_sum", own, 0.125),
        ("penstock_queue_seconds_sum", own, 0.25),
        ("penstock_prefill_seconds_sum", own, 0.5),
        ("penstock_request_seconds_count", own, 1),
        ("penstock_decode_seconds_count", own, 0),
        ("penstock_http_request_seconds_count", {"endpoint": path}, 1),
    )
    tokens = page.gained("penstock_prompt_tokens_total", own)
    assert tokens == page.gained("penstock_request_prompt_tokens_sum", own) >= rows


def test_reasons_and_statuses_are_there_before_they_happen(deployment: Deployment) -> None:
    text = deployment.http.get("/metrics").text
    for code, kind in ERRORS.items():
        name = "failures" if kind.status == httpx.codes.INTERNAL_SERVER_ERROR else "refusals"
        assert f'penstock_{name}_total{{reason="{code}"}}' in text
        assert str(kind.status) in STATUSES
    assert set(map(str, TEI_ERRORS.statuses)) <= set(STATUSES)
