"""The labels by which a model can answer in one token, where its reply begins."""

from functools import lru_cache
from itertools import product, takewhile
from string import ascii_uppercase, digits
from typing import Literal, NamedTuple

from engine_core.tokenization.tokenizer import Tokenizer

LabelKind = Literal["letters", "digits", "truths"]
"""Letters, and then pairs of them; digits; `true` and `false`."""

_LABELS: dict[LabelKind, tuple[str, ...]] = {
    "letters": (*ascii_uppercase, *map("".join, product(ascii_uppercase, repeat=2))),
    "digits": tuple(digits),
    "truths": ("true", "false"),
}
_TAIL = 64
"""Characters before a reply that decide about its first token: more than a special token has."""
_PLACES = 64


class Labels(NamedTuple):
    """The token ids of labels in their order, for replies to prompts with this `ending`."""

    ending: str
    ids: dict[str, int]


class LabelTokens:
    """Finds a model's labels, and remembers them for the ends of its prompts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known = lru_cache(_PLACES)(self._find)

    def behind(self, text: str, kind: LabelKind) -> Labels:
        """The labels of a kind that begin a reply behind `text`. A space at its end becomes a part
        of them, if there are tokens of two that begin so."""
        bare = text.removesuffix(" ")
        joined = self._known(kind, bare[-_TAIL:], text[len(bare) :])
        if len(joined) > 1:
            return Labels(bare, joined)
        return Labels(text, self._known(kind, text[-_TAIL:], ""))

    def _find(self, kind: LabelKind, tail: str, space: str) -> dict[str, int]:
        """The labels that are one token each behind `tail` and `space`, no two the same. Digits end
        at the first that is none."""
        texts = [tail, *(f"{tail}{space}{label}" for label in _LABELS[kind])]
        before, *others = self._ids(texts, continues=True)
        if not self._tokenizer.starting_ids.isdisjoint(before):
            before, *others = self._ids(texts, continues=False)
        found: dict[int, str] = {}
        for label, ids in zip(_LABELS[kind], others, strict=True):
            if ids[:-1] == before and self._spells(ids[-1], label):
                found.setdefault(ids[-1], label)
        ids = {label: token for token, label in found.items()}
        if kind == "digits":
            return {label: ids[label] for label in takewhile(ids.__contains__, digits)}
        return ids

    def _ids(self, texts: list[str], *, continues: bool) -> list[list[int]]:
        encodings = self._tokenizer.encodings(texts, add_special_tokens=False, continues=continues)
        return [encoding.ids for encoding in encodings]

    def _spells(self, token: int, label: str) -> bool:
        """False for a token of unknown words. Letters may be small to the model."""
        text = self._tokenizer.token_bytes[token] or b""
        return text.strip().lower() == label.lower().encode()
