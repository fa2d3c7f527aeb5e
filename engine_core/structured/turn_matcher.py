"""Follows an assistant's turn: free text without masks, and calls and forms within a grammar.

Rows in free text run ahead of their results. A token that does not fit where it completes an
opening, or was sampled unmasked behind one, is refused. The scheduler drops it, with all behind it,
and has it sampled again with a mask.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from llguidance import LLTokenizer

from engine_core.messages import SamplingParams
from engine_core.structured.grammar import CompiledGrammar
from engine_core.structured.lark_rules import special_bytes
from engine_core.structured.matcher import Matcher

_MAX_REFUSALS = 256
"""Refusals at one place after which a row fails."""


class Section(NamedTuple):
    """Calls, and the pattern of the bytes that they begin with, anywhere or `at_start` of the text.
    Without a grammar they are forbidden."""

    opening: re.Pattern[bytes]
    at_start: bool
    grammar: CompiledGrammar | None


class TokenBytes(dict[int, tuple[bytes, bool]]):
    """The bytes of tokens, and whether they may complete an opening: they hold a last byte of one.
    Filled as tokens come."""

    def __init__(self, vocabulary: LLTokenizer, last_bytes: bytes) -> None:
        self._vocabulary = vocabulary
        self._last = re.compile(b"[" + re.escape(last_bytes) + b"]") if last_bytes else None

    def __missing__(self, token: int) -> tuple[bytes, bool]:
        is_special = self._vocabulary.is_special_token(token)
        data = special_bytes(token) if is_special else self._vocabulary.decode_bytes([token])
        found = self._last is not None and self._last.search(data) is not None
        self[token] = data, found
        return data, found


class CompiledTurn(NamedTuple):
    """A turn before its first token.

    sections    what text and reasoning may turn into
    form        what the turn must match; reasoning within it is free all the same
    reasoning   the patterns of its markers; None if the turn has none
    reasoned    the tokens of an empty one, which a form behind reasoning begins with
    closing     the grammar of the marker behind it
    budget      tokens of reasoning before `closing`
    in_reasoning  whether it begins inside
    goes_on     whether text may follow a section
    window      bytes that hold any opening, and so many tokens at most
    """

    vocabulary: LLTokenizer
    tokens: TokenBytes
    sections: Sequence[Section]
    form: CompiledGrammar | None
    reasoning: tuple[re.Pattern[bytes], re.Pattern[bytes]] | None
    reasoned: Sequence[int]
    closing: CompiledGrammar | None
    budget: int | None
    in_reasoning: bool
    goes_on: bool
    window: int
    ignored: tuple[str, ...] = ()


class TurnMatcher:
    """Follows one row. It is used as a `Matcher` is, which it has for what has a grammar."""

    may_retry = True

    def __init__(self, turn: CompiledTurn, params: SamplingParams, vocab_size: int) -> None:
        self._turn, self._params, self._vocab_size = turn, params, vocab_size
        self._ends = params.eos_token_ids | params.stop_token_ids
        self.grammar: Matcher | None = None
        self.excluded: set[int] = set()
        self.complete = False
        self._compiled: CompiledGrammar | None = None  # that `grammar` follows
        self._in_reasoning = self._has_reasoned = turn.in_reasoning
        self._reasoned = self._written = self._refusals = 0
        self._text: list[tuple[int, bytes]] = []  # the last tokens of free text
        self._at_start = True
        if self._in_reasoning:
            self._bound_reasoning()
        else:
            self._begin_text()

    @property
    def masked(self) -> bool:
        return self.grammar is not None or bool(self.excluded)

    def accept(self, token: int) -> bool:
        """Append a sampled token. False if it is refused; where it cannot be sampled again,
        `may_retry` is False too."""
        fits = token not in self.excluded and self._accepted(token)
        if fits:
            self._written += 1
            self._refusals = 0
            self.excluded.clear()
        else:
            self._refusals += 1
            self.may_retry = self._refusals <= _MAX_REFUSALS
        return fits

    def _accepted(self, token: int) -> bool:
        if self.grammar is not None:
            if not self.grammar.accept(token):
                return False
            if self._begins_reasoning(token):
                self._switch_reasoning()
            elif self.grammar.complete:
                self._leave()
            return True
        if token in self._ends:
            owes_form = self._turn.form is not None  # free text beside it is reasoning
            is_early = owes_form or self._written < self._params.min_tokens
            return self._exclude(token) if is_early else True
        return self._free(token)

    def _begins_reasoning(self, token: int) -> bool:
        """Whether a form begins with the marker of reasoning, which this token completes."""
        turn = self._turn
        is_late = self._has_reasoned or len(self._text) >= turn.window
        if self._compiled is not turn.form or turn.reasoning is None or is_late:
            return False
        data, may_complete = turn.tokens[token]
        self._text.append((token, data))
        seen = b"".join(data for _, data in self._text)
        return may_complete and turn.reasoning[False].match(seen) is not None

    def _switch_reasoning(self) -> None:
        """Go on behind a marker of reasoning, in free text."""
        self.grammar, self._has_reasoned = None, True
        self._in_reasoning, self._text, self._at_start = not self._in_reasoning, [], True
        if self._in_reasoning:
            self._bound_reasoning()

    def _free(self, token: int) -> bool:
        """Append to free text, unless the token completes an opening that it may not."""
        data, may_complete = self._turn.tokens[token]
        if may_complete and (fits := self._completed([*self._text, (token, data)])) is not None:
            return fits
        self._text.append((token, data))
        if len(self._text) > 2 * self._turn.window:
            del self._text[: -self._turn.window]
            self._at_start = False
        if self._in_reasoning:
            self._reasoned += 1
            self._bound_reasoning()
        return True

    def _bound_reasoning(self) -> None:
        """Have the marker behind reasoning come next if its budget is used."""
        budget = self._turn.budget
        if budget is not None and self._reasoned >= budget:
            self._constrain(self._turn.closing)

    def _completed(self, text: list[tuple[int, bytes]]) -> bool | None:
        """Go on behind an opening or a marker that the last token completes, or refuse it. None if
        there is none."""
        turn, seen = self._turn, b"".join(data for _, data in text)
        is_start = self._at_start and not self._in_reasoning
        for section in turn.sections:
            found = section.opening.search(seen)
            if found and (is_start or not section.at_start):
                if section.grammar is None:
                    return self._exclude(text[-1][0])
                return self._enter(section.grammar, text, found.start())
        if turn.reasoning is None or not (found := turn.reasoning[self._in_reasoning].search(seen)):
            return None
        if self._in_reasoning and turn.form is not None:
            return self._enter(turn.form, text, found.end())
        self._switch_reasoning()
        return True

    def _enter(self, grammar: CompiledGrammar, text: list[tuple[int, bytes]], start: int) -> bool:
        """Go on within a grammar that begins `start` bytes behind the beginning of `text`. If the
        last token does not fit, it is refused there, or excluded where it began the opening."""
        tokens = self._tokens(text, start)
        if (matcher := self._matcher(grammar, tokens)) is not None:
            self._constrain(grammar, matcher)
            if matcher.complete:
                self._leave()
            return True
        before = sum(len(data) for _, data in text[:-1])
        if start < before and (matcher := self._matcher(grammar, self._tokens(text[:-1], start))):
            self._constrain(grammar, matcher)
            return False
        return self._exclude(text[-1][0])

    def _tokens(self, text: Sequence[tuple[int, bytes]], start: int) -> list[int]:
        """The tokens of a text from a byte on. What is left of one that is cut there is tokenized
        anew."""
        tokens: list[int] = []
        for token, data in text:
            if start <= 0:
                tokens.append(token)
            elif start < len(data):
                tokens += self._turn.vocabulary.tokenize_bytes(data[start:])
            start -= len(data)
        return tokens

    def _matcher(self, grammar: CompiledGrammar, tokens: Sequence[int]) -> Matcher | None:
        """A matcher that has these tokens. None if they do not fit."""
        matcher = Matcher(grammar, self._params, self._vocab_size, written=self._written)
        if self._has_reasoned and grammar is self._turn.form:
            matcher.state.try_consume_tokens(list(self._turn.reasoned))
        return matcher if all(map(matcher.accept, tokens)) else None

    def _constrain(self, grammar: CompiledGrammar | None, matcher: Matcher | None = None) -> None:
        assert grammar is not None
        self._compiled = grammar
        self.grammar = matcher or self._matcher(grammar, ())
        self._text, self._in_reasoning, self._at_start = [], False, False

    def _leave(self) -> None:
        """Go on behind what had a grammar."""
        self.grammar = None
        if self._compiled is self._turn.closing:
            self._begin_text()
        else:
            self.complete = self._compiled is self._turn.form or not self._turn.goes_on

    def _begin_text(self) -> None:
        self._at_start = True
        if self._turn.form is not None:
            self._constrain(self._turn.form)

    def _exclude(self, token: int) -> Literal[False]:
        self.excluded.add(token)
        return False
