"""The items of a `prompt` or `input` field, texts or token ids, and their truncation."""

from array import array
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from server.schemas.common import invalid
from server.schemas.completions import PromptObject
from server.service.service import Model

_FIELD = "truncate_prompt_tokens"
_PLAIN = {str, int, list}
_Plain = Sequence[str | int | list[int]]
_Forms = PromptObject | Sequence[str | int | list[int] | PromptObject]


class Items(msgspec.Struct, frozen=True):
    """Items as `texts`, or as `ids` (int32 bytes each). `name` returns an index' field."""

    texts: list[str]
    ids: list[bytes]
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.texts) + len(self.ids)


def parse_items(value: str | _Forms, field: str, model: Model, max_items: int) -> Items:
    """Parse a text, one item's token ids, or several of either, bare or in objects.

    Raises RefusalError, with the index if there is one: an empty or mixed list, too many items, far
    too long texts, unknown ids.
    """
    if isinstance(value, str):
        model.text_bound.check_length(len(value), field)
        return text_items(value, field)
    kinds = {PromptObject} if isinstance(value, PromptObject) else set(map(type, value))
    if kinds <= _PLAIN:
        plain, name = cast("_Plain", value), _numbered(field)
    else:
        plain, name = _opened(value, field)
        kinds = set(map(type, plain))
    if not kinds:
        raise invalid(field, "must not be empty")
    if len(kinds) > 1:
        first = type(plain[0])
        odd = next(i for i, item in enumerate(plain) if type(item) is not first)
        raise RefusalError("invalid_request", f"{field}: all texts or all token ids", name(odd))
    if kinds == {int}:
        ids = _checked(cast("list[int]", plain), field, model)
        return Items([], [ids], lambda _: field)
    check_count(len(plain), field, max_items)
    if kinds == {str}:
        texts = cast("list[str]", plain)
        model.text_bound.check_all(texts, name)
        return Items(texts, [], name)
    lists = cast("list[list[int]]", plain)
    return Items([], [_checked(ids, name(i), model) for i, ids in enumerate(lists)], name)


def _opened(value: _Forms, field: str) -> tuple[_Plain, Callable[[int], str]]:
    """The texts and token ids out of their objects, and a function for the field of an index.
    Raises RefusalError."""
    is_one = isinstance(value, PromptObject)
    places = {field: value} if is_one else {f"{field}[{i}]": item for i, item in enumerate(value)}
    opened = [
        item.opened(name) if isinstance(item, PromptObject) else (name, item)
        for name, item in places.items()
    ]
    return [item for _, item in opened], lambda index: opened[index][0]


def text_items(texts: str | list[str], field: str) -> Items:
    if isinstance(texts, str):
        return Items([texts], [], lambda _: field)
    return Items(texts, [], _numbered(field))


def _numbered(field: str) -> Callable[[int], str]:
    return lambda index: f"{field}[{index}]"


def check_count(count: int, field: str, limit: int) -> None:
    """Raises RefusalError if a request has more than `limit` items."""
    if count > limit:
        raise RefusalError(
            "too_large", f"{field}: {count} items; a request takes at most {limit}", field
        )


def check_ids(ids: list[int], field: str, vocab_size: int) -> None:
    """Raises RefusalError naming the first id outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        bad = next(i for i, token in enumerate(ids) if not 0 <= token < vocab_size)
        raise RefusalError(
            "invalid_request",
            f"{field}: token id {ids[bad]} is outside the vocabulary (0 to {vocab_size - 1})",
            f"{field}[{bad}]",
        )


def _checked(ids: list[int], field: str, model: Model) -> bytes:
    if not ids:
        raise invalid(field, "must not be empty")
    check_ids(ids, field, model.vocab_size)
    return array("i", ids).tobytes()


def truncation_limit(limit: int | None, model_len: int, *, longest: int) -> int | None:
    """The number of tokens to which to truncate, None for all. -1 means `longest`. Raises
    RefusalError for 0, and for more than the model's context length."""
    if limit == -1:
        return longest
    if limit == 0:
        raise invalid(_FIELD, "-1, or 1 and more")
    if limit is not None and limit > model_len:
        raise invalid(_FIELD, f"{limit} is more than this model's context length, {model_len}")
    return limit


def items_cut_to(limit: int | None, model_len: int) -> Tokenization:
    """Truncate each text to `limit` tokens, special tokens included. Raises RefusalError."""
    return Tokenization(truncate_to=truncation_limit(limit, model_len, longest=model_len))
