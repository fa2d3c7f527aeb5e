"""A text's tokens, truncated as its job asks."""

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from engine_core.messages import EncodeJob, GenerateJob, Tokenization

_Positions = npt.NDArray[np.intp]
_ITEM = 4  # bytes of an int32


class Tokenized(msgspec.Struct, frozen=True):
    """One text's (or pair's) ids, int32 bytes, and segments, uint8 bytes (empty for one text).

    `dropped` counts the tokens that truncation removed, among those that were looked at.
    `at_least` is not 0 where a text was not tokenized to its end, as it has at least so many
    tokens, which is more than the model takes.
    """

    ids: bytes
    segments: bytes = b""
    dropped: int = 0
    at_least: int = 0

    @property
    def num_tokens(self) -> int:
        """How many tokens the text has, at least."""
        return self.at_least or len(self.ids) // _ITEM

    @property
    def described(self) -> str:
        """How many tokens it has, for a person."""
        return f"at least {self.at_least}" if self.at_least else f"{self.num_tokens}"


def given_ids(message: GenerateJob | EncodeJob) -> list[Tokenized]:
    """A job's items that came as ids, truncated as the job's options say."""
    limit = message.tokenization.truncate_to
    if limit is None:
        return [Tokenized(ids) for ids in message.ids]
    left = message.tokenization.truncation_side == "left"
    size = limit * _ITEM
    return [
        Tokenized(ids[-size:] if left else ids[:size], dropped=max(len(ids) // _ITEM - limit, 0))
        for ids in message.ids
    ]


def tokenized(
    encoding: Encoding, options: Tokenization, *, paired: bool, first: int | None = None
) -> Tokenized:
    """A text's or a pair's tokens, truncated as `options` say. `first` is the number of tokens of
    a pair's first text, for an encoding that does not tell itself what is whose.

    Truncation removes tokens of the last text first, from its left or right end. If all other
    tokens (the first text of a pair, special tokens) are still more than the limit, it removes
    those, from the same side.
    """
    ids = np.array(encoding.ids, np.int32)
    segments = np.array(encoding.type_ids if paired else [], np.uint8)
    limit = options.truncate_to
    if limit is None or len(ids) <= limit:
        return Tokenized(ids.tobytes(), segments.tobytes())
    text = _of_last_text(encoding) if first is None else _behind(encoding, first)
    kept = _kept(len(ids), text, limit, left=options.truncation_side == "left")
    segments = segments[kept] if paired else segments
    return Tokenized(ids[kept].tobytes(), segments.tobytes(), len(ids) - len(kept))


def _of_last_text(encoding: Encoding) -> _Positions:
    sequences = np.array([-1 if at is None else at for at in encoding.sequence_ids])
    return np.flatnonzero(sequences == max(sequences.max(), 0))


def _behind(encoding: Encoding, first: int) -> _Positions:
    own = np.flatnonzero(np.array(encoding.special_tokens_mask) == 0)
    # Where the second text of a pair has no tokens, the first is the last.
    return own[first:] if first < len(own) else own


def _kept(count: int, text: _Positions, limit: int, *, left: bool) -> _Positions:
    """The positions of the `limit` tokens that are kept; `text` are those of the last text."""
    excess = count - limit
    cut = text[:excess] if left else text[max(len(text) - excess, 0) :]
    kept = np.delete(np.arange(count), cut)
    return kept[-limit:] if left else kept[:limit]
