"""The items of a `prompt` or `input` field, texts or token ids, and where they are cut."""

from array import array
from collections.abc import Callable
from typing import cast

import msgspec

from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from server.service.service import Model

_FIELD = "truncate_prompt_tokens"


class Items(msgspec.Struct, frozen=True):
    """`texts`, or `ids` (int32 bytes each). `name` returns the request's field of an index."""

    texts: list[str]
    ids: list[bytes]
    name: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.texts) + len(self.ids)


def parse_items(
    value: str | list[str | int | list[int]], field: str, model: Model, max_items: int
) -> Items:
    """A text, texts, one item's token ids, or items' token ids.

    Raises RefusalError, with the index where there is one, for an empty list, a mixed one, too many
    items, texts that are far too long, ids outside the vocabulary.
    """
    if isinstance(value, str):
        model.text_bound.check(value, field)
        return text_items(value, field)
    kinds = set(map(type, value))
    if not kinds:
        raise RefusalError("invalid_request", f"{field}: must not be empty", field)
    if len(kinds) > 1:
        first = type(value[0])
        odd = next(i for i, item in enumerate(value) if type(item) is not first)
        raise RefusalError(
            "invalid_request", f"{field}: all texts or all token ids", f"{field}[{odd}]"
        )
    if kinds == {int}:
        ids = _checked(cast("list[int]", value), field, model)
        return Items([], [ids], lambda _: field)
    check_count(len(value), field, max_items)
    if kinds == {str}:
        items = text_items(cast("list[str]", value), field)
        model.text_bound.check_all(items.texts, items.name)
        return items
    lists = cast("list[list[int]]", value)
    checked = [_checked(ids, f"{field}[{i}]", model) for i, ids in enumerate(lists)]
    return Items([], checked, lambda index: f"{field}[{index}]")


def text_items(texts: str | list[str], field: str) -> Items:
    """The text in a field, or the texts in a list there."""
    if isinstance(texts, str):
        return Items([texts], [], lambda _: field)
    return Items(texts, [], lambda index: f"{field}[{index}]")


def check_count(count: int, field: str, limit: int) -> None:
    """Raises RefusalError if a request holds more items than one request may."""
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
        raise RefusalError("invalid_request", f"{field}: must not be empty", field)
    check_ids(ids, field, model.vocab_size)
    return array("i", ids).tobytes()


def truncation_limit(limit: int | None, model_len: int, *, longest: int) -> int | None:
    """Tokens, None for no cut. -1 means `longest`. Raises RefusalError for 0, and
    for more than the model's context length."""
    if limit == -1:
        return longest
    if limit == 0:
        raise RefusalError("invalid_request", f"{_FIELD}: -1, or 1 and more", _FIELD)
    if limit is not None and limit > model_len:
        message = f"{_FIELD}: {limit} is more than this model's context length, {model_len}"
        raise RefusalError("invalid_request", message, _FIELD)
    return limit


def items_cut_to(limit: int | None, model_len: int) -> Tokenization:
    """The tokenization that cuts each text to `limit` tokens, special tokens included. Raises
    RefusalError."""
    return Tokenization(truncate_to=truncation_limit(limit, model_len, longest=model_len))
