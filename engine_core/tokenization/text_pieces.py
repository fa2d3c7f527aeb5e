"""A text within a template whose pieces are tokenized one by one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_core.messages import Tokenization
from engine_core.refusal import RefusalError
from engine_core.tokenization.sliced_text import SlicedText
from engine_core.tokenization.text_slicer import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import Tokenized
from engine_core.tokenization.tokenizer import Tokenizer

_Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TextPieces:
    """A template's `pieces`, each tokenized alone; `text` is the end of piece number `place`."""

    pieces: tuple[str, ...]
    place: int
    text: str

    def __len__(self) -> int:
        """In characters."""
        return len(self.text) + sum(map(len, self.pieces))

    @property
    def whole_piece(self) -> str:
        """The piece with its text."""
        return self.pieces[self.place] + self.text


def tokenize_pieces(
    tokenizer: Tokenizer, texts: Sequence[TextPieces], options: Tokenization, max_model_len: int
) -> list[Tokenized]:
    """Truncation removes tokens of a text, from either side, and nothing else. What several texts
    have in common is tokenized once; a long piece only as far as it matters, but for one that is
    cut on the left.

    Raises RefusalError where the template alone is longer than the limit, or a text cannot be
    tokenized.
    """
    spelled = dict.fromkeys(piece for text in texts for piece in (*text.pieces, text.whole_piece))
    limit = options.most_tokens(max_model_len)
    sliced = options.truncate_to is None or options.truncation_side == "right"
    long = [piece for piece in spelled if sliced and len(piece) > SLICE_CHARACTERS]
    whole = [piece for piece in spelled if piece not in long]
    encodings = tokenizer.encodings(whole, add_special_tokens=False)
    ids = {
        piece: np.array(encoding.ids, np.int32)
        for piece, encoding in zip(whole, encodings, strict=True)
    }
    ids |= {piece: _first_ids(tokenizer, piece, limit) for piece in long}
    return [_tokenized(text, ids, options) for text in texts]


def _first_ids(tokenizer: Tokenizer, piece: str, limit: int) -> _Ids:
    """All of them, or more than `limit`."""
    text = SlicedText(tokenizer, piece)
    while not text.is_complete and not text.has_more_than(limit):
        text.take()
    return np.array(text.merged().ids, np.int32)


def _tokenized(text: TextPieces, ids: dict[str, _Ids], options: Tokenization) -> Tokenized:
    bare, own = ids[text.pieces[text.place]], ids[text.whole_piece]
    before = [ids[piece] for piece in text.pieces[: text.place]]
    behind = [ids[piece] for piece in text.pieces[text.place + 1 :]]
    others, limit = sum(map(len, [*before, *behind])), options.truncate_to
    excess = 0 if limit is None else max(others + len(own) - limit, 0)
    start = _in_common(bare, own)
    if excess > len(own) - start:
        raise RefusalError(
            "context_length_exceeded",
            f"query and template have {others + start} tokens; the limit for them and a text is "
            f"{limit}",
        )
    at = start if options.truncation_side == "left" else len(own) - excess
    kept = np.delete(own, slice(at, at + excess))
    return Tokenized(np.concatenate([*before, kept, *behind]).tobytes(), dropped=excess)


def _in_common(bare: _Ids, own: _Ids) -> int:
    """How many tokens a piece begins with whether or not its text follows."""
    shorter = min(len(bare), len(own))
    different = np.flatnonzero(bare[:shorter] != own[:shorter])
    return int(different[0]) if len(different) else shorter
