"""Small real things for tests of the server: a tokenizer's folder, configurations."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from server.models.model_setup import EngineOptions, set_up_model
from server.settings.api_keys import APIKey, GivenKey, hashed
from server.settings.settings import GenerationDefaults, Limits, ServedModel, ServerConfig
from tests.engine_core.configs import ENCODER, MODEL, engine_config
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import Task
from workers.contract.model_config import NormalizeConfig

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
) -> ServedModel:
    """A model whose engine listens on `endpoint`: a causal one, unless it classifies."""
    model = msgspec.structs.replace(
        ENCODER if task == "classify" else MODEL,
        path=str(folder),
        vocab_size=vocab_size,
        hidden_size=8,
        max_position=2048,
        max_model_len=2048,
        num_labels=len(labels),
        labels=labels,
        modules=(NormalizeConfig(),),
    )
    engine = engine_config(
        name=name,
        model=model,
        task=task,
        attention_backend=AttentionBackendName.SDPA,
        max_model_len=2048,
        max_running=64,
        max_step_tokens=512,
        block_size=16,
        kv_cache_bytes=1 << 20,
        max_pending_rows=1024,
        max_pending_tokens=1 << 20,
        client_endpoint=endpoint,
    )
    generation = GenerationDefaults(eos_token_ids=(1,))
    return ServedModel(name=name, path=str(folder), engine=engine, generation=generation)


def set_up(folder: Path, name: str = "m", **options: Any) -> ServedModel:
    """The model of a folder, on CPUs unless `options` say otherwise. Its sockets are beside it."""
    engine = EngineOptions(device=options.pop("device", "cpu"), **options)
    return set_up_model(name, folder, engine, Limits(), str(folder.with_name("0")))


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
    *models: ServedModel, api_key: str | None = None, limits: Limits | None = None, **fields: Any
) -> ServerConfig:
    """A daemon's configuration, which drains for 1 s; `fields` replace others."""
    usual: dict[str, Any] = {"drain_timeout": 1.0, "log_level": "warning"}
    usual["api_keys"] = api_keys(api_key) if api_key else ()
    bounds = msgspec.structs.asdict(limits or Limits())
    return ServerConfig(models=models, **usual | bounds | fields)
