"""Compiles a JSON schema: what cannot be followed is found, and refused or left out."""

import time
from collections.abc import Callable, Iterator, Set
from typing import Any, Generic, TypeVar

from engine_core.structured.json_schema import Unheld, decoded, rewritten
from engine_core.structured.schema_faults import fault_in
from engine_core.structured.schema_tree import (
    Path,
    SchemaError,
    as_schema,
    path_text,
    schemas_in,
    without,
)

CompiledT = TypeVar("CompiledT")

_SEARCH_S = 2.0
"""A search ends without a result within the time limit of a grammar."""

_ROOT: Path = ()


class SchemaCompiler(Generic[CompiledT]):
    """Compiles schemas by two functions that raise SchemaError for what they cannot compile."""

    def __init__(
        self, compile_schema: Callable[[str], CompiledT], check_pattern: Callable[[str], object]
    ) -> None:
        """`compile_schema` takes JSON as llguidance understands it; `check_pattern` takes a regular
        expression that is searched for."""
        self._compile_schema = compile_schema
        self._check_pattern = check_pattern

    def strict(self, source: str) -> CompiledT:
        """Raises SchemaError, with the path of the keyword, unless the whole schema is followed.
        Objects that list their properties have no others."""
        root = decoded(source)
        exploding = list(self._exploding(source, root))
        text, unheld = rewritten(root, closed=True)
        for fault in [*unheld, *exploding]:
            raise SchemaError(f"{path_text(fault.path)}: {fault.reason}")
        try:
            return self._compile_schema(text)
        except SchemaError as error:
            path = self._fault(decoded(source), set(), time.monotonic() + _SEARCH_S, closed=True)
            raise SchemaError(f"{path_text(path or _ROOT)}: {error}") from None

    def loose(self, source: str) -> tuple[CompiledT, tuple[str, ...]]:
        """The schema as far as it can be followed, and the paths of what is left out.

        Raises SchemaError for what is no schema.
        """
        root = decoded(source)
        deadline = time.monotonic() + _SEARCH_S
        left_out = {fault.path for fault in self._exploding(source, root)}
        while True:
            text, unheld = rewritten(without(root, left_out), closed=False)
            try:
                compiled = self._compile_schema(text)
            except SchemaError:
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
            except SchemaError:
                return False
            return True

        try:
            return fault_in(root, left_out, compiles)
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
                except SchemaError as error:
                    yield Unheld((*path, keyword), str(error))
