"""Byte-level byte-pair encoding: every byte of a text is in exactly one token."""

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from engine_core.tokenization.pipeline.rules import PipelineRules


def longest_token(tokenizer: Tokenizer) -> int | None:
    """The most bytes of a text that one token spells, or None where there may be any number: a
    normalizer or a splitting rule that drops characters, an unknown token, an added token that
    takes the white space around it."""
    model = tokenizer.model
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = tokenizer.get_added_tokens_decoder().values()
    if (
        not isinstance(model, BPE)
        or tokenizer.normalizer is not None
        or not _keeps_all(tokenizer)
        or any(character not in vocabulary for character in ByteLevel.alphabet())
        or any(token.lstrip or token.rstrip for token in added)
    ):
        return None
    # An entry of the vocabulary has a character a byte.
    return max(len(each) for each in [*vocabulary, *(token.content.encode() for token in added)])


def _keeps_all(tokenizer: Tokenizer) -> bool:
    """Whether texts are turned into bytes, and nothing before that drops a part."""
    rules = PipelineRules.of(tokenizer).every
    if not rules or rules[-1]["type"] != "ByteLevel":
        return False
    return all(
        rule["type"] == "Digits" or (rule["type"] == "Split" and rule["behavior"] != "Removed")
        for rule in rules[:-1]
    )
