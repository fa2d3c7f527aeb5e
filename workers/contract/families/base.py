"""A family: architectures that share a reader of `config.json` and a stage model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from workers.contract.attention_kind import AttentionKind
from workers.contract.config import Task
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.model_shape import FamilyConfig, ModelShape, Sizes

ReadShape = Callable[[ConfigKeys], ModelShape]
Renames = Sequence[tuple[str, str]]
"""Regular expressions and what replaces each, in order: from the names of a family's tensors to
those that its stage model uses."""


_PREFIX = (r"^(embed_tokens|layers|norm)\.", r"model.\1.")
"""A decoder that was saved without its LM head has names without "model."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture, as a row of the table (`workers/contract/families/table.py`).

    name         the family's, which its architectures begin with
    task         decides the workflow (`engine_core.workflows`)
    model_class  `module:class`, a `StageModel`; only workers import it
    read_shape   reads the family's keys of `config.json`
    renames      see `Renames`
    base         the architecture that a checkpoint with this one has if its states are pooled
    known_code   modules of checkpoints' own code (`auto_map`) that compute what the family does
    """

    name: str
    task: Task
    model_class: str
    read_shape: ReadShape
    renames: Renames
    base: str
    known_code: tuple[str, ...] = ()

    def canonical_name(self, name: str) -> str:
        """A checkpoint's own name for a tensor -> the name that the stage model uses."""
        for pattern, replacement in self.renames:
            name = re.sub(pattern, replacement, name)
        return name


def decoder(
    name: str, read_shape: ReadShape, renames: Renames = (), alone: str | None = None
) -> dict[str, Family]:
    """The architectures of decoder `name`: with an LM head, as a classifier, and alone, called
    `alone` if not as is usual."""
    base, module = alone or f"{name}Model", "workers.models.decoder:Decoder"
    own: dict[str, tuple[str, Task]] = {
        f"{name}ForCausalLM": ("ForCausalLM", "generate"),
        f"{name}ForSequenceClassification": ("ForSequenceClassification", "classify"),
        base: ("Model", "embed"),
    }
    return {
        architecture: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=(_PREFIX, *renames),
            base=base,
        )
        for architecture, (head, task) in own.items()
    }


def encoder(
    name: str,
    read_shape: ReadShape,
    renames: Renames = (),
    module: str = "workers.models.encoder:Encoder",
    known_code: tuple[str, ...] = (),
) -> dict[str, Family]:
    """The architectures of encoder `name`: alone, as a masked language model, as a classifier."""
    tasks: dict[str, Task] = {
        "Model": "embed",
        "ForMaskedLM": "embed_sparse",
        "ForSequenceClassification": "classify",
    }
    return {
        name + head: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=renames,
            base=f"{name}Model",
            known_code=known_code,
        )
        for head, task in tasks.items()
    }


def shape_of(
    keys: ConfigKeys,
    sizes: Sizes,
    layers: Sequence[AttentionKind],
    family: FamilyConfig,
    *,
    tied: bool,
) -> ModelShape:
    """The shape of a model whose layers have the kinds of attention `layers`. `tied` says whether
    the LM head is the embedding if `config.json` does not. Raises ModelConfigError."""
    kinds = tuple(dict.fromkeys(layers))
    return ModelShape(
        **msgspec.structs.asdict(sizes),
        tie_word_embeddings=keys.read("tie_word_embeddings", bool, tied),
        attention=kinds,
        layer_kinds=tuple(kinds.index(kind) for kind in layers),
        family=family,
    )
