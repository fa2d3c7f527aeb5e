"""From settings to the daemon's frozen configuration (`server/settings/server_config.py`).

What settings leave open about a model is decided in `server/models/model_setup.py`, with the
defaults of `server/settings/defaults.py`.
"""

import secrets
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from server.daemon.credentials import Credentials
from server.models.served_models import build_served_models
from server.settings.api_keys import ALL_KEYS
from server.settings.server_config import ServerConfig, traces_protocol_from
from server.settings.settings import ServeCommand, SettingsError

_TRACES_PACKAGE: Final = "opentelemetry-exporter-otlp-proto-http"


def build_config(
    command: ServeCommand, credentials: Credentials, *, port: int, folder: Path
) -> ServerConfig:
    """The configuration of a daemon on `port` whose sockets are in `folder`.

    Reads the models' configurations; models of the hub are downloaded. Raises SettingsError, or
    what `set_up_model` raises.
    """
    settings = command.settings
    return ServerConfig(
        host=settings.host,
        port=port,
        api_workers=settings.api_workers,
        api_keys=credentials.api_keys,
        cache_secret=secrets.token_hex(32),
        share_prefixes=_share_prefixes(command, credentials),
        metrics_key=_metrics_key(command, credentials),
        tls=credentials.tls,
        cors_origins=settings.cors_origins,
        strict_fields=settings.strict_fields,
        metrics_alias=settings.metrics_alias,
        startup_timeout=settings.startup_timeout,
        drain_timeout=settings.drain_timeout,
        stall_timeout=settings.stall_timeout,
        log_level=settings.log_level,
        access_log=settings.access_log,
        otlp_traces_endpoint=_traces_endpoint(command),
        limits=settings.limits,
        models=build_served_models(settings, command.setting_names, folder),
    )


def _share_prefixes(command: ServeCommand, credentials: Credentials) -> tuple[str, ...]:
    """Raises SettingsError for a name that no key has."""
    named = command.settings.share_prefixes
    known = {ALL_KEYS, *(key.name for key in credentials.api_keys)}
    if unknown := [name for name in named if name not in known]:
        setting = command.setting_names.of("share_prefixes")
        raise SettingsError(f"{setting}: no API key is called {unknown[0]}")
    return named


def _metrics_key(command: ServeCommand, credentials: Credentials) -> bool:
    """Raises SettingsError where there is no key to ask for."""
    if command.settings.metrics_key and not credentials.api_keys:
        raise SettingsError(f"{command.setting_names.of('metrics_key')}: there are no API keys")
    return command.settings.metrics_key


def _traces_endpoint(command: ServeCommand) -> str | None:
    """Raises SettingsError if traces could not be sent."""
    endpoint = command.settings.otlp_traces_endpoint
    if endpoint is None:
        return None
    setting = command.setting_names.of("otlp_traces_endpoint")
    variable, protocol = traces_protocol_from()
    if protocol not in ("", "http/protobuf"):
        raise SettingsError(
            f"{setting}: {variable} is {protocol}; traces are sent by http/protobuf alone"
        )
    try:
        distribution(_TRACES_PACKAGE)
    except PackageNotFoundError:
        raise SettingsError(f"{setting}: pip install 'penstock[otel]' to send traces") from None
    return endpoint
