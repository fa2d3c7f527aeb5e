"""Compiles a request's schema, regular expression or choice over a vocabulary (llguidance)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from tokenizers import Tokenizer as RawTokenizer

from engine_core.messages import Grammar
from engine_core.structured.grammar_error import GrammarError
from engine_core.structured.schema_compiler import SchemaCompiler
from engine_core.tokenization.panics import as_exception
from engine_core.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer
from workers.contract.config import ExecutionConfig

_MAX_MESSAGE = 300
_PROBED_TOKENS = 4

_REPEATED_GROUP = re.compile(r"\)\s*\{")
_WALKED_TOKENS = 128
"""A group that is repeated so many times may hold another repetition. Their states multiply as the
text grows, which shows within so many tokens."""

_STRIDE = 7919
"""Picks other tokens each time, short and long ones."""

# A space, or a line break with its indentation: JSON may be laid out, but not be endless blanks.
_JSON_WHITESPACE = r" |\n {0,40}"

# A regular expression of a few characters can expand to millions of states. These bounds keep the
# worst known mask at some 100 ms and a matcher at some 30 MB; usual schemas need far less.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=30_000,
    verbose_errors=False,
)


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar over a vocabulary, before its first token.

    A mask is uint32[words] and covers at least the vocabulary: bit i % 32 of word i // 32 is set if
    token i may come next. The token `end`, which the model does not have, stands for the end of
    the text. `ignored` are the paths of keywords that the grammar does not follow.
    """

    start: LLMatcher
    end: int
    words: int
    ignored: tuple[str, ...] = ()


Compile = Callable[[Grammar], CompiledGrammar]


class GrammarCompiler:
    """Compiles grammars over one tokenizer.

    The vocabulary gets one more token, which stands for "the text may end here": each request has
    its own end tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Takes some 0.5 s for 128,000 tokens, during which no other Python thread runs.

        Raises GrammarError for a tokenizer that llguidance cannot read.
        """
        raw = tokenizer.raw
        self._end = raw.get_vocab_size()
        size = max(vocab_size, self._end + 1)
        self._words = -(-size // 32)
        try:
            marked = _with_token(raw, self._end)
            self._vocabulary = LLTokenizer(marked, n_vocab=size, eos_token=self._end)
        except BaseException as error:
            reason = as_exception(error)
            raise GrammarError(f"its tokenizer cannot be read for it: {reason}") from None
        self._schemas = SchemaCompiler(self._start_of_schema, self._check_pattern)

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Lets other threads run. Raises GrammarError if the grammar is wrong or too complex."""
        ignored: tuple[str, ...] = ()
        if grammar.kind == "loose_json_schema":
            start, ignored = self._schemas.loose(grammar.source)
        elif grammar.kind == "json_schema":
            start = self._schemas.strict(grammar.source)
        else:
            start = self._start_of_text(grammar.kind, grammar.source)
        return CompiledGrammar(start, self._end, self._words, ignored)

    def _start_of_schema(self, schema: str) -> LLMatcher:
        """Raises GrammarError."""
        try:
            source = LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_pattern": _JSON_WHITESPACE}
            )
        except ValueError as error:
            raise GrammarError(_one_line(str(error))) from None
        return self._start(source)

    def _start_of_text(self, kind: Literal["regex", "choice"], source: str) -> LLMatcher:
        """Raises GrammarError."""
        start = self._start(grammar_from(kind, source))
        if kind == "regex" and _REPEATED_GROUP.search(source):
            self._probe(start, _WALKED_TOKENS)
            self._probe(start, _WALKED_TOKENS, stride=_STRIDE)
        return start

    def _check_pattern(self, pattern: str) -> None:
        """Raises GrammarError for one that grows too complex within a text."""
        if _REPEATED_GROUP.search(pattern):
            before = "" if pattern.startswith("^") else "(?s:.*)"
            self._start_of_text("regex", f"{before}({pattern})")

    def _start(self, source: str) -> LLMatcher:
        start = LLMatcher(self._vocabulary, source, log_level=0, limits=_LIMITS)
        self._probe(start, _PROBED_TOKENS)
        return start

    def _probe(self, start: LLMatcher, tokens: int, stride: int = 0) -> None:
        """Try some tokens: a grammar often proves too complex only with its first tokens. Each is
        the first that is allowed, or one that lies `stride` further in the list each time.

        All rows share the states computed here. Raises GrammarError.
        """
        mask = np.zeros(self._words, np.uint32)
        for index in range(tokens):
            _check(start)
            start.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            _check(start)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            texts = allowed[allowed != self._end]
            if index == 0 and not texts.size:
                raise GrammarError("only the empty text matches")
            if start.is_stopped() or not texts.size:
                break
            start.consume_token(int(texts[index * stride % texts.size]))
        _check(start)
        start.reset()


def compiler_for(config: ExecutionConfig, tokenizer: Tokenizer) -> Compile:
    """The function that compiles a model's grammars. If the model cannot follow any, that function
    raises GrammarError."""
    try:
        if not (Path(config.model.path) / TOKENIZER_FILE).exists():
            raise GrammarError("it has no tokenizer")
        return GrammarCompiler(tokenizer, config.model.vocab_size).compile
    except GrammarError as error:
        reason = f"this model cannot follow a grammar: {error}"

    def refuse(_: Grammar) -> CompiledGrammar:
        raise GrammarError(reason)

    return refuse


def _with_token(raw: RawTokenizer, token: int) -> str:
    """A tokenizer's JSON with one more special token, `token`."""
    document: dict[str, Any] = msgspec.json.decode(raw.to_str())
    content = "<|end of grammar|>"
    while raw.token_to_id(content) is not None:
        content += "|>"
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"].append({"id": token, "content": content, "special": True, **flags})
    return msgspec.json.encode(document).decode()


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_one_line(matcher.get_error()))


def _one_line(message: str) -> str:
    if message.startswith("NoExtension"):
        return "no text matches"
    if message.startswith("oneOf constraints"):
        return "oneOf with schemas that may overlap: use anyOf"
    line = " ".join(message.replace("<non-verbose/>", "").split())
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + " ..."
