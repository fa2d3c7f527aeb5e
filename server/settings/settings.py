"""What a person may ask of the daemon, by flags or in a configuration file: one set of names.

Nothing is decided here. What is left open is decided in `server/models/model_setup.py`, from the
model, its device and the table in `server/settings/defaults.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.settings import defaults
from server.settings.server_config import Limits
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.config import Dtype, LoadFormat

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=10**6)]
Share = Annotated[float, Meta(gt=0, le=1)]

LogLevel = Literal["debug", "info", "warning", "error"]

_FLAGS = {
    "api_key_files": "--api-key-file",
    "cors_origins": "--cors-origin",
    "names": "--served-model-name",
}
"""Of keys that are lists: the flag is given once for each item."""


class SettingsError(ValueError):
    """What was asked for cannot be; one line names the flag, or the file and the key."""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is run. None: chosen by model and device."""

    device: str = "auto"
    dtype: Dtype | Literal["auto"] = "auto"
    load_format: LoadFormat = "auto"
    attention_backend: AttentionBackendName = AttentionBackendName.AUTO
    pipeline_stages: Positive = defaults.PIPELINE_STAGES
    max_model_len: Positive | None = None
    max_running: Positive | None = None
    max_step_tokens: Positive | None = None
    block_size: Positive | None = None
    kv_cache_memory: Bytes | None = None
    threads: Positive | None = None


class ModelSettings(EngineSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model: a folder or a hub id, and what requests call it (by default its own name).

    `memory_share` is this engine's part of each of its CUDA devices. None for `max_queue_seconds`
    is the daemon's.
    """

    model: Annotated[str, Meta(min_length=1)]
    names: tuple[str, ...] = ()
    memory_share: Share | None = None
    max_queue_seconds: Seconds | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon: what it serves, where it listens, who may call it, how much it admits.

    `memory_share` is what all engines without one of their own take of a CUDA device, together
    with those that have one. Times are in seconds, sizes in bytes.
    """

    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    host: Annotated[str, Meta(min_length=1)] = defaults.HOST
    port: Annotated[int, Meta(ge=0, le=65_535)] = defaults.PORT
    api_workers: Positive = defaults.API_WORKERS
    api_key_files: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    strict_fields: bool = False
    max_requests: Positive = defaults.MAX_REQUESTS
    max_sequences: Positive = defaults.MAX_SEQUENCES
    max_queue_seconds: Seconds = defaults.MAX_QUEUE_SECONDS
    max_body_size: Bytes = defaults.MAX_BODY_BYTES
    max_inputs: Positive = defaults.MAX_INPUTS
    max_documents: Positive = defaults.MAX_DOCUMENTS
    max_n: Positive = defaults.MAX_N
    memory_share: Share = defaults.MEMORY_SHARE
    startup_timeout: Seconds = defaults.STARTUP_TIMEOUT
    drain_timeout: Seconds = defaults.DRAIN_TIMEOUT
    stall_timeout: Seconds = defaults.STALL_TIMEOUT
    log_level: LogLevel = defaults.LOG_LEVEL

    @property
    def limits(self) -> Limits:
        """What the daemon admits, and what one request may ask for."""
        return Limits(
            max_requests=self.max_requests,
            max_rows=self.max_sequences,
            max_queue_seconds=self.max_queue_seconds,
            max_body_bytes=self.max_body_size,
            max_inputs=self.max_inputs,
            max_documents=self.max_documents,
            max_n=self.max_n,
        )


class Spelling(msgspec.Struct, frozen=True, kw_only=True):
    """How a setting is called in a complaint: as a flag, or as a key of `file`.

    `flags` are the keys that flags have set over those of the file.
    """

    file: str | None = None
    flags: frozenset[str] = frozenset()

    def of(self, key: str, model: int | None = None) -> str:
        """A key's name, such as `--port`, or `penstock.yaml: models[0].device`."""
        if self.file is None or (model is None and key in self.flags):
            return flag(key)
        return f"{self.file}: {key}" if model is None else f"{self.file}: models[{model}].{key}"

    def inside(self, key: str, model: int | None = None) -> str:
        """A key's name inside a sentence, such as `models[0].device of penstock.yaml`."""
        where, _, path = self.of(key, model).rpartition(": ")
        return f"{path} of {where}" if where else path

    def of_engine(self, model: int) -> dict[str, str]:
        """What messages of an engine call the settings of model number `model`, by key."""
        keys = (*EngineSettings.__struct_fields__, "memory_share")
        names = {key: self.inside(key, model) for key in keys}
        return names | {"stall_timeout": self.inside("stall_timeout")}

    def place(self, key: str, model: int | None = None) -> str:
        """What goes before a message that speaks for itself: nothing, or where in the file."""
        return "" if self.file is None else f"{self.of(key, model)}: "


def flag(key: str) -> str:
    """The flag that sets `key`."""
    return _FLAGS.get(key) or "--" + key.replace("_", "-")


class ServeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock serve` was asked for. `api_key` is one beside those of the files."""

    settings: Settings
    api_key: str | None = None
    spelling: Spelling = Spelling()
