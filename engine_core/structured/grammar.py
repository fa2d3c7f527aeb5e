"""Compiles a request's schema, regular expression or choice over a vocabulary (llguidance)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, grammar_from
from tokenizers import Tokenizer as RawTokenizer

from engine_core.messages import Grammar
from engine_core.structured.json_schema import Unheld, rewritten
from engine_core.structured.lark_rules import JSON_WHITESPACE, json_body, quoted
from engine_core.structured.schema_tree import (
    GrammarError,
    SchemaPath,
    as_schema,
    children,
    decoded,
    path_text,
    schemas_in,
    without,
)
from engine_core.tokenization.tokenizer import Tokenizer, as_exception

_MAX_MESSAGE = 300
_PROBED_TOKENS = 4

_REPEATED_GROUP = re.compile(r"\)\s*\{")
_WALKED_TOKENS = 128
"""Tokens after which the states of repetitions within repetitions have multiplied."""

_STRIDE = 7919
"""Picks other tokens each time, short and long ones."""

# A regular expression of a few characters can expand to millions of states. These bounds keep the
# worst known mask at some 100 ms and a matcher at some 30 MB; usual schemas need far less.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=30_000,
    verbose_errors=False,
)

# A turn may have a thousand small tools. Any of them may be called next: so many items has a row.
_TURN_LIMITS = LLParserLimits(
    initial_lexer_fuel=600_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_items_in_row=10_000,
    max_lexer_states=30_000,
    verbose_errors=False,
)

_SEARCH_S = 2.0
"""A search ends without a result within the time limit of a grammar."""

_LATE = ("additionalProperties", "required", "minProperties", "maxProperties", "oneOf")
"""Keywords that depend on others, from the first that is added to the last."""


class CompiledGrammar(NamedTuple):
    """A grammar over a vocabulary, before its first token.

    A mask is uint32[words], with bit i % 32 of word i // 32 for token i. The token `end`, which the
    model does not have, stands for the end of the text. `ignored` are paths that are not followed.
    """

    start: LLMatcher
    end: int
    words: int
    ignored: tuple[str, ...] = ()


class GrammarCompiler:
    """Compiles grammars over one tokenizer.

    The vocabulary gets one more token for "the text may end here": each request has its own end
    tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Takes 0.5 s for 128,000 tokens, with the interpreter's lock. Raises GrammarError."""
        self._tokenizer = tokenizer
        raw = tokenizer.raw
        self._end = raw.get_vocab_size()
        size = max(vocab_size, self._end + 1)
        self._words = -(-size // 32)
        try:
            marked = _with_token(raw, self._end)
            self.vocabulary = LLTokenizer(marked, n_vocab=size, eos_token=self._end)
        except BaseException as error:
            reason = as_exception(error)
            raise GrammarError(f"its tokenizer cannot be read for it: {reason}") from None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Lets other threads run. Raises GrammarError if the grammar is wrong or too complex."""
        ignored: tuple[str, ...] = ()
        if grammar.kind in ("regex", "choice"):
            start = self._start_of_text(grammar.kind, grammar.source)
        else:
            text, ignored = self.followed(grammar.source, strict=grammar.kind == "json_schema")
            start = self._start_of_schema(text)
        return self._compiled(start, ignored)

    def start_of(self, lark: str) -> CompiledGrammar:
        """Compile a grammar of our own. Raises GrammarError."""
        return self._compiled(self._start(LLMatcher.grammar_from_lark(lark), _TURN_LIMITS))

    def expression(self, grammar: Grammar) -> tuple[str, tuple[str, ...]]:
        """The body of a rule in Lark for a grammar, and the paths of what is left out. Raises
        GrammarError."""
        if grammar.kind == "regex":
            self._start_of_text("regex", grammar.source)
            return f"/{grammar.source.replace('/', chr(92) + '/')}/", ()
        if grammar.kind == "choice":
            texts: list[str] = msgspec.json.decode(grammar.source)
            return " | ".join(map(quoted, texts)), ()
        text, ignored = self.followed(grammar.source, strict=grammar.kind == "json_schema")
        return json_body(msgspec.json.decode(text)), ignored

    def _compiled(self, start: LLMatcher, ignored: tuple[str, ...] = ()) -> CompiledGrammar:
        return CompiledGrammar(start, self._end, self._words, ignored)

    @cached_property
    def special(self) -> Mapping[str, int]:
        """The special tokens of the vocabulary by their text."""
        added = self._tokenizer.raw.get_added_tokens_decoder()
        is_special = self.vocabulary.is_special_token
        return {token.content: number for number, token in added.items() if is_special(number)}

    def followed(self, source: str, *, strict: bool) -> tuple[str, tuple[str, ...]]:
        """The schema as far as it can be followed, and the paths of what is left out.

        If it is `strict` nothing is, and objects that list their properties have no others. Raises
        GrammarError, with the path of the keyword.
        """
        root = decoded(source)
        deadline = time.monotonic() + _SEARCH_S
        left_out: set[SchemaPath] = set()
        faults = list(self._exploding(root))
        while True:
            left_out |= {fault.path for fault in faults}
            text, unheld = rewritten(without(root, left_out), closed=strict)
            for fault in [*faults, *unheld] if strict else ():
                raise GrammarError(f"{path_text(fault.path)}: {fault.reason}")
            try:
                self._start_of_schema(text)
            except GrammarError as error:
                path = self._fault(root, left_out, deadline, closed=strict)
                if path is None and not strict:
                    return "{}", ("$",)
                faults = [Unheld(path or (), str(error))]
            else:
                paths = left_out.union(fault.path for fault in unheld)
                return text, tuple(sorted(map(path_text, paths)))

    def _fault(
        self, root: Any, left_out: Set[SchemaPath], deadline: float, *, closed: bool
    ) -> SchemaPath | None:
        """The keyword at fault. None if it is not found by the deadline."""

        def compiles(schema: Any) -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError
            try:
                self._start_of_schema(rewritten(schema, closed=closed)[0])
            except GrammarError:
                return False
            return True

        try:
            return _fault_in(root, left_out, compiles)
        except TimeoutError:
            return None

    def _exploding(self, root: Any) -> Iterator[Unheld]:
        """The patterns that grow too complex while a text is written."""
        for path, schema in schemas_in(root):
            own = {schema["pattern"]: "pattern"} if "pattern" in schema else {}
            names = dict.fromkeys(as_schema(schema.get("patternProperties")), "patternProperties")
            for pattern, keyword in (own | names).items():
                if _REPEATED_GROUP.search(pattern):
                    before = "" if pattern.startswith("^") else "(?s:.*)"
                    try:
                        self._start_of_text("regex", f"{before}({pattern})")
                    except GrammarError as error:
                        yield Unheld((*path, keyword), str(error))

    def _start_of_schema(self, schema: str) -> LLMatcher:
        """Raises GrammarError."""
        try:
            source = LLMatcher.grammar_from_json_schema(
                schema, defaults={"whitespace_pattern": JSON_WHITESPACE}
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

    def _start(self, source: str, limits: LLParserLimits = _LIMITS) -> LLMatcher:
        start = LLMatcher(self.vocabulary, source, log_level=0, limits=limits)
        self._probe(start, _PROBED_TOKENS)
        return start

    def _probe(self, start: LLMatcher, tokens: int, stride: int = 0) -> None:
        """Try some tokens: a grammar often proves too complex only with its first tokens. Each is
        the first allowed one, or lies `stride` further in the list each time. Raises
        GrammarError."""
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
    if message.startswith("panic: "):  # more symbols than a grammar may have
        return "it is too complex"
    if message.startswith("NoExtension"):
        return "no text matches"
    if message.startswith("oneOf constraints"):
        return "oneOf with schemas that may overlap: use anyOf"
    line = " ".join(message.replace("<non-verbose/>", "").split())
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + " ..."


def _fault_in(
    root: Any, left_out: Set[SchemaPath], compiles: Callable[[Any], bool]
) -> SchemaPath | None:
    """Find the first keyword with which `root` no longer compiles, as they are added in phases.
    None if it does not compile without any. Those of `left_out` are never added."""
    phased = sorted(_keywords(root, ()), key=lambda entry: entry[0])
    keywords = [path for _, path in phased if path not in left_out]
    if not compiles(without(root, {*left_out, *keywords})):
        return None
    good, bad = 0, len(keywords)
    while bad - good > 1:
        middle = (good + bad) // 2
        if compiles(without(root, {*left_out, *keywords[middle:]})):
            good = middle
        else:
            bad = middle
    return keywords[bad - 1] if keywords else None


def _keywords(schema: Any, path: SchemaPath) -> Iterator[tuple[int, SchemaPath]]:
    """The paths of all keywords, each with the phase in which it is added.

    Those with schemas in them come first, then references, because definitions are followed only
    where they are used, then all others.
    """
    for keyword, value in as_schema(schema).items():
        within = children(keyword, value)
        if within and value is not False and keyword not in ("patternProperties", "oneOf"):
            phase = 0
        elif keyword in _LATE:
            phase = 3 + _LATE.index(keyword)
        else:
            phase = 1 if keyword == "$ref" else 2
        yield phase, (*path, keyword)
        for place, child in within:
            yield from _keywords(child, path + place)
