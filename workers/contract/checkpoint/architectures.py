"""The table of the architectures that are served, by their names in `config.json`."""

import re
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from workers.contract.checkpoint.decoders import (
    GEMMA,
    GEMMA2,
    GEMMA3,
    LLAMA,
    MISTRAL,
    PHI3,
    QWEN2,
    QWEN3,
)
from workers.contract.checkpoint.encoders import (
    BERT,
    DISTILBERT,
    MODERNBERT,
    MPNET,
    NOMICBERT,
    ROBERTA,
)
from workers.contract.checkpoint.family import Family
from workers.contract.config import AskedTask, Task
from workers.contract.model_config import ModelConfig

FAMILIES: Mapping[str, Family] = {
    **LLAMA,
    **MISTRAL,
    **QWEN2,
    **QWEN3,
    **PHI3,
    **GEMMA,
    **GEMMA2,
    **GEMMA3,
    **BERT,
    **ROBERTA,
    **DISTILBERT,
    **MODERNBERT,
    **MPNET,
    **NOMICBERT,
}


_TASKS: Mapping[AskedTask, tuple[Task, ...]] = {
    "generate": ("generate",),
    "embed": ("embed",),
    "rerank": ("classify", "rerank"),
}


class UnknownArchitectureError(ValueError):
    """A checkpoint's architecture is not implemented; one line says what kind of model it is."""

    def __init__(self, architecture: str, where: str = "", kind: str | None = None) -> None:
        """`where` begins the line, `kind` is what is known of the model."""
        near = _mistyped(architecture)
        about = f"the nearest name is {near}" if near else kind
        shown = f" ({about})" if about else ""
        super().__init__(
            f"{where}architecture {architecture!r}{shown} is not supported; docs/models.md lists "
            "those that are"
        )


def _mistyped(architecture: str) -> str | None:
    """The supported name that was meant, if a letter is missing or one too many, two are swapped,
    or the case is wrong. Other digits are another model."""
    if len(architecture) > 100:
        return None  # the search below would take its time
    letters = Counter(architecture.lower())
    for near in get_close_matches(architecture, FAMILIES, n=3, cutoff=0.8):
        known = Counter(near.lower())
        others = list(((letters - known) + (known - letters)).elements())
        if len(others) <= 1 and not any(map(str.isdigit, others)):
            return near
    return None


def family_of(architecture: str) -> Family:
    """The row of `architecture`. Raises UnknownArchitectureError."""
    family = FAMILIES.get(architecture)
    if family is None:
        raise UnknownArchitectureError(architecture)
    return family


class TaskError(ValueError):
    """A checkpoint cannot do what it is asked to do; one line says what it can."""


def architecture_for(declared: str, asked: AskedTask) -> str:
    """The architecture with which a checkpoint does what it is asked to do: the declared one, or
    that without its head. Raises TaskError."""
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
    """What a model does."""
    own = family_of(model.architecture).task
    return "rerank" if own == "generate" and model.reranking is not None else own


_BY_NAME = {
    r"VL|Vision|Llava|Vlm|Idefics|Image": "a vision-language model",
    r"Audio|Whisper|Speech|Wav2Vec": "a model for audio",
    r"Moe|MoE|Mixtral|DeepseekV|DbrxFor|GptOss": "a mixture of experts",
    r"Mamba|Rwkv|Jamba|Zamba|Bamba": "a state-space model",
    r"^M?T5|Bart|Marian|Pegasus|EncoderDecoder": "an encoder-decoder",
    r"RewardModel$": "a reward model",
    r"Bidirectional": "a decoder that attends in both directions",
    r"ForTokenClassification$": "a classifier of tokens",
    r"ForQuestionAnswering$": "a model that marks answers in a text",
}
_BY_KEY = {
    "vision_config": "a vision-language model",
    "audio_config": "a model for audio",
    "is_encoder_decoder": "an encoder-decoder",
    "n_routed_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "num_local_experts": "a mixture of experts",
    "ssm_cfg": "a state-space model",
    "state_size": "a state-space model",
    "auto_map": "a model by code of its own, which is never run",
}


def kind_of(architecture: str, values: Mapping[str, Any]) -> str | None:
    """The kind in words, None if it is not known. `values` are those of `config.json`."""
    for pattern, kind in _BY_NAME.items():
        if re.search(pattern, architecture):
            return kind
    for key, kind in _BY_KEY.items():
        if values.get(key):
            return kind
    return None
