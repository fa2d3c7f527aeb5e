"""The special tokens of a tokenizer that a turn's format writes."""

from collections.abc import Iterator
from functools import lru_cache

from engine_core.tokenization.tokenizer import TokenBytes
from engine_core.turn_format import CallFormat, TurnFormat


@lru_cache(maxsize=32)
def marker_tokens(tokens: TokenBytes, form: TurnFormat, *, calls: bool) -> frozenset[int]:
    """The special tokens that stand in literals of the format, those of its `calls` included."""
    written = "\0".join(_literals(form, form.calls if calls else ()))
    return frozenset(
        token for token in tokens.special if (entry := tokens.entry(token)) and entry in written
    )


def _literals(form: TurnFormat, calls: tuple[CallFormat, ...]) -> Iterator[str]:
    if form.reasoning is not None:
        yield from (form.reasoning.open, form.reasoning.close)
    yield from form.text_markers
    for each in calls:
        yield from (each.open, each.between, each.close)
        yield from (piece for piece in each.call if isinstance(piece, str))
        if each.members is not None:
            yield from (each.members.before, each.members.between)
            for value in each.members.values:
                yield from (value.open, value.close, value.quote)
