"""Reads the keys of `config.json`, and notices those that nothing has read."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import msgspec

from workers.contract.checkpoint.folder_files import optional
from workers.contract.model_config import ModelConfigError, UnsupportedKeyError

Neutral = Mapping[str, tuple[Any, ...]]
"""Keys that are not implemented -> the values that change nothing. With another value a checkpoint
is refused."""

_BOOKKEEPING = frozenset(
    """
    _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset attn_implementation
    _attn_implementation_internal architectures auto_map custom_pipelines finetuning_task
    internal_version model_type name_or_path transformers_version transformers.js_config
    unsloth_fixed unsloth_version task_specific_params language adapters
    chunk_size_feed_forward dtype torch_dtype gradient_checkpointing output_attentions
    output_hidden_states output_past return_dict torchscript use_bfloat16 use_cache
    tie_encoder_decoder tie_last_hidden_states tf_legacy_loss use_flash_attn pretraining_tp
    deterministic_flash_attn is_training
    attention_dropout attention_probs_dropout_prob classifier_dropout dropout embd_pdrop
    embedding_dropout hidden_dropout hidden_dropout_prob initializer_cutoff_factor
    initializer_factor initializer_range label_smoothing mlp_dropout resid_pdrop
    summary_first_dropout
    bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids mask_token_id
    pad_token_id prefix sep_token_id tokenizer_class unk_token_id
    bad_words_ids begin_suppress_tokens cross_attention_hidden_size diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature
    top_k top_p typical_p
    id2label label2id num_labels problem_type _num_labels
    """.split()
)
"""Keys about origin, execution, training, tokens, generation and labels, in this order."""
_PREFIXES = ("uniem_",)
"""Beginnings of the keys in which libraries of training keep their settings."""


def is_bookkeeping(name: str) -> bool:
    """Whether key `name` changes no model's numbers."""
    return name in _BOOKKEEPING or name.startswith(_PREFIXES)


def each(names: str, *values: Any) -> dict[str, tuple[Any, ...]]:
    """Each of the `names`, between which are spaces, with the same neutral `values`."""
    return dict.fromkeys(names.split(), values)


NOT_SUPPORTED: Neutral = (
    each("add_cross_attention is_decoder is_encoder_decoder", False, None)
    | each("attention_chunk_size compression_config quantization quantization_config", None)
    | each("pruned_heads", None, {})
)
"""Keys that no family obeys."""

MOST_LAYERS = 1 << 10
MOST_WIDTH = 1 << 20
MOST_TOKENS = 1 << 24
"""The most layers of a model, numbers in a vector, and tokens in a vocabulary or a text. With more,
all memory would be taken before the weights are seen not to fit."""

_MOST = 1 << 53
_SHOWN_LENGTH = 80

ValueT = TypeVar("ValueT")
Refuse = Callable[[ModelConfigError], None]
"""Gets a fault after which reading could go on. It raises the error, or notes it."""


def stop(error: ModelConfigError) -> None:
    """End the reading at the first refusal: raises it."""
    raise error


