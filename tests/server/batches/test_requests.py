import numpy as np
import pytest

from server.batches.requests import Prompt, completion_requests
from server.batches.results import RequestError
from server.generation.requested_grammar import grammar_of
from server.schemas.completions import CompletionRequest


def test_options_are_for_all_or_one_each() -> None:
    asked = completion_requests(["a", [1, 2]], [{"seed": 1}, {"max_tokens": 5}], {"max_tokens": 3})
    one, other = asked
    assert isinstance(one, CompletionRequest)
    assert isinstance(other, CompletionRequest)
    assert (one.prompt, one.seed, one.max_tokens) == ("a", 1, 3)
    assert (other.prompt, other.seed, other.max_tokens) == ([1, 2], None, 5)


def test_ids_may_come_in_an_array() -> None:
    ids: Prompt = np.array([3, 4], np.int32)  # pyright: ignore[reportAssignmentType]
    (request,) = completion_requests([ids], {}, {})
    assert isinstance(request, CompletionRequest)
    assert request.prompt == [3, 4]


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
    (request,) = completion_requests(["a"], options, {})
    assert isinstance(request, CompletionRequest)
    grammar = grammar_of(request)
    assert grammar is not None
    assert "object" in grammar.source


@pytest.mark.parametrize("number", [float("nan"), float("inf"), object()])
def test_what_is_no_json_is_refused(number: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        completion_requests(["a"], {"top_p": number}, {})


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
        completion_requests(["a"], options, {})


def test_what_is_wrong_for_one_prompt_is_in_its_place() -> None:
    odd: Prompt = [{"role": "user"}]  # pyright: ignore[reportAssignmentType]
    asked = completion_requests(["a", odd, "c"], [{}, {}, {"max_tokens": -1}], {})
    assert isinstance(asked[0], CompletionRequest)
    for request in asked[1:]:
        assert isinstance(request, RequestError)
        assert request.code == "invalid_request"


def test_as_many_options_as_prompts() -> None:
    with pytest.raises(ValueError, match="sampling: 1 for 2 prompts"):
        completion_requests(["a", "b"], [{}], {})
