"""Compiles a JSON schema: what cannot be followed is found, and refused or left out."""

import time
from collections.abc import Callable, Iterator, Set
from typing import Any

from llguidance import LLMatcher

from engine_core.structured.grammar_error import GrammarError
from engine_core.structured.json_schema import Unheld, decoded, rewritten
from engine_core.structured.schema_tree import (
    Path,
    as_schema,
    children,
    path_text,
    schemas_in,
    without,
)

_SEARCH_S = 2.0
"""A search ends without a result within the time limit of a grammar."""

_ROOT: Path = ()

_PHASES = {"$ref": 1, "patternProperties": 2, "oneOf": 3}

_LATE = ("additionalProperties", "required", "minProperties", "maxProperties")
"""In each schema, after what they depend on."""


class SchemaCompiler:
    """Compiles schemas by two functions that raise GrammarError for what they cannot compile."""

    def __init__(
        self, compile_schema: Callable[[str], LLMatcher], check_pattern: Callable[[str], object]
    ) -> None:
        """`compile_schema` takes JSON as llguidance understands it; `check_pattern` takes a regular
        expression that is searched for."""
        self._compile_schema = compile_schema
        self._check_pattern = check_pattern

    def strict(self, source: str) -> LLMatcher:
        """Raises GrammarError, with the path of the keyword, unless the whole schema is followed.
        Objects that list their properties have no others."""
        root = decoded(source)
        exploding = list(self._exploding(source, root))
        text, unheld = rewritten(root, closed=True)
        for fault in [*unheld, *exploding]:
            raise GrammarError(f"{path_text(fault.path)}: {fault.reason}")
        try:
            return self._compile_schema(text)
        except GrammarError as error:
            path = self._fault(decoded(source), set(), time.monotonic() + _SEARCH_S, closed=True)
            raise GrammarError(f"{path_text(path or _ROOT)}: {error}") from None

    def loose(self, source: str) -> tuple[LLMatcher, tuple[str, ...]]:
        """The schema as far as it can be followed, and the paths of what is left out.

        Raises GrammarError for what is no schema.
        """
        root = decoded(source)
        deadline = time.monotonic() + _SEARCH_S
        left_out = {fault.path for fault in self._exploding(source, root)}
        while True:
            text, unheld = rewritten(without(root, left_out), closed=False)
            try:
                compiled = self._compile_schema(text)
            except GrammarError:
                if (path := self._fault(root, left_out, deadline, closed=False)) is None:
                    return self._compile_schema("{}"), (path_text(_ROOT),)
                left_out.add(path)
            else:
                paths = left_out | {fault.path for fault in unheld}
                return compiled, tuple(sorted(map(path_text, paths)))

    def _fault(
        self, root: Any, left_out: Set[Path], deadline: float, *, closed: bool
    ) -> Path | None:
        """The keyword at fault; None if it is not found by the deadline."""

        def compiles(schema: Any) -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError
            try:
                self._compile_schema(rewritten(schema, closed=closed)[0])
            except GrammarError:
                return False
            return True

        try:
            return _fault_in(root, left_out, compiles)
        except TimeoutError:
            return None

    def _exploding(self, source: str, root: Any) -> Iterator[Unheld]:
        """The patterns that grow too complex while a text is written."""
        for path, schema in schemas_in(root) if '"pattern' in source else ():
            patterns = [("pattern", schema.get("pattern", ""))]
            names = as_schema(schema.get("patternProperties"))
            for keyword, pattern in [*patterns, *(("patternProperties", name) for name in names)]:
                try:
                    self._check_pattern(pattern)
                except GrammarError as error:
                    yield Unheld((*path, keyword), str(error))


def _fault_in(root: Any, left_out: Set[Path], compiles: Callable[[Any], bool]) -> Path | None:
    """The first keyword with which `root` does not compile any more, as its keywords are added one
    after another; None if it does not even without keywords.

    Those of `left_out` are never added.
    """
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


def _keywords(schema: Any, path: Path) -> Iterator[tuple[int, Path]]:
    """The paths of all keywords, each with the phase in which it is added."""
    keywords = as_schema(schema)
    for keyword in sorted(keywords, key=_rank):
        value = keywords[keyword]
        within = list(children(keyword, value))
        yield _phase(keyword, has_schemas=bool(within) and value is not False), (*path, keyword)
        for place, child in within:
            yield from _keywords(child, path + place)


def _phase(keyword: str, *, has_schemas: bool) -> int:
    """First come the keywords with schemas in them, then references, as definitions are followed
    only where they are used, then all others; `oneOf` depends on all that is in its branches."""
    if keyword in _PHASES:
        return _PHASES[keyword]
    return 0 if has_schemas else 2


def _rank(keyword: str) -> int:
    return _LATE.index(keyword) + 1 if keyword in _LATE else 0
