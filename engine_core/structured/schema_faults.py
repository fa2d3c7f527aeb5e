"""Which keyword of a schema makes that it cannot be compiled."""

from collections.abc import Callable, Iterator, Set
from typing import Any

from engine_core.structured.schema_tree import Path, as_schema, children, without

_PHASES = {"$ref": 1, "patternProperties": 2, "oneOf": 3}

_LATE = ("additionalProperties", "required", "minProperties", "maxProperties")
"""In each schema, after what they depend on."""


def fault_in(root: Any, left_out: Set[Path], compiles: Callable[[Any], bool]) -> Path | None:
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
