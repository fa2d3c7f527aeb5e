"""The declared sampling parameters: neutral by default, and overridden by name."""

from types import SimpleNamespace

import msgspec
import pytest

from workers.contract.token_sampling import TokenSampling


def test_options_override_by_name_where_they_are_not_none() -> None:
    model = TokenSampling(temperature=0.6, top_k=40, repetition_penalty=1.1)
    options = SimpleNamespace(temperature=0.0, top_k=None, min_p=0.5, max_tokens=9)
    expected = TokenSampling(temperature=0.0, top_k=40, min_p=0.5, repetition_penalty=1.1)
    assert model.overridden_by(options) == expected
    assert model.overridden_by(object()) == model


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_a_penalty_is_whatever_is_not_neutral(name: str) -> None:
    assert not TokenSampling(temperature=0.0, top_k=1, top_p=0.5, min_p=0.5).penalised
    assert msgspec.structs.replace(TokenSampling(), **{name: -0.5}).penalised
