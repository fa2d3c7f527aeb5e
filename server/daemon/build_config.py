"""From settings to the daemon's frozen configuration (`server/settings/server_config.py`).

API keys and certificates are read here. What settings leave open about a model is decided in
`server/models/model_setup.py`, with the defaults of `server/settings/defaults.py`.
"""

from pathlib import Path

from server.models.served_models import build_served_models
from server.settings.api_keys import APIKeyError, checked_key, digests, read_key_file
from server.settings.server_config import API_KEY_VARIABLE, TLS, ServerConfig
from server.settings.setting_names import SettingNames
from server.settings.settings import ServeCommand, Settings, SettingsError
from server.settings.tls import TLSError, checked_tls


def build_config(command: ServeCommand, *, port: int, folder: Path) -> ServerConfig:
    """The configuration of a daemon on `port` whose sockets are in `folder`.

    Reads keys, certificates and the models' configurations; models of the hub are downloaded.
    Raises SettingsError, or what `set_up_model` raises.
    """
    settings, setting_names = command.settings, command.setting_names
    return ServerConfig(
        host=settings.host,
        port=port,
        api_workers=settings.api_workers,
        api_keys=_api_keys(command),
        tls=_tls(settings, setting_names),
        cors_origins=settings.cors_origins,
        strict_fields=settings.strict_fields,
        startup_timeout=settings.startup_timeout,
        drain_timeout=settings.drain_timeout,
        stall_timeout=settings.stall_timeout,
        log_level=settings.log_level,
        limits=settings.limits,
        models=build_served_models(settings, setting_names, folder),
    )


def _api_keys(command: ServeCommand) -> tuple[str, ...]:
    """The digests of all keys. That of the command line was checked there."""
    source = API_KEY_VARIABLE
    try:
        keys = [] if command.api_key is None else [checked_key(command.api_key)]
        source = command.setting_names.of("api_key_files")
        for file in command.settings.api_key_files:
            keys += read_key_file(Path(file))
    except APIKeyError as error:
        raise SettingsError(f"{source}: {error}") from None
    return digests(keys)


def _tls(settings: Settings, setting_names: SettingNames) -> TLS | None:
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if key is None:
        raise SettingsError(f"{setting_names.of('tls_cert')}: there is no key beside it")
    if cert is None:
        raise SettingsError(f"{setting_names.of('tls_key')}: there is no certificate beside it")
    try:
        return checked_tls(Path(cert), Path(key))
    except TLSError as error:
        raise SettingsError(f"{setting_names.of(error.key)}: {error}") from None
