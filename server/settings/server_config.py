"""The one frozen configuration of the daemon. Nothing below this module reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from engine_core.config import EngineConfig
from server.settings.api_keys import APIKey
from server.settings.settings import API_KEY_VARIABLE, DaemonSettings, Limits
from workers.contract.config import ExecutionConfig
from workers.contract.token_sampling import TokenSampling

_TRACES_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The folder of what clients store, whose database is marked with `token`; or (None) why they
    can store nothing, and whether somebody has switched it off."""

    folder: str | None = None
    token: int = 0
    fault: str = ""
    switched_off: bool = False


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids that end a text, and sampling parameters for requests that give none."""

    eos_token_ids: tuple[int, ...] = ()
    sampling: TokenSampling = TokenSampling()


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the daemon: its names in requests, its folder, its engine.

    `name` is the one in answers; requests may use `aliases` as well.
    """

    name: str
    aliases: tuple[str, ...] = ()
    path: str
    engine: EngineConfig
    generation: GenerationDefaults

    @property
    def execution(self) -> ExecutionConfig:
        """How the engine computes it."""
        return self.engine.execution


class TLS(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Paths of the PEM files for HTTPS; `cert` may hold a chain. `renewals` counts how often the
    daemon has found others in them since it started."""

    cert: str
    key: str
    renewals: int = 0


class ServerConfig(DaemonSettings, frozen=True, kw_only=True):
    """The daemon's settings, with all that was left open decided.

    `port` is the bound one, 0 only where nothing listens. `cache_secret` is what cache salts of
    keys are made with, and `share_prefixes` names those that have the same. `/v1/models` lists the
    models in this order. Several API processes share their counts in `count_files`, one for each
    of them; `process_file` names the daemon's processes, and in `batch_file` the batch process says
    whether it can run (None: there are to be no batches).
    """

    api_keys: tuple[APIKey, ...] = ()
    cache_secret: str = ""
    tls: TLS | None = None
    count_files: tuple[str, ...] = ()
    process_file: str | None = None
    batch_file: str | None = None
    state: State = State()
    models: tuple[ServedModel, ...]


def unattended(settings: DaemonSettings, models: tuple[ServedModel, ...]) -> ServerConfig:
    """The configuration of an application without HTTP, in which nobody asks for a key: only what a
    request may say and ask for is that of `settings`."""
    kept = (*Limits.__struct_fields__, "strict_fields", "log_level")
    return ServerConfig(models=models, **{key: getattr(settings, key) for key in kept})


def api_key_from(environment: Mapping[str, str] = os.environ) -> str | None:
    """The API key that the environment sets, if any."""
    return environment.get(API_KEY_VARIABLE) or None


def traces_protocol_from(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The variable that says how traces are to be sent, and what it says; two empty texts if none
    does."""
    said = ((variable, environment.get(variable, "")) for variable in _TRACES_PROTOCOLS)
    return next((each for each in said if each[1]), ("", ""))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's programs keep what they can make again (XDG Base Directory)."""
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "penstock"


def state_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's programs keep what outlives them (XDG Base Directory)."""
    return Path(environment.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "penstock"


def child_environment(
    *,
    compute_threads: int = 1,
    tokenizer_threads: int = 1,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a child process: this one's, with the thread pools of its libraries
    sized (OpenMP, MKL, OpenBLAS; rayon, which tokenizers uses) and `settings` on top.

    The API key is left out: children need only its digest.
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
