"""What keys of `tokenizer_config.json` mean for a class of tokenizers: each rule is obeyed, or
refuses a value with which `tokenizer.json` does not agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece

from engine_core.tokenization.checkpoint.special_tokens import DeclaredTokens
from engine_core.tokenization.pipeline.continuation import continuing
from engine_core.tokenization.pipeline.rules import PipelineRules
from workers.contract.checkpoint.config_keys import ConfigKeys, Refuse, shown_value


@dataclass(frozen=True, slots=True)
class Declared:
    """What a rule sees of a checkpoint: `config` is its config.json."""

    keys: ConfigKeys
    tokens: DeclaredTokens
    config: Mapping[str, Any]
    refuse: Refuse

    def refuse_value(self, key: str, found: str) -> None:
        """Refuse the value of a key, for what was `found` in tokenizer.json."""
        value = shown_value(self.keys.values.get(key))
        self.refuse(self.keys.error(f"{key} {value} is not supported: {found}"))


KeyRule = Callable[[str, Tokenizer, Declared], None]
"""Lets a tokenizer obey a key, or refuses its value."""


def field_of_rule(kind: str, field: str, *, default: bool | None) -> KeyRule:
    """A key that is a field of one kind of rule in the pipeline, where that has such a rule.

    Without the key the field has `default`, whatever tokenizer.json says, as in transformers. A
    value for a rule that is not there is refused.
    """

    def apply(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
        value = declared.keys.optional(key, bool)
        rules = PipelineRules.of(tokenizer)
        if value is not None and all(rule["type"] != kind for rule in rules.every):
            declared.refuse_value(key, f"tokenizer.json has no {kind} to set it in")
        setting = {field: default if value is None else value}
        changed = rules.changed(lambda rule: rule | setting if rule["type"] == kind else rule)
        if changed != rules:
            changed.put_into(tokenizer)

    return apply


def prefix_space(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
    """Whether a space is put before texts, for sentencepiece's kind of tokenizers: a value that is
    not what tokenizer.json does is refused."""
    value = declared.keys.optional(key, bool)
    if value is not None and value != (continuing(tokenizer) is not tokenizer):
        done = "no" if value else "a"
        declared.refuse_value(key, f"tokenizer.json puts {done} space before texts")


def legacy(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
    """Whether Llama's tokenizer puts a space before every text between special tokens: a value that
    contradicts the Metaspace of tokenizer.json, if there is one, is refused.

    A `tokenizer.json` of transformers 4 does, whatever this key says: there it is not read.
    """
    value = declared.keys.optional(key, bool)
    contrary = "first" if value else "always"
    for rule in PipelineRules.of(tokenizer).every if value is not None else ():
        if rule["type"] == "Metaspace" and rule["prepend_scheme"] == contrary:
            declared.refuse_value(key, f"the prepend_scheme of tokenizer.json is {contrary}")


def token_around_texts(index: int) -> KeyRule:
    """A named token that this class puts at one end of each text: one that is not what
    tokenizer.json puts there is refused."""

    def apply(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
        token = declared.tokens.named.get(key)
        around = tokenizer.encode("").tokens
        if token is not None and around[index:][:1] != [token.content]:
            found = f"tokenizer.json puts {' '.join(around) or 'nothing'} around texts"
            declared.refuse_value(key, found)

    return apply


def unknown_token(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
    """The token for what the vocabulary lacks, in a class that names it in its model: one that is
    not that of tokenizer.json is refused."""
    token, model = declared.tokens.named.get(key), tokenizer.model
    own = model.unk_token if isinstance(model, BPE | WordPiece) else None
    if token is not None and own != token.content:
        declared.refuse_value(key, f"the unk_token of tokenizer.json is {own}")


def mistral_regex(key: str, tokenizer: Tokenizer, declared: Declared) -> None:
    """Whether transformers puts another regex into tokenizers that Mistral published: what would
    change tokenizer.json is refused."""
    if not declared.keys.read(key, bool, False) or tokenizer.get_vocab_size() <= _SMALL:
        return
    concerned = declared.config.get("model_type") in (*_MISTRAL, None)
    major = str(declared.config.get("transformers_version") or "").partition(".")[0]
    if concerned and not (major.isdecimal() and int(major) >= _FIXED_SINCE):
        patterns = [rule.get("pattern") for rule in PipelineRules.of(tokenizer).every]
        if {"Regex": MISTRAL_WORDS} not in patterns:
            declared.refuse_value(key, "tokenizer.json has another regex")


_MISTRAL = ("mistral", "mistral3", "voxtral", "ministral", "pixtral")
_SMALL = 100_000
"""Vocabularies up to this size have no such regex."""
_FIXED_SINCE = 5
"""The version of transformers that saves such tokenizers as they are."""
MISTRAL_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What transformers takes for a word of these models."""
