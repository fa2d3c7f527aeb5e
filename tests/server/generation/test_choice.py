"""One row's pieces of text: stop strings, and where tokens begin."""

import itertools
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engine_core.messages import RowOutput
from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.choice import Choice, Prompt
from server.generation.stop_strings import StopStrings
from tests.server.fake_engine import logprobs_of
from tests.server.generation.test_scores import plan


def first_stop(text: str, stops: list[str], barred: int = 0) -> tuple[int, int] | None:
    """By definition: where the stop string ends that ends first (of two, the longer), behind the
    `barred` characters, and where it begins."""
    found = [
        (end, end - len(stop))
        for stop in stops
        for end in range(max(len(stop), barred + 1), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    return min(found, default=None)


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


# Two letters make overlaps, repeats and near misses common.
texts = st.text("ab", max_size=40) | st.text(max_size=30)
stop_strings = st.lists(
    st.text("ab", min_size=1, max_size=5) | st.text(min_size=1, max_size=4), min_size=1, max_size=4
)
splits = st.lists(st.integers(0, 1000), max_size=12)


@given(texts, stop_strings, splits, st.just(0) | st.integers(0, 14))
def test_text_is_cut_at_the_first_stop_string_that_is_complete_late_enough(
    text, stops, cuts, least
):
    """However it is split."""
    matcher = StopStrings(tuple(stops))
    said, barred = "", 0
    for index, piece in enumerate(pieces_of(text, cuts)):
        may_end = index >= least
        barred += 0 if may_end else len(piece)
        said += matcher.push(piece, may_end=may_end)
        assert text.startswith(said), "what has been said is never taken back"
        if matcher.found:
            break
    stop = first_stop(text, stops, barred)
    assert matcher.found == ("" if stop is None else text[stop[1] : stop[0]])
    assert said + matcher.flush() == (text if stop is None else text[: stop[1]])


@given(texts, stop_strings, splits)
def test_a_stop_string_that_is_included_holds_nothing_back(text, stops, cuts):
    matcher = StopStrings(tuple(stops), included=True)
    said = ""
    for piece in pieces_of(text, cuts):
        certain = matcher.push(piece)
        said += certain
        if matcher.found:
            break
        assert certain == piece
    stop = first_stop(text, stops)
    assert said + matcher.flush() == (text if stop is None else text[: stop[0]])


def test_only_what_may_become_a_stop_string_is_held_back():
    matcher = StopStrings(("END", "\n\n"))
    assert matcher.push("to the E") == "to the "
    assert matcher.push("N") == ""
    assert matcher.push("T") == "ENT"
    assert matcher.push(" one\n") == " one"
    assert matcher.push("\nmore") == ""
    assert matcher.found == "\n\n"


PROMPT, CONTINUATION = "Water falls", " over the dam"


def echoing_choice(tokenizer: Tokenizer) -> Choice:
    """Its text begins with PROMPT, and all tokens get their log-probabilities."""
    model: Any = SimpleNamespace(tokenizer=tokenizer)
    own = plan(0, 0, echoed=PROMPT)
    (ids,) = tokenizer.encode([PROMPT])
    return Choice(0, Prompt(model, own, 0, ids), model, own)


def updates(tokenizer: Tokenizer) -> list[RowOutput]:
    """The prompt's log-probabilities from two steps, then each token of CONTINUATION from one."""
    prompt = tokenizer.raw.encode(PROMPT).ids[1:]  # nothing scores the first token
    tokens = tokenizer.raw.encode(CONTINUATION, add_special_tokens=False).ids
    assert len(prompt) > 1
    return [
        *(RowOutput(0, 0, scored=logprobs_of(part, 0)) for part in (prompt[:1], prompt[1:])),
        *(RowOutput(0, 0, token, sampled=logprobs_of([token], 0)) for token in tokens),
    ]


def test_streamed_offsets_go_on_behind_a_prompt_scored_in_several_steps(tokenizer):
    choice, pieces = echoing_choice(tokenizer), []
    for update in updates(tokenizer):
        choice.apply(update)
        pieces += filter(None, [choice.next_piece()])
    text = "".join(piece.echo + piece.text for piece in pieces)
    assert text == PROMPT + CONTINUATION
    assert pieces[0].echo == PROMPT, "a piece of its own, before any sampled token"
    assert not pieces[0].tokens
    sampled = [token for piece in pieces for token in piece.tokens]
    assert sampled[0].offset == len(PROMPT)
    scored = [token for piece in pieces for token in piece.prompt_tokens]
    for token in [*scored[1:], *sampled]:
        assert text.startswith(tokenizer.decode([token.id]), token.offset)