class ConfigKeys:
    """The keys of one JSON object. Those with the value null count as absent (but see `has`). Each
    method raises ModelConfigError, naming file and key, for a value of another type."""

    def __init__(
        self, file: Path, values: Mapping[str, Any], within: str = "", refuse: Refuse = stop
    ) -> None:
        """`within` is the path of an object inside the file, such as "text_config."."""
        self.file, self._values, self._within = file, values, within
        self.refuse = refuse
        self._spelling: Mapping[str, str] = {}
        self._read: set[str] = set()
        self._nested: list[ConfigKeys] = []

    @classmethod
    def of_file(cls, folder: Path, name: str | Path, refuse: Refuse = stop) -> Self:
        """The keys of a JSON file, which may be missing."""
        return cls(folder / name, optional(folder, name, dict[str, Any]) or {}, refuse=refuse)

    def spell(self, spelling: Mapping[str, str]) -> None:
        """Use a family's own names of keys: usual name -> its name (transformers'
        `attribute_map`). The usual name is understood too, and both if they agree."""
        self._spelling = spelling

    def assume(self, defaults: Mapping[str, Any]) -> None:
        self._values = {**defaults, **self._values}

    @property
    def values(self) -> Mapping[str, Any]:
        """All keys as the file has them. None of them counts as read."""
        return self._values

    def has(self, name: str) -> bool:
        """Whether key `name` is there, null or not."""
        return self._own_name(name) in self._values

    def optional(self, name: str, kind: type[ValueT]) -> ValueT | None:
        """The value of key `name`. None if it is absent."""
        own = self._own_name(name)
        self._read.update((own, name))
        value = self._values.get(own)
        if own != name and (other := self._values.get(name, value)) != value:
            raise self.error(f"{self._path(name)} {value} and {name} {other} differ")
        if value is None:
            return None
        if not _is_finite(value):
            raise self.error(f"{self._path(name)} {shown_value(value)} is not a finite number")
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self.error(f"{self._path(name)} is not valid: {error}") from None

    def read(self, name: str, kind: type[ValueT], default: ValueT) -> ValueT:
        value = self.optional(name, kind)
        return default if value is None else value

    def required(self, name: str, kind: type[ValueT]) -> ValueT:
        """The value of key `name`. Raises ModelConfigError if it is absent."""
        value = self.optional(name, kind)
        if value is None:
            raise ModelConfigError(f"{self.file} has no '{self._path(name)}'")
        return value

    def size(
        self, name: str, most: int = _MOST, *, least: int = 1, default: int | None = None
    ) -> int:
        """The whole number at key `name`, or `default` if it is absent."""
        value = self.required(name, int) if default is None else self.read(name, int, default)
        if not least <= value <= most:
            bound = f"less than {least}" if value < least else f"more than {most}"
            raise self.error(f"{self._path(name)} {shown_value(value)} is {bound}")
        return value

    def optional_size(self, name: str, most: int = _MOST, *, least: int = 1) -> int | None:
        """The value of key `name` as `size` reads it, or None if it is absent."""
        return None if self.optional(name, int) is None else self.size(name, most, least=least)

    def nested(self, name: str) -> Self:
        """The keys of the object at key `name`, which must be read too. None if it is absent."""
        values = self.read(name, dict[str, Any], {})
        keys = type(self)(self.file, values, f"{self._within}{name}.", self.refuse)
        keys.neutral(NOT_SUPPORTED)
        self._nested.append(keys)
        return keys

    def neutral(self, neutral: Neutral) -> None:
        """Refuse values that change the model's numbers in ways that are not supported."""
        self._read.update(neutral)
        for name, allowed in neutral.items():
            if name in self._values and self._values[name] not in allowed:
                self.refuse_key(name, f"{shown_value(self._values[name])} is not supported")

    def ignore(self, *names: str) -> None:
        """Keys that do not change the numbers of this family's models."""
        self._read.update(names)

    def check_all_read(
        self,
        is_bookkeeping: Callable[[str], bool] = is_bookkeeping,
        reader: str = "this architecture",
    ) -> None:
        """Refuse keys that nothing has read, bookkeeping excepted."""
        for name, value in self._values.items():
            if value is not None and name not in self._read and not is_bookkeeping(name):
                self.refuse_key(name, f"{shown_value(value)} is not known for {reader}")
        for keys in self._nested:
            keys.check_all_read(is_bookkeeping, reader)

    def choice(
        self, name: str, choices: Mapping[str, ValueT], default: str | None = None
    ) -> ValueT:
        """The choice that key `name` names, or `default`. Raises ModelConfigError, with the
        `choices` that there are."""
        given = self.required(name, str) if default is None else self.read(name, str, default)
        if given not in choices:
            known = ", ".join(choices)
            path = self._path(name)
            raise self.error(f"{path} {given!r} is not supported (one of {known})")
        return choices[given]

    def refuse_key(self, name: str, reason: str) -> None:
        """Refuse key `name`, without which the reading can go on."""
        self.refuse(UnsupportedKeyError(self.file, self._within + name, reason))

    def error(self, text: str) -> ModelConfigError:
        return ModelConfigError(f"{self.file}: {text}")

    def _path(self, name: str) -> str:
        """Key `name` as the file spells it, within its objects."""
        return self._within + self._own_name(name)

    def _own_name(self, name: str) -> str:
        own = self._spelling.get(name, name)
        return name if own not in self._values and name in self._values else own


def shown_value(value: Any) -> str:
    """A value of a JSON file for a message, cut if it is long."""
    shown = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}..."


def _is_finite(value: Any) -> bool:
    """Whether a number is, or each in a list. The keys of an object are read one by one."""
    numbers = cast("list[Any]", value) if isinstance(value, list) else [value]
    return all(math.isfinite(number) for number in numbers if isinstance(number, float))
