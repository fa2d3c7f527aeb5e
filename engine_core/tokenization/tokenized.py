"""A text's tokens, truncated as its job asks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from engine_core.messages import JobMessage, Tokenization
from engine_core.refusal import RefusalError
from engine_core.tokenization.known_words import KnownWords
from engine_core.tokenization.sliced_text import SLICE_CHARACTERS, SlicedText
from engine_core.tokenization.tokenizer import Tokenizer

WholeText = str | tuple[str, str]
"""A text, or a pair of texts."""
_Ids = npt.NDArray[np.int32]
_ITEM = 4  # bytes of an int32


class Tokenized(msgspec.Struct, frozen=True):
    """The ids of a text or a pair, int32 bytes, and segments, uint8 bytes (empty for one text).

    `dropped` counts the tokens that truncation removed, among those that were looked at. `at_least`
    is 0, or a lower bound of the tokens of a text with more than the model takes.
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
        return f"at least {self.at_least}" if self.at_least else f"{self.num_tokens}"


def given_ids(message: JobMessage) -> list[Tokenized]:
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


def tokenize_texts(
    tokenizer: Tokenizer, texts: Sequence[WholeText], options: Sequence[Tokenization]
) -> list[Tokenized]:
    """Tokenize texts and pairs together, truncated as the `options` of each say, which agree about
    special tokens. Raises RefusalError as `Tokenizer.encodings` does."""
    words, special = tokenizer.known_words, all(each.add_special_tokens for each in options)
    known = [None] * len(texts) if words is None else words.ids([*map(_spelled, texts)])
    left = [text for text, ids in zip(texts, known, strict=True) if ids is None]
    encodings = iter(tokenizer.encodings(left, add_special_tokens=special))
    return [
        _of_words(ids, words, own)
        if words is not None and ids is not None
        else tokenized(next(encodings), own, paired=isinstance(text, tuple))
        for text, ids, own in zip(texts, known, options, strict=True)
    ]


def tokenize_if_known(
    tokenizer: Tokenizer, texts: Sequence[WholeText], options: Tokenization
) -> list[Tokenized] | None:
    """Likewise, within microseconds. None if a word of them is new."""
    if (words := tokenizer.known_words) is None:
        return None
    done: list[Tokenized] = []
    for text in texts:
        if (ids := words.joined(_spelled(text))) is None:
            return None
        done.append(_of_words(ids, words, options))
    return done


def _spelled(text: WholeText) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _of_words(ids: list[bytes], words: KnownWords, options: Tokenization) -> Tokenized:
    """The tokens of a text or a pair, of the `ids` of its words, truncated as `options` say."""
    parts = words.templates[len(ids), options.add_special_tokens].around(ids)
    whole, limit = b"".join(part.ids for part in parts), options.truncate_to
    segments = b"".join(part.segments for part in parts) if len(ids) > 1 else b""
    if limit is None or len(whole) <= limit * _ITEM:
        return Tokenized(whole, segments)
    sizes = [len(part.ids) // _ITEM for part in parts]
    numbers = np.repeat([part.number for part in parts], sizes)
    text = np.flatnonzero(numbers == numbers.max())
    return _cut(np.frombuffer(whole, np.int32), np.frombuffer(segments, np.uint8), text, options)


def tokenized(encoding: Encoding, options: Tokenization, *, paired: bool) -> Tokenized:
    """A text's or a pair's tokens, truncated as `options` say."""
    ids = np.array(encoding.ids, np.int32)
    segments = np.array(encoding.type_ids if paired else [], np.uint8)
    limit = options.truncate_to
    if limit is None or len(ids) <= limit:
        return Tokenized(ids.tobytes(), segments.tobytes())
    is_text = np.array([sequence == 1 for sequence in encoding.sequence_ids])
    if not is_text.any():  # a text alone, or the second one of a pair is empty
        is_text = np.array(encoding.special_tokens_mask) == 0
    return _cut(ids, segments, np.flatnonzero(is_text), options)


def _cut(
    ids: _Ids, segments: npt.NDArray[np.uint8], text: npt.NDArray[np.int64], options: Tokenization
) -> Tokenized:
    """Remove tokens of the last text, whose indices are `text`, from one end. If all others (the
    first text of a pair, special tokens) are still more than the limit, remove those, from the same
    end."""
    limit, left = options.truncate_to, options.truncation_side == "left"
    assert limit is not None, "what is not truncated is whole"
    excess = len(ids) - limit
    cut = text[:excess] if left else text[max(len(text) - excess, 0) :]
    kept = np.delete(np.arange(len(ids)), cut)
    kept = kept[len(kept) - limit :] if left else kept[:limit]
    segments = segments[kept] if len(segments) else segments
    return Tokenized(ids[kept].tobytes(), segments.tobytes(), len(ids) - len(kept))


@dataclass(frozen=True, slots=True)
class TextPieces:
    """A template's `pieces`, each tokenized alone. `text` is the end of piece number `place`."""

    pieces: tuple[str, ...]
    place: int
    text: str

    def __len__(self) -> int:
        """In characters."""
        return len(self.text) + sum(map(len, self.pieces))

    @property
    def whole_piece(self) -> str:
        return self.pieces[self.place] + self.text


def tokenize_pieces(
    tokenizer: Tokenizer, texts: Sequence[TextPieces], options: Tokenization, max_model_len: int
) -> list[Tokenized]:
    """Tokenize texts between the pieces of a template. Truncation removes tokens of a text alone.

    Each piece is tokenized once, and a long one only as far as it matters, unless it is cut on the
    left. Raises RefusalError where the template alone is longer than the limit.
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
    """The ids of a long piece, or its first ones, which are more than `limit`."""
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


def tokenize_long(
    tokenizer: Tokenizer, item: WholeText, options: Tokenization, max_model_len: int
) -> Iterator[Tokenized | None]:
    """Tokenize a long item slice after slice: yields None for each, at last its tokens.

    The last slice ends it, or has more tokens than it may keep, or than the model takes.
    """
    texts = (item,) if isinstance(item, str) else item
    most, truncated = options.most_tokens(max_model_len), options.truncate_to is not None
    fewest = 0 if truncated else sum(map(tokenizer.fewest_tokens, texts))
    if fewest > most:
        yield Tokenized(b"", at_least=fewest)
        return
    from_end = truncated and options.truncation_side == "left"
    all_slices = [SlicedText(tokenizer, text, from_end=from_end) for text in texts]
    for slices in all_slices:
        while not (slices.is_complete or slices.has_more_than(most)):
            slices.take()
            if from_end:
                slices.keep_last(most)
            yield None
    encoding = tokenizer.raw.post_process(
        *(slices.merged() for slices in all_slices), add_special_tokens=options.add_special_tokens
    )
    if truncated or all(slices.is_complete for slices in all_slices):
        yield tokenized(encoding, options, paired=len(texts) > 1)
    else:
        yield Tokenized(b"", at_least=len(encoding))
