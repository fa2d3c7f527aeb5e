"""Which keyword of a schema makes that it cannot be compiled."""

from collections.abc import Callable, Iterator, Set
from typing import Any

from engine_core.structured.schema_tree import Path, as_schema, children, without

_EARLY = ("$defs", "definitions", "properties", "patternProperties", "prefixItems", "items")
_LATE = ("additionalProperties", "required", "minProperties", "maxProperties")
"""In each schema, after what they depend on."""

_LAST = ("$ref", "oneOf")
"""In the whole schema: they depend on what other schemas say."""


def fault_in(root: Any, left_out: Set[Path], compiles: Callable[[Any], bool]) -> Path | None:
    """The first keyword with which `root` does not compile any more, as its keywords are added one
    after another; None if it does not even without keywords.

    Those of `left_out` are never added.
    """
    keywords = [path for path in _keywords(root, ()) if path not in left_out]
    keywords.sort(key=lambda path: _LAST.index(path[-1]) if path[-1] in _LAST else -1)
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


def _keywords(schema: Any, path: Path) -> Iterator[Path]:
    """The paths of all keywords, each before those of the schemas within it."""
    keywords = as_schema(schema)
    for keyword in sorted(keywords, key=_rank):
        yield (*path, keyword)
        for place, child in children(keyword, keywords[keyword]):
            yield from _keywords(child, path + place)


def _rank(keyword: str) -> int:
    if keyword in _EARLY:
        return -1
    return _LATE.index(keyword) + 1 if keyword in _LATE else 0
