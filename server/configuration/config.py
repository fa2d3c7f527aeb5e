"""The one frozen configuration of the daemon. Nothing below this module reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from engine_core.config import EngineConfig
from workers.model_config import ModelConfigError, read_json

API_KEY_VARIABLE = "PENSTOCK_API_KEY"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon lets into the house at once, and what one request may ask for.

    `max_requests`, `max_rows` (sequences) and `max_tokens` (a text counts its bytes until it is
    tokenized) bound everything in flight, `max_queue_seconds` (0: nothing) each model's expected
    wait; the other bounds hold for each request.
    """

    max_requests: int = 4096
    max_rows: int = 16_384
    max_tokens: int = 16 * 1024 * 1024
    max_queue_seconds: float = 30.0
    max_body_bytes: int = 8 * 1024 * 1024
    max_inputs: int = 2048
    max_documents: int = 1000
    max_n: int = 128


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of a request that names none, and the ids that end a text."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the daemon: its names in requests, its folder, its engine.

    `name` is the one that answers tell; `aliases` are others for the same model.
    """

    name: str
    aliases: tuple[str, ...] = ()
    path: str
    engine: EngineConfig
    generation: GenerationDefaults


class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """The files with which the daemon speaks HTTPS: PEM, the certificate's chain included."""

    cert: str
    key: str


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon: where it listens, what it serves, how much it admits.

    `port` is the bound one, never 0 in a daemon that runs. Of API keys there are only SHA-256
    digests. Timeouts are in seconds. The first model is the first that `/v1/models` lists.
    """

    host: str
    port: int
    api_workers: int
    api_keys: tuple[str, ...] = ()
    tls: TLS | None = None
    cors_origins: tuple[str, ...] = ()
    strict_fields: bool = False
    startup_timeout: float = 600.0
    drain_timeout: float
    stall_timeout: float = 60.0
    log_level: str
    limits: Limits
    models: tuple[ServedModel, ...]


def api_key_from(environment: Mapping[str, str] = os.environ) -> str | None:
    """The API key that the environment sets, if any."""
    return environment.get(API_KEY_VARIABLE) or None


def child_environment(
    *,
    compute_threads: int = 1,
    tokenizer_threads: int = 1,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a child process: this one's, with the thread pools of its libraries
    sized (OpenMP, MKL, OpenBLAS; rayon, which tokenizers uses) and `settings` on top.

    Without the API key, of which children know the digest.
    """
    own = {name: value for name, value in environment.items() if name != API_KEY_VARIABLE}
    compute = dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(compute_threads)
    )
    tokenizing = {
        "RAYON_NUM_THREADS": str(tokenizer_threads),
        "TOKENIZERS_PARALLELISM": "true" if tokenizer_threads > 1 else "false",
    }
    return {**own, **compute, **tokenizing, **(settings or {})}


class _GenerationFile(msgspec.Struct):
    """The keys of `generation_config.json` that are obeyed; every one may be absent or null."""

    eos_token_id: int | list[int] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=0)] | None = None


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read `generation_config.json`; end-of-sequence ids that it does not name, `config.json` may.

    Written out, `do_sample: false` means greedy. Raises ModelConfigError, naming the file and the
    key, for a value of the wrong type or out of range.
    """
    path, fallback = folder / "generation_config.json", folder / "config.json"
    raw = _generation_file(path) if path.exists() else _GenerationFile()
    eos = raw.eos_token_id
    if eos is None:
        eos = _generation_file(fallback).eos_token_id
    if isinstance(eos, int):
        eos = [eos]
    defaults = GenerationDefaults()
    temperature = defaults.temperature if raw.temperature is None else raw.temperature
    return GenerationDefaults(
        eos_token_ids=tuple(eos or ()),
        temperature=0.0 if raw.do_sample is False else temperature,
        top_p=defaults.top_p if raw.top_p is None else raw.top_p,
        top_k=defaults.top_k if raw.top_k is None else raw.top_k,
    )


def _generation_file(path: Path) -> _GenerationFile:
    try:
        return msgspec.convert(read_json(path), _GenerationFile)
    except msgspec.ValidationError as error:
        raise ModelConfigError(f"{path} is not valid: {error}") from None
