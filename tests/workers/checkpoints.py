"""Tiny random checkpoints, made by transformers, and configurations of a stage that loads one.

Weights are drawn wider than is usual, so that logits and attention scores are far from uniform.
"""

import random
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from tests.engine_core.configs import execution_config
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import Device, Dtype, LoadFormat, Task, WorkerConfig
from workers.contract.model_config import ModelConfig
from workers.contract.share import Share, even_layers, shares_of
from workers.layers.layer import TORCH_DTYPES, Placement
from workers.models.base import model_class
from workers.weights.loader import LoadedModel, load_model

LLAMA: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

BERT: dict[str, Any] = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "initializer_range": 0.15,
}


def random_texts(*lengths: int) -> list[list[int]]:
    """Texts of these lengths for a small BERT."""
    tokens = range(1, BERT["vocab_size"])
    return [random.Random(row).choices(tokens, k=length) for row, length in enumerate(lengths)]


def save_llama(folder: Path, *, shard_size: str = "1GB", **changes: Any) -> LlamaForCausalLM:
    """Write a Llama whose every weight, norms and biases too, is random; returns the model."""
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**LLAMA | changes)).eval()
    return save_randomly(model, folder, shard_size)


def save_bert(folder: Path, *, labels: int = 0, **changes: Any) -> Any:
    """Write a BERT encoder, or with `labels` a classifier; returns the model."""
    torch.manual_seed(7)
    if labels:
        changes["num_labels"] = labels
    config = BertConfig(**BERT | changes)
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    return save_randomly(model.eval(), folder)


def save_masked_lm(folder: Path, *, bias: float = 0.0, **changes: Any) -> Any:
    """Write a BERT with the head of a masked language model, all of whose logits are raised by
    `bias`; returns the model."""
    torch.manual_seed(7)
    model = BertForMaskedLM(BertConfig(**BERT | changes)).eval()
    save_randomly(model, folder)
    if bias:
        with torch.no_grad():
            model.cls.predictions.bias.add_(bias)
        model.save_pretrained(folder)
    return model


def save_randomly(model: Any, folder: Path, shard_size: str = "1GB") -> Any:
    """Write a model of transformers whose norms and biases are random too; returns it."""
    for name, weight in model.state_dict().items():
        if weight.dim() == 1 and weight.is_floating_point():
            mean = 0.0 if name.endswith("bias") else 1.0
            torch.nn.init.normal_(weight, mean=mean, std=0.1)
    for name, numbers in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("correction_bias", "proj_bias")):
            torch.nn.init.normal_(numbers, std=0.1)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return model


def pipeline(device: Device, num_stages: int) -> tuple[str, ...]:
    """The devices of a model in `num_stages` stages: all on the CPU, or all on the first GPU."""
    return ("cpu" if device == "cpu" else "cuda:0",) * num_stages


def worker_config(
    folder: Path,
    *,
    task: Task = "generate",
    stage: int = 0,
    num_stages: int = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    load_format: LoadFormat = "auto",
    model: ModelConfig | None = None,
) -> WorkerConfig:
    """A stage of the checkpoint in `folder`, with small blocks and no sockets. `model` replaces
    what its files say."""
    model = model or read_model_config(folder)
    execution = execution_config(
        name="tiny",
        model=model,
        task=task,
        devices=pipeline(device, num_stages),
        dtype=dtype,
        load_format=load_format,
        max_model_len=model.max_model_len,
        max_step_tokens=256,
        kv_cache_bytes=1 << 20,
    )
    return WorkerConfig(execution=execution, stage=stage)


def share_of(worker: WorkerConfig) -> Share:
    """The stage's share of the layers, by `stage_layers` or else an even one."""
    execution = worker.execution
    even = even_layers(execution.model, execution.num_stages)
    return shares_of(execution.stage_layers or even)[worker.stage]


def load_share(worker: WorkerConfig) -> LoadedModel:
    """The stage's share of the layers, loaded."""
    return load_model(worker, share_of(worker))


def stage_weights(worker: WorkerConfig) -> dict[str, torch.Tensor]:
    """The stage's weights by their names in a checkpoint, with any numbers."""
    execution = worker.execution
    placement = Placement(torch.device("cpu"), TORCH_DTYPES[execution.dtype])
    build = model_class(execution.model.architecture)
    return build(execution.model, share_of(worker), placement).weights()


def with_execution(worker: WorkerConfig, **changes: Any) -> WorkerConfig:
    """`worker` of a model that is computed in another way."""
    execution = msgspec.structs.replace(worker.execution, **changes)
    return WorkerConfig(execution=execution, stage=worker.stage)
