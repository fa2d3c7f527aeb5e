"""`python -m benchmarks.templates.random_turns FOLDER`: turns of random tokens within the grammar
of each format of a folder's chat templates (*.jinja, of any depth), read by the parser.

For each format: how many calls are malformed and how many turns have none, cut ones aside, and how
many turns are read otherwise token by token than in whole. All three should be 0.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.templates.__main__ import templates_of
from benchmarks.templates.turn_cases import SCHEMAS
from engine_core.messages import SamplingParams, ToolRules, TurnRules
from engine_core.structured.compiler import TurnCompiler
from engine_core.structured.grammar import GrammarCompiler
from engine_core.structured.matcher import clear
from engine_core.structured.schema_tree import GrammarError
from engine_core.structured.turn_matcher import CompiledTurn, TurnMatcher
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.turn_format import TurnFormat
from server.demo import GENERATOR_NAME, demo_models
from server.templates.formats import format_of
from server.templates.learnt_format import NotLearntError
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import ChatTemplate
from server.turns.turn_parser import CallBegin, CallEnd, Event, TurnParser, calls_of

_VOCAB, _END = 4096, 1
_TOOLS = tuple(
    ToolRules(name=name, parameters=json.dumps(schema), strict=False, param=name)
    for name, schema in SCHEMAS.items()
)
_FAULTS = ("malformed", "without", "different")
_CLOSERS = b"\"'}])<>"
_FREE_TOKENS, _MOST_TOKENS = 40, 400
"""Tokens after which closers are preferred, and after which a turn is cut."""


class Turns:
    """Random turns in one format."""

    def __init__(self, compiler: GrammarCompiler, form: TurnFormat, seed: int) -> None:
        """Raises GrammarError."""
        rules = TurnRules(
            form=form, tools=_TOOLS, calls="required", reasoning_budget=_FREE_TOKENS // 2
        )
        self._turn: CompiledTurn = TurnCompiler(compiler, rules).compiled()
        self._form = form
        self._bytes = [compiler.vocabulary.decode_bytes([token]) for token in range(_VOCAB)]
        self._closes = np.array([data[:1] in _CLOSERS for data in self._bytes])
        self._random = np.random.default_rng(seed)
        self.found: Counter[str] = Counter()

    @property
    def faults(self) -> dict[str, int]:
        """How much of what should not be has been found."""
        return {key: self.found[key] for key in _FAULTS if self.found[key]}

    def add(self) -> int:
        """One turn. Returns the number of its tokens."""
        tokens, is_whole = self._tokens()
        pieces = self._pieces(tokens)
        streamed, whole = self._events(pieces), self._events(["".join(pieces)])
        self.found["turns"] += 1
        self.found["calls"] += sum(isinstance(event, CallBegin) for event in whole)
        self.found["cut"] += not is_whole
        self.found["different"] += calls_of(streamed) != calls_of(whole)
        if is_whole:
            ends = [event for event in whole if isinstance(event, CallEnd)]
            self.found["malformed"] += sum(not end.is_whole for end in ends)
            self.found["without"] += not ends
        return len(tokens)

    def _tokens(self) -> tuple[list[int], bool]:
        matcher = TurnMatcher(self._turn, SamplingParams(eos_token_ids=frozenset({_END})), _VOCAB)
        tokens: list[int] = []
        while not matcher.complete:
            token = int(self._random.choice(self._preferred(matcher, len(tokens))))
            if not matcher.accept(token):
                assert matcher.may_retry, "too many tokens were refused"
                continue
            if token == _END:
                break
            tokens.append(token)
            if len(tokens) == _MOST_TOKENS:
                return tokens, False
        return tokens, True

    def _preferred(self, matcher: TurnMatcher, length: int) -> npt.NDArray[np.intp]:
        permitted = _permitted(matcher)
        if length < _FREE_TOKENS:
            return permitted
        if _END in permitted:
            return np.array([_END])
        closers = permitted[self._closes[permitted]]
        return closers if closers.size else permitted

    def _pieces(self, tokens: list[int]) -> list[str]:
        """The text, cut at the ends of tokens that are ends of characters, too."""
        data, pieces = b"", list[str]()
        for token in tokens:
            data += self._bytes[token]
            with suppress(UnicodeDecodeError):
                pieces.append(data.decode())
                data = b""
        return [*pieces, data.decode(errors="replace")]

    def _events(self, pieces: list[str]) -> list[Event]:
        parser = TurnParser(self._form, SCHEMAS)
        return [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]


def _permitted(matcher: TurnMatcher) -> npt.NDArray[np.intp]:
    """The tokens of the next mask."""
    bits = np.full(-(-_VOCAB // 32), 0xFFFFFFFF, np.uint32)
    if (grammar := matcher.grammar) is not None:
        own = np.zeros(grammar.words, np.uint32)
        grammar.state.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        assert grammar.finish_mask(own), "the grammar has a dead end"
        bits &= own[: len(bits)]
    clear(bits, matcher.excluded)
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))


def demo_compiler() -> GrammarCompiler:
    """A compiler over the demo generator's tokens."""
    return GrammarCompiler(Tokenizer.load(demo_models()[GENERATOR_NAME]), _VOCAB)


def formats_of(folder: Path) -> Iterator[tuple[Path, TurnFormat]]:
    """Different formats of a folder's templates, each with the first file that has it."""
    seen: set[TurnFormat] = set()
    for file, source in templates_of(folder):
        template = ChatTemplate(source=source, file=file.name, tokens={})
        with suppress(NotLearntError, Exception):  # templates are programs
            form, _ = format_of(LoadedTemplate(template))
            if form.calls and form not in seen:
                seen.add(form)
                yield file, form


def main() -> None:
    """A line for each format, then the sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="holds templates in files *.jinja")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of all formats together")
    options = parser.parse_args()
    compiler = demo_compiler()
    formats = list(formats_of(options.folder))
    total: Counter[str] = Counter()
    for number, (file, form) in enumerate(formats):
        try:
            turns = Turns(compiler, form, number)
        except GrammarError as error:
            print(f"{file}: no grammar: {error}", flush=True)
            total["no grammar"] += 1
            continue
        left = options.tokens // len(formats)
        while left > 0:
            left -= (added := turns.add())
            total["tokens"] += added
        total += turns.found
        if turns.faults:
            print(f"{file}: {dict(turns.found)}", flush=True)
    print(f"{len(formats)} formats: {dict(total)}")


if __name__ == "__main__":
    main()
