"""The table of the families that are served, and of their architectures by name."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from workers.contract.checkpoint import decoders, encoders
from workers.contract.checkpoint.encoders import Renames
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.config import AskedTask, Task
from workers.contract.model_config import ModelConfig, ModelConfigError, ModelShape

ReadShape = Callable[[ShapeKeys], ModelShape]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture of a family.

    name         the family's name, with which its architectures begin
    task         decides the workflow (`engine_core.workflows`)
    model_class  `module:class`, a `StageModel`; only workers import it
    read_shape   reads the family's keys of `config.json`
    base         the architecture without this one's head, for pooled states
    known_code   modules of checkpoints' own code (`auto_map`) that compute the same
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


def _architectures(
    name: str,
    read_shape: ReadShape,
    renames: Renames,
    *,
    tasks: Mapping[str, Task],
    module: str,
    base: str | None = None,
    known_code: tuple[str, ...] = (),
) -> dict[str, Family]:
    """Rows of the table: one for each head in `tasks`. "Model" is no head: its name is `base`, if
    not as is usual."""
    base = base or f"{name}Model"
    return {
        base if head == "Model" else name + head: Family(
            name=name,
            task=task,
            model_class=module + head,
            read_shape=read_shape,
            renames=renames,
            base=base,
            known_code=known_code,
        )
        for head, task in tasks.items()
    }


_DECODER_TASKS: Mapping[str, Task] = {
    "ForCausalLM": "generate",
    "ForSequenceClassification": "classify",
    "Model": "embed",
}
_ENCODER_TASKS: Mapping[str, Task] = {
    "Model": "embed",
    "ForMaskedLM": "embed_sparse",
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify_tokens",
}
_DECODER_NAMES = ((r"^(embed_tokens|layers|norm)\.", r"model.\1."),)
"""A decoder that was saved without its LM head has names without "model."."""

_decoder = partial(
    _architectures,
    tasks=_DECODER_TASKS,
    module="workers.models.decoder:Decoder",
    renames=_DECODER_NAMES,
)
_encoder = partial(_architectures, tasks=_ENCODER_TASKS, module="workers.models.encoder:Encoder")


_GEMMA3 = _decoder("Gemma3", decoders.read_gemma3, base="Gemma3TextModel")
_WRAPPED_GEMMA3 = "Gemma3ForConditionalGeneration"

FAMILIES: Mapping[str, Family] = {
    **_decoder("Llama", decoders.read_llama),
    **_decoder("Mistral", decoders.read_mistral),
    **_decoder("Qwen2", decoders.read_qwen2),
    **_decoder("Qwen3", decoders.read_qwen3),
    **_decoder("Phi3", decoders.read_phi3),
    **_decoder("Gemma", decoders.read_gemma),
    **_decoder("Gemma2", decoders.read_gemma2),
    **_GEMMA3,
    # A language model beside a vision tower, which is served alone.
    _WRAPPED_GEMMA3: replace(
        _GEMMA3["Gemma3ForCausalLM"], read_shape=decoders.read_gemma3_wrapper, base=_WRAPPED_GEMMA3
    ),
    **_encoder("Bert", encoders.read_bert, encoders.BERT_NAMES),
    # A BERT with a layer behind each token, as ColBERT's own code saves it.
    **_encoder(
        "HF_ColBERT",
        encoders.read_bert,
        encoders.BERT_NAMES,
        tasks={"Model": "embed_tokens"},
        base="HF_ColBERT",
    ),
    **_encoder("Roberta", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("XLMRoberta", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("Camembert", encoders.read_roberta, encoders.ROBERTA_NAMES),
    **_encoder("DistilBert", encoders.read_distilbert, encoders.DISTILBERT_NAMES),
    **_encoder(
        "ModernBert",
        encoders.read_modernbert,
        ((r"^model\.", ""),),
        module="workers.models.encoder:PreNormEncoder",
    ),
    **_encoder("MPNet", encoders.read_mpnet, encoders.MPNET_NAMES),
    **_encoder(
        "NomicBert",
        encoders.read_nomicbert,
        encoders.NOMICBERT_NAMES,
        known_code=("modeling_hf_nomic_bert",),
    ),
}
"""By the names of architectures in `config.json`."""


def family_of(architecture: str, where: str = "") -> Family:
    """The row of `architecture`. Raises ModelConfigError, in a line that begins with `where`."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise ModelConfigError(
            f"{where}architecture {architecture!r} is not supported; docs/models.md lists those "
            "that are"
        )
    return family


class TaskError(ValueError):
    """A checkpoint cannot do what it is asked to do. One line says what it can."""


_TASKS: Mapping[AskedTask, tuple[Task, ...]] = {
    "generate": ("generate",),
    "embed": ("embed", "embed_tokens"),
    "rerank": ("classify", "rerank"),
}


def architecture_for(declared: str, asked: AskedTask) -> str:
    """The architecture for the task that is asked for: the declared one, or that without its head.
    Raises TaskError."""
    own = family_of(declared)
    by_task: dict[Task, str] = {family_of(own.base).task: own.base, own.task: declared}
    if own.task == "generate":
        by_task["rerank"] = declared  # by the logits of an answer's tokens
    architecture = next((by_task[task] for task in _TASKS[asked] if task in by_task), None)
    if architecture is None:
        able = [each for each, tasks in _TASKS.items() if by_task.keys() & set(tasks)]
        raise TaskError(f"{declared} cannot {asked}; it can {' or '.join(able)}")
    return architecture


def task_of(model: ModelConfig) -> Task:
    own = family_of(model.architecture).task
    if model.late_interaction is not None:
        return "embed_tokens"
    return "rerank" if own == "generate" and model.reranking is not None else own
