"""Reasoning that comes back is known by its signature."""

import pytest

from server.generation.signed_reasoning import SignedReasoning

OURS, OTHERS = SignedReasoning("ours"), SignedReasoning("others")
TEXT = "Hm, wäre es so?"


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_signed_is_opened_by_the_same_secret_alone(whole: bool) -> None:
    sealed = OURS.seal(TEXT, whole=whole)
    assert OURS.opened(sealed, TEXT) == TEXT
    assert OURS.opened(sealed) == (TEXT if whole else None)
    assert OTHERS.opened(sealed, TEXT) is None


@pytest.mark.parametrize("sealed", ["", "AAAA", "no base64", "ä", OURS.seal(TEXT)[:-4]])
def test_what_nobody_has_signed_is_not_opened(sealed: str) -> None:
    assert OURS.opened(sealed, TEXT) is None


def test_a_changed_text_is_not_opened() -> None:
    assert OURS.opened(OURS.seal(TEXT, whole=False), TEXT + " ") is None
