"""The daemon's settings, by flags or in a configuration file: one set of names.

Nothing is decided here. Settings that are not given are decided in
`server/models/model_setup.py`, from the model, its device and the table in
`server/settings/defaults.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from server.settings import defaults
from server.settings.engine_settings import ModelSettings
from server.settings.flag_declaration import Flag, FlagGroup
from server.settings.limits import Limits
from server.settings.server_config import API_KEY_VARIABLE, LogFormat, MetricsAlias
from server.settings.setting_names import SettingNames
from server.settings.setting_types import (
    KeyText,
    Origin,
    Port,
    Positive,
    Seconds,
    Share,
    Text,
    TracesEndpoint,
)

NO_STATE = "none"
"""As `state_dir`: clients can store nothing."""

LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(ValueError):
    """The settings are not valid; one line names the flag, or the file and the key."""


class Settings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The daemon: what it serves, where it listens, who may call it, how much it admits.

    Without `models` the demo models are served. `memory_share` is the fraction of each CUDA device
    that all its engines may use together; engines with a share of their own take theirs first.
    Times are in seconds, sizes in bytes.
    """

    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)] = ()
    host: Annotated[Text, Flag(FlagGroup.HTTP, "address to listen on")] = "127.0.0.1"
    port: Annotated[Port, Flag(FlagGroup.HTTP, "0: any free port")] = 8000
    api_workers: Annotated[Positive, Flag(FlagGroup.HTTP, "processes that speak HTTP")] = 1
    strict_fields: Annotated[
        bool,
        Flag(FlagGroup.HTTP, "refuse bodies with unknown fields (default: ignore unknown fields)"),
    ] = False
    metrics_alias: Annotated[
        MetricsAlias | None,
        Flag(
            FlagGroup.HTTP,
            "show the metrics once more under the names of another server, which dashboards and "
            "routers may read: vllm (default: none)",
            "NAME",
        ),
    ] = None
    access_log: Annotated[
        LogFormat | None,
        Flag(
            FlagGroup.HTTP,
            "write a line for each request to standard output, as text or json (default: none)",
            "FORMAT",
        ),
    ] = None
    otlp_traces_endpoint: Annotated[
        TracesEndpoint | None,
        Flag(
            FlagGroup.HTTP,
            "send OpenTelemetry traces of requests to this URL of a collector, by OTLP over HTTP, "
            "such as http://localhost:4318/v1/traces (default: none; needs penstock[otel])",
        ),
    ] = None
    api_key_files: Annotated[
        tuple[str, ...],
        Flag(
            FlagGroup.ACCESS,
            "file with one key a line, # begins a comment; may be given several times. A request "
            "needs any one of all keys (default: none)",
            "FILE",
        ),
    ] = ()
    metrics_key: Annotated[
        bool,
        Flag(
            FlagGroup.ACCESS,
            "ask for an API key for /metrics too, which names keys and models (default: open)",
        ),
    ] = False
    tls_cert: Annotated[
        str | None,
        Flag(
            FlagGroup.ACCESS,
            "serve HTTPS with this certificate, or chain, in PEM (default: HTTP)",
            "FILE",
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        Flag(FlagGroup.ACCESS, "its private key, not encrypted, in PEM (default: none)", "FILE"),
    ] = None
    share_prefixes: Annotated[
        tuple[str, ...],
        Flag(
            FlagGroup.ACCESS,
            "let API keys of this name find in the prefix cache what others so named have "
            "computed; all for every key; may be given several times (default: none)",
            "NAME",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[Origin, ...],
        Flag(
            FlagGroup.ACCESS,
            "let pages of this origin call the daemon from a browser, such as "
            "https://chat.example.org; * for any; may be given several times (default: none)",
        ),
    ] = ()
    state_dir: Annotated[
        Text | None,
        Flag(
            FlagGroup.STORAGE,
            "folder for the files and batches of clients; none: they can store nothing (default: "
            "penstock in $XDG_STATE_HOME, which is ~/.local/state if it is not set)",
            "FOLDER",
        ),
    ] = None
    memory_share: Annotated[
        Share,
        Flag(
            FlagGroup.CAPACITY,
            "fraction of each CUDA device's memory that all engines together may use, for weights, "
            "cache and everything else",
        ),
    ] = defaults.MEMORY_SHARE
    startup_timeout: Annotated[
        Seconds, Flag(FlagGroup.LIFE, "give up if not ready after this time")
    ] = defaults.STARTUP_TIMEOUT
    drain_timeout: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIFE,
            "time for running requests to finish on SIGTERM or Ctrl-C, or if a process died; a "
            "second signal ends them at once",
        ),
    ] = 30.0
    stall_timeout: Annotated[
        Seconds,
        Flag(
            FlagGroup.LIFE,
            "end the daemon if a step of a model, or an API process, hangs for this long, and "
            "start the batch process again if that does; 0, for debuggers: never, and idle engines "
            "and workers are not watched either",
        ),
    ] = defaults.STALL_TIMEOUT
    log_level: Annotated[
        LogLevel, Flag(FlagGroup.LIFE, "debug, info, warning or error", "LEVEL")
    ] = defaults.LOG_LEVEL

    @property
    def limits(self) -> Limits:
        """What the daemon admits, and what one request may ask for."""
        return msgspec.convert(self, Limits, from_attributes=True)


class ServeCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What `penstock serve` was asked to run. `api_key` is added to the keys of the files."""

    settings: Settings
    api_key: Annotated[
        KeyText | None,
        Flag(
            FlagGroup.ACCESS,
            f"require this key in every request (default: ${API_KEY_VARIABLE}, which other users "
            "of the machine cannot see; no key if unset)",
        ),
    ] = None
    setting_names: SettingNames = SettingNames()
