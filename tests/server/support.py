"""Small real things for tests of the server: a tokenizer's folder, configurations."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from engine_core.config import EngineConfig
from server.settings.api_keys import APIKey, GivenKey, hashed
from server.settings.settings import GenerationDefaults, Limits, ServedModel, ServerConfig
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import ExecutionConfig, Task
from workers.contract.model_config import AttentionKind, DecoderConfig, ModelConfig, NormalizeConfig

WORDS = [
    "The quick brown fox jumps over the lazy dog.",
    "Water falls from the gate into the turbine below, and the turbine turns.",
    "naïve café, größer, 漢字, emoji 🎉 and more words than that.",
]
ANY_PRIORITY = Limits(priority_range=(-(2**63), 2**63 - 1))
BOS, EOS = "<s>", "</s>"


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of some 400 ids; texts begin with <s>, which is id 0; </s> is id 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {EOS} $B", special_tokens=[(BOS, 0), (EOS, 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def served_model(
    name: str,
    task: Task,
    folder: Path,
    endpoint: str,
    *,
    vocab_size: int,
    labels: tuple[str, ...] = ("relevant",),
    generation: GenerationDefaults | None = None,
) -> ServedModel:
    """A model whose engine listens on `endpoint`."""
    return ServedModel(
        name=name,
        path=str(folder),
        engine=_engine(name, task, folder, endpoint, vocab_size, labels),
        generation=generation or GenerationDefaults(eos_token_ids=(1,)),
    )


def with_model(served: ServedModel, **fields: Any) -> ServedModel:
    """`served` with other `fields` of its model's configuration."""
    model = msgspec.structs.replace(served.execution.model, **fields)
    execution = msgspec.structs.replace(served.execution, model=model)
    engine = msgspec.structs.replace(served.engine, execution=execution)
    return msgspec.structs.replace(served, engine=engine)


def api_keys(*texts: str) -> tuple[APIKey, ...]:
    """Keys without names, as processes hold them."""
    return hashed(map(GivenKey, texts))


def server_config(
    *models: ServedModel,
    api_key: str | None = None,
    limits: Limits | None = None,
    drain_timeout: float = 1.0,
    api_workers: int = 1,
) -> ServerConfig:
    """A daemon's configuration."""
    return ServerConfig(
        host="127.0.0.1",
        port=8000,
        api_workers=api_workers,
        api_keys=api_keys(*([api_key] if api_key else [])),
        drain_timeout=drain_timeout,
        log_level="warning",
        models=models,
        **msgspec.structs.asdict(limits or Limits()),
    )


def _engine(
    name: str, task: Task, folder: Path, endpoint: str, vocab_size: int, labels: tuple[str, ...]
) -> EngineConfig:
    execution = ExecutionConfig(
        name=name,
        model=_model(folder, task, vocab_size, labels),
        task=task,
        devices=("cpu",),
        stage_layers=(),
        steps_ahead=1,
        transport="auto",
        dtype="float32",
        load_format="auto",
        attention_backend=AttentionBackendName.SDPA,
        threads=1,
        max_model_len=2048,
        max_running=64,
        max_step_tokens=512,
        block_size=16,
        kv_cache_bytes=1 << 20,
        worker_endpoint=endpoint + "-workers",
        token_endpoint=endpoint + "-tokens",
        rendezvous=str(folder / "rendezvous"),
    )
    return EngineConfig(
        execution=execution,
        max_pending_rows=1024,
        max_pending_tokens=1 << 20,
        client_endpoint=endpoint,
    )


def _model(folder: Path, task: Task, vocab_size: int, labels: tuple[str, ...]) -> ModelConfig:
    """A causal one, unless it classifies."""
    return ModelConfig(
        path=str(folder),
        architecture="LlamaForCausalLM",
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=16,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position=2048,
        max_model_len=2048,
        checkpoint_dtype="float32",
        tie_word_embeddings=True,
        attention=(AttentionKind(causal=task != "classify", scale=1.0),),
        layer_kinds=(0,) * 1,
        family=DecoderConfig(hidden_act="silu", norm_eps=1e-5),
        num_labels=len(labels),
        labels=labels,
        sigmoid_scores=False,
        modules=(NormalizeConfig(),),
    )
