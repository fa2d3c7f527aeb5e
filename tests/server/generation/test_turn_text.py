"""A choice that is read as a turn: its text, its reasoning, its calls, and where it ends."""

from typing import Any

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.choice import TextPiece
from server.turns.turn_parser import ReasoningDelta, whole_calls
from tests.server.generation.read_turns import CALL, END, Row, reading, turn_plan

HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary "
    'to=functions.get <|constrain|>json<|message|>{"a": "x"}<|call|>'
)
THOUGHT = "<think>\nHm END\n</think>\n\n"


def told(*pieces: TextPiece) -> tuple[str, str, list[tuple[str, str]]]:
    """The text, the reasoning and the whole calls."""
    events = [event for piece in pieces for event in piece.events]
    return (
        "".join(piece.text for piece in pieces),
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        [(begin.name, arguments) for begin, arguments in whole_calls(events)],
    )


GET = ("get", '{"a": "x"}')
TURNS = [
    ("hermes", f"{THOUGHT}So.\n{CALL}\n{CALL}", ("So.", "Hm END", [GET, GET])),
    ("hermes", "Only naïve 漢 text. ", ("Only naïve 漢 text. ", "", [])),
    ("hermes", CALL, ("", "", [GET])),
    ("text between markers", '<call>get{"a": "x"}</call>', ("", "", [GET])),
    ("harmony", HARMONY, ("", "Hm.", [GET])),
    ("harmony", "<|channel|>final<|message|>Yes.", ("Yes.", "", [])),
]


@pytest.mark.parametrize(("form", "text", "expected"), TURNS)
def test_a_stream_tells_what_a_whole_answer_tells(
    tokenizer: Tokenizer, form: str, text: str, expected: tuple[str, str, list[tuple[str, str]]]
) -> None:
    plan = turn_plan(reading(form))
    pieces, whole = (
        Row(tokenizer, plan).pieces(text + END),
        Row(tokenizer, plan).whole(text + END),
    )
    assert told(*pieces) == told(whole) == expected
    assert pieces[-1].has_called == whole.has_called == bool(expected[2])
    assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]


def test_a_token_that_only_marks_makes_no_piece(tokenizer: Tokenizer) -> None:
    row = Row(tokenizer, turn_plan())
    assert row.pieces("<think>", None) == []
    assert told(*row.pieces("Hm", None)) == ("", "Hm", [])
    assert row.pieces("</think>", None) == []
    assert told(*row.pieces("So", None)) == ("So", "", [])


@pytest.mark.parametrize(
    ("text", "expected", "ended"),
    [
        ("So END of it", "So ", True),
        (f"{THOUGHT}So.", "So.", False),
        (CALL.replace("x", "END"), "", False),
        # What is held back, because it may become a stop string, comes before what is no text.
        (f"So E{CALL}ND", "So END", False),
        (f"{CALL} So END", "So ", True),
    ],
)
def test_a_stop_string_ends_text_but_no_reasoning_and_no_call(
    tokenizer: Tokenizer, text: str, expected: str, ended: bool
) -> None:
    row = Row(tokenizer, turn_plan(stops=("END",)))
    pieces = row.pieces(text + END)
    assert told(*pieces)[0] == expected
    assert row.choice.stop_string == ("END" if ended else "")
    calls = text.count("<tool_call>")
    assert len(told(*pieces)[2]) == calls
    assert pieces[-1].finish_reason == "stop"


def test_a_stop_string_at_the_very_end_of_a_turn_ends_it(tokenizer: Tokenizer) -> None:
    """White space waits, because it is dropped before a marker."""
    row = Row(tokenizer, turn_plan(stops=("\n\n",)))
    piece = row.whole("So.\n\n", "length")
    assert (piece.text, piece.finish_reason) == ("So.", "stop")


def test_a_stop_string_that_is_included_stands_in_the_text(tokenizer: Tokenizer) -> None:
    row = Row(tokenizer, turn_plan(stops=("END",), include_stop=True))
    assert row.whole(f"{THOUGHT}So END of it", "length").text == "So END"


@pytest.mark.parametrize("cut", ['<tool_call>\n{"name": "get", "arguments": {"a', CALL[:-15]])
def test_a_call_that_is_cut_is_no_call(tokenizer: Tokenizer, cut: str) -> None:
    piece = Row(tokenizer, turn_plan()).whole(f"{CALL}\n{cut}", "length")
    assert told(piece) == ("", "", [GET])
    assert piece.finish_reason == "length"
    piece = Row(tokenizer, turn_plan()).whole(cut, "length")
    assert (told(piece), piece.has_called) == (("", "", []), False)


def test_the_deadline_ends_a_turn_with_what_has_come(tokenizer: Tokenizer) -> None:
    row = Row(tokenizer, turn_plan())
    pieces = row.pieces(f"{CALL}\n<tool_call>\n{{", None)
    row.choice.end("timeout")
    last = row.choice.next_piece()
    assert last is not None
    assert told(*pieces, last)[2] == [GET]
    assert last.finish_reason == "timeout"


@pytest.mark.parametrize(
    ("tools", "skips", "expected"),
    [
        (True, True, "a<tool_call>?</tool_call>b"),
        (False, True, "a?b"),
        (False, False, f"a<tool_call>?</tool_call>{END}b"),
    ],
)
def test_special_tokens_that_the_format_may_write_are_kept(
    tokenizer: Tokenizer, tools: bool, skips: bool, expected: str
) -> None:
    """What begins no call is text. Without tools the markers of calls are like any others."""
    plan = turn_plan(reading(tools=tools), skip_special_tokens=skips)
    text = f"a<tool_call>?</tool_call>{END}b"
    assert Row(tokenizer, plan).whole(text, "length").text == expected


@pytest.mark.parametrize(("last", "calls"), [("</call>", [GET]), (END, [])])
def test_a_stop_token_may_close_a_call(
    tokenizer: Tokenizer, last: str, calls: list[tuple[str, str]]
) -> None:
    """Arguments that stand as members are whole only before what closes them."""
    row = Row(tokenizer, turn_plan(reading("quotes")))
    assert told(row.whole(f"<call>get{{a:<|'|>x<|'|>}}{last}")) == ("", "", calls)


@pytest.mark.parametrize(
    ("text", "prompt_end", "expected"),
    [
        ("<think>abc</think>So", "", "abc</think>"),
        ("abc</think>So", "<think>\n", "abc</think>"),
        ("So", "", ""),
        ("<think>abc", "", "abc"),
        (f"<think>abc{CALL}", "", "abc"),
    ],
)
def test_tokens_count_as_reasoning_while_it_is_open(
    tokenizer: Tokenizer, text: str, prompt_end: str, expected: str
) -> None:
    row = Row(tokenizer, turn_plan(reading(prompt_end=prompt_end)))
    row.whole(text, "length")
    counted = row.choice.reasoning_tokens - len(row.ids(expected))
    # How a call begins is known some tokens later.
    assert 0 <= counted <= ("<tool_call>" in text) * len(row.ids(CALL))


def test_log_probabilities_are_those_of_all_tokens(tokenizer: Tokenizer) -> None:
    fields: dict[str, Any] = {"logprobs": 0, "return_token_ids": True}
    row = Row(tokenizer, turn_plan(**fields))
    text = f"{THOUGHT}So.{CALL}"
    pieces = row.pieces(text + END)
    expected = row.ids(text + END)
    assert [token.id for piece in pieces for token in piece.tokens] == expected
    assert [token for piece in pieces for token in piece.token_ids or []] == expected
