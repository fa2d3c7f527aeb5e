"""Choices whose text is read as an assistant's turn."""

import functools
from types import SimpleNamespace
from typing import Any

import msgspec

from engine_core.messages import Finish, RowOutput
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.turn_format import TurnFormat
from server.generation.choice import Choice, Prompt, TextPiece
from server.generation.plan import GenerationPlan, TurnReading
from tests.server.fake_engine import logprobs_of
from tests.server.generation.test_scores import plan
from tests.server.turns.forms import FORMS, SCHEMAS

END = "<|im_end|>"
MARKERS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<call>", "</call>"),
    *("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>"),
    END,
]
"""Special tokens, the last of which is in no format."""
CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "x"}}\n</tool_call>'


@functools.cache
def marked(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with special tokens for MARKERS."""
    own = Tokenizer(type(tokenizer.raw).from_str(tokenizer.raw.to_str()))
    own.raw.add_special_tokens(MARKERS)
    return own


def reading(
    form: str | TurnFormat = "hermes", *, tools: bool = True, prompt_end: str = ""
) -> TurnReading:
    own = FORMS[form] if isinstance(form, str) else form
    return TurnReading(form=own, tools=SCHEMAS if tools else {}, prompt_end=prompt_end)


def turn_plan(turn: TurnReading | None = None, **fields: Any) -> GenerationPlan:
    own = plan(fields.pop("logprobs", None))
    return msgspec.structs.replace(own, turn=turn or reading(), **fields)


class Row:
    """A row of a turn, told token by token."""

    def __init__(self, tokenizer: Tokenizer, own: GenerationPlan, index: int = 0) -> None:
        self.tokenizer = marked(tokenizer)
        self.plan = own
        model: Any = SimpleNamespace(tokenizer=self.tokenizer)
        (ids,) = self.tokenizer.encode(["Hello"])
        self.choice = Choice(index, Prompt(model, own, 0, ids), model, own)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.raw.encode(text, add_special_tokens=False).ids

    def pieces(self, text: str, finish: Finish | None = "stop") -> list[TextPiece]:
        """The pieces of a streamed answer whose last token is the text's."""
        found: list[TextPiece] = []
        ids = self.ids(text)
        for number, token in enumerate(ids, 1):
            self._apply(token, finish if number == len(ids) else None)
            found += filter(None, [self.choice.next_piece()])
        return found

    def whole(self, text: str, finish: Finish | None = "stop") -> TextPiece:
        """The one piece of an answer that is not streamed."""
        ids = self.ids(text)
        for number, token in enumerate(ids, 1):
            self._apply(token, finish if number == len(ids) else None)
        piece = self.choice.next_piece()
        assert piece is not None
        return piece

    def _apply(self, token: int, finish: Finish | None) -> None:
        width = self.plan.logprobs
        sampled = None if width is None else logprobs_of([token], width)
        self.choice.apply(RowOutput(0, 0, token, finish, sampled))
