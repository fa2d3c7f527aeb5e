"""What keys of `tokenizer_config.json` mean for a class of tokenizers: each rule is obeyed, or
refuses a value with which `tokenizer.json` does not agree."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece

from engine_core.tokenization.checkpoint.special_tokens import DeclaredTokens
from engine_core.tokenization.pipeline.continuation import continuing
from engine_core.tokenization.pipeline.rules import PipelineRules, Rule
from workers.contract.config_keys.keys import ConfigKeys, Refuse, shown_value


@dataclass(frozen=True, slots=True)
class Declared:
    """What a rule sees of a checkpoint: `config` is its config.json."""

    keys: ConfigKeys
    tokens: DeclaredTokens
    config: Mapping[str, Any]
    refuse: Refuse


class KeyRule(Protocol):
    """What one key of a class means."""

    @property
    def key(self) -> str:
        """The name of the key."""
        ...

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Let `tokenizer` obey the key, or refuse its value."""
        ...


@dataclass(frozen=True, slots=True)
class FieldOfRule:
    """A key that is a field of one kind of rule in the pipeline, where that has such a rule.

    Without the key the field has `default`, whatever tokenizer.json says, as in transformers.
    """

    key: str
    rule: str
    field: str
    default: bool | None

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Set the field. A value for a rule that is not there is refused."""
        value = declared.keys.optional(self.key, bool)
        rules = PipelineRules.of(tokenizer)
        if value is not None and all(rule["type"] != self.rule for rule in rules.single()):
            _refuse(self.key, declared, f"tokenizer.json has no {self.rule} to set it in")

        def change(rule: Rule) -> Rule:
            chosen = self.default if value is None else value
            return rule | {self.field: chosen} if rule.get("type") == self.rule else rule

        if (changed := rules.changed(change)) != rules:
            changed.put_into(tokenizer)


@dataclass(frozen=True, slots=True)
class PrefixSpace:
    """Whether a space is put before texts, for sentencepiece's kind of tokenizers."""

    key: str = "add_prefix_space"

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Refuse a value that is not what tokenizer.json does."""
        value = declared.keys.optional(self.key, bool)
        if value is not None and value != (continuing(tokenizer) is not tokenizer):
            done = "no" if value else "a"
            _refuse(self.key, declared, f"tokenizer.json puts {done} space before texts")


@dataclass(frozen=True, slots=True)
class Legacy:
    """Whether Llama's tokenizer puts a space before every text between special tokens.

    A `tokenizer.json` of transformers 4 does, whatever this key says: there it is not read.
    """

    key: str = "legacy"

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Refuse a value that contradicts the Metaspace of tokenizer.json, if there is one."""
        value = declared.keys.optional(self.key, bool)
        contrary = "first" if value else "always"
        for rule in PipelineRules.of(tokenizer).single() if value is not None else ():
            if rule["type"] == "Metaspace" and rule["prepend_scheme"] == contrary:
                found = f"the prepend_scheme of tokenizer.json is {contrary}"
                _refuse(self.key, declared, found)


@dataclass(frozen=True, slots=True)
class AroundTexts:
    """A named token that this class puts at one end of each text."""

    key: str
    index: int

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Refuse a token that is not the one which tokenizer.json puts there."""
        token = declared.tokens.named.get(self.key)
        around = tokenizer.encode("").tokens
        if token is not None and around[self.index :][:1] != [token.content]:
            found = f"tokenizer.json puts {' '.join(around) or 'nothing'} around texts"
            _refuse(self.key, declared, found)


@dataclass(frozen=True, slots=True)
class UnknownToken:
    """The token for what the vocabulary lacks, in a class that names it in its model."""

    key: str = "unk_token"

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Refuse a token that is not that of tokenizer.json."""
        token, model = declared.tokens.named.get(self.key), tokenizer.model
        own = model.unk_token if isinstance(model, BPE | WordPiece) else None
        if token is not None and own != token.content:
            _refuse(self.key, declared, f"the unk_token of tokenizer.json is {own}")


@dataclass(frozen=True, slots=True)
class MistralRegex:
    """Whether transformers puts another regex into tokenizers that Mistral published."""

    key: str = "fix_mistral_regex"

    def apply(self, tokenizer: Tokenizer, declared: Declared) -> None:
        """Refuse what would change tokenizer.json."""
        if not declared.keys.read(self.key, bool, False) or tokenizer.get_vocab_size() <= _SMALL:
            return
        concerned = declared.config.get("model_type") in (*_MISTRAL, None)
        major = str(declared.config.get("transformers_version") or "").partition(".")[0]
        if concerned and not (major.isdecimal() and int(major) >= _FIXED_SINCE):
            patterns = [rule.get("pattern") for rule in PipelineRules.of(tokenizer).single()]
            if {"Regex": MISTRAL_WORDS} not in patterns:
                _refuse(self.key, declared, "tokenizer.json has another regex")


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


def _refuse(key: str, declared: Declared, found: str) -> None:
    value = shown_value(declared.keys.values.get(key))
    declared.refuse(declared.keys.error(f"{key} {value} is not supported: {found}"))
