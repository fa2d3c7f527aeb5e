"""Choices of `/v1/completions` with many scores, or with what is of their prompt, as JSON in parts.

The text, ids and scores of a prompt are the same for each of its choices, and JSON has no
references: 4 million scores are 190 MB, and with 128 choices 24 GB. So they are encoded once, and
the answer is a list of parts, in which the same bytes come again and again.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from server.generation.completion.completion_choices import CompletionFormat
from server.generation.prompt_logprobs import encoded_prompt_logprobs, in_turns
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.completions import CompletionChoice, CompletionLogprobs

_encode = msgspec.json.Encoder().encode
_COLUMNS = CompletionLogprobs.__struct_fields__


class _PromptJSON(msgspec.Struct, frozen=True):
    """What each choice of a prompt repeats, as JSON. `echo` lacks its last quote, each of the
    `columns` of `logprobs` its brackets."""

    echo: bytes
    ids: bytes
    scores: bytes
    columns: list[bytes]


class CompletionParts:
    """The choices of one answer as JSON in parts, with other requests in between."""

    def __init__(self, form: CompletionFormat) -> None:
        self._form = form
        self._last: tuple[TextPiece, _PromptJSON] | None = None

    async def of(self, piece: TextPiece) -> list[bytes]:
        """The choice of a piece. Where it has of its prompt what the last one had, that is the same
        bytes."""
        if self._last is None or not _same_prompt(piece, self._last[0]):
            self._last = piece, await self._encoded(piece)
        own = msgspec.structs.replace(piece, echo="", tokens=[], prompt_tokens=[], prompt_ids=None)
        columns = await self._columns(piece.tokens)
        return self._joined(self._form.choice(own), piece, self._last[1], columns)

    async def _encoded(self, piece: TextPiece) -> _PromptJSON:
        form, tokens = self._form, piece.prompt_tokens
        scores = b""
        if (width := form.prompt_logprobs) is not None:
            scores = await encoded_prompt_logprobs(tokens, width, form.prompt_text)
        columns = await self._columns(form.echoed(piece))
        return _PromptJSON(_encode(piece.echo)[:-1], _encode(piece.prompt_ids), scores, columns)

    async def _columns(self, tokens: Sequence[ScoredToken]) -> list[bytes]:
        """What `logprobs` has of them, each column without its brackets."""
        columns: list[list[bytes]] = [[] for _ in _COLUMNS]
        async for some in in_turns(tokens, self._form.logprobs or 0):
            for column, values in zip(columns, _values(self._form.columns(some)), strict=True):
                column.append(values)
        return [b",".join(column) for column in columns]

    def _joined(
        self, choice: CompletionChoice, piece: TextPiece, prompt: _PromptJSON, own: list[bytes]
    ) -> list[bytes]:
        places = _Places()
        fields: dict[str, object] = {}
        if piece.echo:
            fields["text"] = Raw(places.put(prompt.echo) + _encode(choice.text)[1:])
        if choice.logprobs is not None:
            fields["logprobs"] = _behind(prompt.columns, own, places)
        if piece.prompt_ids is not None:
            fields["prompt_token_ids"] = Raw(places.put(prompt.ids))
        if choice.prompt_logprobs is not UNSET:
            fields["prompt_logprobs"] = Raw(places.put(prompt.scores))
        return places.filled(_encode(msgspec.structs.replace(choice, **fields)))


class _Places:
    """Marks that stand for parts while what is around them is encoded. A mark is between two NULs,
    which JSON does not have."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def put(self, part: bytes) -> bytes:
        """A mark for `part`."""
        self._parts.append(part)
        return b"\0%d\0" % (len(self._parts) - 1)

    def filled(self, encoded: bytes) -> list[bytes]:
        """`encoded` in parts, with those of its marks between the others."""
        parts = encoded.split(b"\0")
        parts[1::2] = [self._parts[int(mark)] for mark in parts[1::2]]
        return parts


def _behind(columns: list[bytes], own: list[bytes], places: _Places) -> CompletionLogprobs:
    """The columns of a prompt's tokens, and then a choice's own."""
    both = [
        b"[%b%b%b]" % (places.put(before), b"," if before and values else b"", places.put(values))
        for before, values in zip(columns, own, strict=True)
    ]
    return CompletionLogprobs(*(cast("Any", Raw(column)) for column in both))


def _values(columns: CompletionLogprobs) -> list[bytes]:
    return [_encode(getattr(columns, name))[1:-1] for name in _COLUMNS]


def _same_prompt(one: TextPiece, other: TextPiece) -> bool:
    return (
        one.echo == other.echo
        and one.prompt_ids == other.prompt_ids
        and one.prompt_tokens == other.prompt_tokens
    )
