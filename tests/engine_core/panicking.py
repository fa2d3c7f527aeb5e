"""Tokenizers whose library panics at some texts, in earnest."""

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer, Sequence, Split

BAD = "a" * 60 + "!"
"""Onig gives up on it after its limit of retries, and the library panics."""


def make_panicking(raw: Tokenizer) -> None:
    """Have `raw` split texts by an expression that backtracks catastrophically at BAD."""
    split: PreTokenizer = Split(Regex(r"(a+)+$"), "isolated")
    own = raw.pre_tokenizer
    raw.pre_tokenizer = split if own is None else Sequence([split, own])
