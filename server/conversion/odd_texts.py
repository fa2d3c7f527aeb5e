"""Texts on which tokenizers differ if they differ at all."""

from collections.abc import Sequence
from itertools import chain, islice, pairwise

NUM_TEXTS = 200
_SPECIAL_TOKENS = 8
"""The most whose texts are among them."""
_EVERY = 5
"""One in so many of the pairs: some with each white space."""

_SCRIPTS = (
    "The quick brown fox jumps over the lazy dog's back.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva.",
    "Größe, Straße, ÄÖÜ, GROẞ",
    "Съешь же ещё этих мягких французских булок",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "いろはにほへと ちりぬるを、カタカナ。",
    "我能吞下玻璃而不伤身体。漢字",
    "키스의 고유조건은 입술끼리 만나야 하고",
    "صِف خَلقَ خَودِ كَمِثلِ الشَمسِ",
    "דג סקרן שט בים מאוכזב",
    "ऋषियों को सताने वाले दुष्ट राक्षसों",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "Tiếng Việt có dấu: ế ộ ữ",
    "İstanbul ılık ışık I i",
)
_MARKS = (
    "👍", "👩‍👩‍👧‍👦", "🇨🇭🇯🇵", "☕️ ❤️ ✔", "é e\u0301 \u0301", "ﬁ ﬂ ½ ² Ⅷ ㍿ ＡＢＣ", "…—–“”‘’«»",
    "$1,234.56 €99 £5 ¥7 ₹3", "a_b-c+d=e*f/g\\h|i", "{}[]()<>@#%^&~`", "don't I'll we've THEY'RE",
    "https://a.example/b?c=d&e=%20#f", "user@example.org", "def f(x):\n\treturn x**2  # no",
    "0", "12345678901234567890", "3.14e-10", "x" * 150, "ab " * 100, "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "𐍈 𠜎",
    "CamelCaseANDacronyms", "##ing ## #", "▁a ▁▁ Ġb Ċ",
)  # fmt: skip
_SPACES = (
    "", " ", "   ", "\n", "\n\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003\u2009", "\u200b",
    "\u200d", "\ufeff", "\u00ad", "\u2028", "\x00", "\x07\x1b", "\x7f", "\u2060", "\ufffd",
)  # fmt: skip


def odd_texts(special_tokens: Sequence[str]) -> list[str]:
    """`NUM_TEXTS` texts, always the same: empty ones, white space, control characters, scripts,
    marks, emoji, long words, special tokens within texts, and pairs of all that.

    U+0085 is none of them: for transformers' form of a sentencepiece model, and so for a published
    tokenizer.json, it is white space; for sentencepiece it is not."""
    words = (*_SCRIPTS, *_MARKS)
    pairs = [
        f"{space}{first}{space}{second}{space}"
        for space in _SPACES
        for first, second in pairwise(words)
    ]
    special = chain.from_iterable(map(_with, special_tokens[:_SPECIAL_TOKENS]))
    return list(islice(chain(_SPACES, words, special, pairs[::_EVERY]), NUM_TEXTS))


def _with(token: str) -> tuple[str, ...]:
    return token, f"a {token} b", f"a{token}b", f" {token}", token * 2, token.swapcase()
