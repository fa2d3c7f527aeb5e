"""Every field of a completion with every kind of wrong value: a 400 that names it, never a 500."""

from collections.abc import Iterable, Iterator

import pytest

from server.schemas.completions import CompletionRequest
from tests.server.conftest import Deployment

BOOLEANS = [
    "echo", "stream", "ignore_eos", "add_special_tokens", "skip_special_tokens",
    "include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids",
]  # fmt: skip
INTEGERS = {
    "n": [0, -1, 129, 2**63],
    "best_of": [0, -1, 129, 2**63],
    "max_tokens": [-1, 2**31, 2**63],
    "max_completion_tokens": [-1, 2**31, 2**63],
    "min_tokens": [-1, 17, 2**31, 2**63],
    "top_k": [-2, 2**31, 2**63],
    "logprobs": [-1, 21, 2**63],
    "prompt_logprobs": [-1, 21, 2**63],
    "truncate_prompt_tokens": [-2, 0, 2049, 2**63],
    "seed": [-(2**63) - 1, 2**63],
    "priority": [-(2**63) - 1, 2**63],
}
NUMBERS = {
    "temperature": [-0.1, 2.1],
    "top_p": [-0.1, 1.1],
    "min_p": [-0.01, 1.01],
    "presence_penalty": [-2.01, 2.01],
    "frequency_penalty": [-2.01, 2.01],
    "repetition_penalty": [-1, 0, 1e-40, 2.01],
    "timeout": [0, -1, 1e7, 2**63],
}
STRINGS = ["model", "user", "regex", "guided_regex", "cache_salt", "truncation_side", "session_id"]
WRONG_TYPES: list[tuple[Iterable[str], list[object]]] = [
    (BOOLEANS, [1, 0, "true", "yes", [], {}, 1.0]),
    (INTEGERS, ["3", 2.5, True, [], {}, 2**64]),
    (NUMBERS, ["0.5", True, [], {}]),
    ([*STRINGS, "stop", "prompt"], [1, True, {}, 1.5]),
]


def test_the_lists_above_hold_every_field_of_their_type() -> None:
    simple = {*BOOLEANS, *INTEGERS, *NUMBERS, *STRINGS}
    others = {"prompt", "stop", "stop_token_ids", "logit_bias", "stream_options"}
    others |= {"allowed_token_ids", "bad_words"}
    others |= {"response_format", "choice", "guided_choice", "structured_outputs"}
    others |= {"json_schema", "guided_json"}
    assert simple | others == set(CompletionRequest.__struct_fields__)


def wrong_values() -> Iterator[tuple[str, object]]:
    """Of another type, or out of range."""
    yield from (
        (field, each) for fields, values in WRONG_TYPES for field in fields for each in values
    )
    yield from ((field, each) for field, values in (INTEGERS | NUMBERS).items() for each in values)


@pytest.mark.parametrize(("field", "value"), [*wrong_values()])
def test_a_value_that_cannot_be(deployment: Deployment, field: str, value: object) -> None:
    """The field is named, or something in it."""
    param = deployment.refusal("/v1/completions", **{"prompt": "a", field: value})["param"]
    assert param == field or param.startswith((f"{field}[", f"{field}."))
    assert deployment.engines["writer"].received == []
