import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from server.batches.answering import Line
from server.batches.batch_llm import Completions, Options, Prompt, check_options
from server.batches.results import RequestError
from server.generation.plan import grammar_of
from server.http.body import Body
from server.schemas.completions import CompletionRequest


def completion_lines(
    named: Options,
    prompts: Sequence[Prompt],
    sampling: Options | Sequence[Options],
    common: Options,
) -> list[Line | RequestError]:
    """The line of each prompt, or why there is none."""
    job = Completions(named, prompts, sampling, common)
    lines = {line.index: line for line in job.lines}
    refused = [each for each in job.results if isinstance(each, RequestError)]
    assert len(lines) + len(refused) == len(prompts)
    return [lines[i] if i in lines else refused.pop(0) for i in range(len(prompts))]


def body(line: Line | RequestError) -> dict[str, Any]:
    assert isinstance(line, Line)
    assert line.url == "/v1/completions"
    return json.loads(line.body)


def test_options_are_for_all_or_one_each() -> None:
    each: list[Options] = [{"seed": 1}, {"max_tokens": 5}]
    one, other = completion_lines({}, ["a", [1, 2]], each, {"max_tokens": 3})
    assert body(one) == {"prompt": "a", "max_tokens": 3, "seed": 1, "return_token_ids": True}
    assert body(other) == {"prompt": [1, 2], "max_tokens": 5, "return_token_ids": True}


def test_bodies_name_the_model_and_go_on_with_the_prompt() -> None:
    lines = completion_lines({"model": "m"}, ["b", "a c", "a b"], {}, {"max_tokens": 3})
    assert list(body(lines[0])) == ["model", "prompt", "max_tokens", "return_token_ids"]
    in_order = sorted(lines, key=lambda line: line.body if isinstance(line, Line) else b"")
    assert [body(line)["prompt"] for line in in_order] == ["a b", "a c", "b"]


def test_ids_may_come_in_an_array() -> None:
    ids: Prompt = np.array([3, 4], np.int32)  # pyright: ignore[reportAssignmentType]
    (line,) = completion_lines({}, [ids], {}, {})
    assert body(line)["prompt"] == [3, 4]


@pytest.mark.parametrize(
    "options",
    [
        {"json_schema": {"type": "object"}},
        {"guided_json": '{"type": "object"}'},
        {"structured_outputs": {"json": {"type": "object"}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "object"}},
            }
        },
    ],
)
def test_a_schema_is_given_as_in_a_body(options: dict[str, object]) -> None:
    (line,) = completion_lines({}, ["a"], options, {})
    assert isinstance(line, Line)
    grammar = grammar_of(Body(CompletionRequest).decode(line.body))
    assert grammar is not None
    assert "object" in grammar.source


@pytest.mark.parametrize("number", [float("nan"), float("inf"), object()])
def test_what_is_no_json_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        completion_lines({}, ["a"], {"top_p": number}, {})
    with pytest.raises(ValueError, match="JSON"):
        check_options("/v1/embeddings", {"dimensions": number})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": 3}, "temperature: expected"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs.grammar is known but not"),
        ({"response_format": {"type": "text", "shape": 1}}, "response_format.shape: is unknown"),
        ({"temprature": 1}, "temprature: there is no such option"),
        ({"stream": True}, "stream: there is no such option"),
        ({"model": "x"}, "model: there is no such option"),
    ],
)
def test_options_that_are_wrong_for_all_end_the_job_at_once(
    options: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        completion_lines({}, ["a"], options, {})


@pytest.mark.parametrize("option", ["model", "input", "encoding_format", "user", "top_n"])
def test_an_option_of_a_job_is_named(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: there is no such option here; there are add"):
        check_options("/v1/embeddings", {option: 1})


def test_what_is_wrong_for_one_prompt_is_in_its_place() -> None:
    odd: Prompt = [{"role": "user"}]  # pyright: ignore[reportAssignmentType]
    each: list[Options] = [{}, {}, {"max_tokens": -1}, {"a": 1}]
    first, *others = completion_lines({}, ["a", odd, "c", "d"], each, {})
    assert isinstance(first, Line)
    params: list[str | None] = []
    for request in others:
        assert isinstance(request, RequestError)
        assert request.code == "invalid_request"
        params.append(request.param)
    assert params == ["prompt", "max_tokens", "a"]


def test_as_many_options_as_prompts() -> None:
    with pytest.raises(ValueError, match="sampling: 1 for 2 prompts"):
        completion_lines({}, ["a", "b"], [{}], {})
