"""Turns of random tokens within the grammar of each form, read by the parser."""

import pytest

from benchmarks.templates.random_turns import Turns, demo_compiler
from engine_core.turn_format import TurnFormat
from tests.server.turns.forms import FORMS

_TOKENS = 1_000_000


@pytest.mark.parametrize(
    "tokens",
    [4000, pytest.param(_TOKENS // len(FORMS), marks=[pytest.mark.turns, pytest.mark.timeout(0)])],
)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_call_is_malformed_and_none_is_read_otherwise_in_pieces(
    form: TurnFormat, tokens: int
) -> None:
    turns = Turns(demo_compiler(), form, seed=0)
    while tokens > 0:
        tokens -= turns.add()
    assert turns.found["calls"] > 0
    assert not turns.faults
