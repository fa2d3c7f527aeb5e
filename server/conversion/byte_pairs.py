"""Byte-level BPE (Radford et al. 2019, as published with GPT-2), plain and slow: what a converted
tokenizer is compared with."""

import unicodedata
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class BytePairs:
    """Text to tokens: words of the pattern `words`, of which adjacent parts are merged by the ranks
    in a merges.txt."""

    def __init__(self, merges: Path, words: str, form: Literal["NFC"] | None = None) -> None:
        """`form` is Unicode's form into which texts are brought first."""
        import regex  # noqa: PLC0415  (it comes with transformers)

        lines = merges.read_text(encoding="utf-8").split("\n")
        pairs = [tuple(line.split()) for line in lines if line and not line.startswith("#version")]
        self._ranks: Mapping[tuple[str, ...], int] = {pair: n for n, pair in enumerate(pairs)}
        self._words: Any = regex.compile(words)
        self._form: Literal["NFC"] | None = form
        self._letters = _letters()

    def tokens(self, text: str) -> list[str]:
        """The vocabulary's own spelling of the tokens of `text`."""
        text = unicodedata.normalize(self._form, text) if self._form else text
        return [token for word in self._words.findall(text) for token in self._merged(word)]

    def _merged(self, word: str) -> list[str]:
        parts = [self._letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            best = min(pairwise(parts), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = next(i for i, pair in enumerate(pairwise(parts)) if pair == best)
            parts[at : at + 2] = ["".join(best)]
        return parts


def _letters() -> list[str]:
    """The letter that stands for each byte: its own character in Latin-1 where that is printed,
    else the next of those from U+0100 on."""
    own = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in own else chr(next(others)) for byte in range(0x100)]
