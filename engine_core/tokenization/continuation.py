"""Pieces of prompts, tokenized alone: each as a text of its own, or as what continues a text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding

from engine_core.messages import Tokenization
from engine_core.tokenization.tokenized import Tokenized, tokenize_long
from engine_core.tokenization.tokenizer import Tokenizer

_BARE = Tokenization(add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of prompts, without added special tokens. If it `continues` others, no space is put
    before it."""

    text: str
    continues: bool

    def __len__(self) -> int:
        """In characters."""
        return len(self.text)


def tokenize_each(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[Tokenized]:
    """Tokenize short pieces, with one call for those that continue others and one for the rest."""
    ids: dict[Piece, list[int]] = {}
    for continues in (False, True):
        own = [piece for piece in pieces if piece.continues is continues]
        starting = tokenizer.starting_ids if continues else frozenset[int]()
        encodings = tokenizer.encodings(
            [piece.text for piece in own],
            add_special_tokens=False,
            offsets=bool(starting),
            continues=continues,
        )
        for piece, encoding in zip(own, encodings, strict=True):
            ids[piece] = _continued(tokenizer, piece.text, encoding, starting)
    return [Tokenized(np.array(ids[piece], np.int32).tobytes()) for piece in pieces]


def tokenize_long_piece(
    tokenizer: Tokenizer, piece: Piece, max_model_len: int
) -> Iterator[Tokenized | None]:
    """Tokenize a long piece slice after slice, as `tokenize_long` does. One that continues others
    is taken as if no added token were in it."""
    own = tokenizer.continuing if piece.continues else tokenizer
    return tokenize_long(own, piece.text, _BARE, max_model_len)


def _continued(
    tokenizer: Tokenizer, text: str, encoding: Encoding, starting: frozenset[int]
) -> list[int]:
    """The ids of a text that continues another, from its first token among `starting` on those of a
    text of its own."""
    ids = encoding.ids
    first = next((place for place, token in enumerate(ids) if token in starting), None)
    if first is None:
        return ids
    rest = text[encoding.offsets[first][0] :]
    return ids[:first] + tokenizer.encodings([rest], add_special_tokens=False)[0].ids
