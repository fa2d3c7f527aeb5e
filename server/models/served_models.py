"""Every model of a daemon, from its settings to its frozen configuration.

Decided here: its names, and which limits are its own. Decided elsewhere: its share of its devices
(`memory_shares.py`), and everything else that its settings leave open (`model_setup.py`).
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine_core.tokenization.tokenizer import TokenizerError
from server.models.devices import resolve_devices
from server.models.model_setup import EngineOptions, set_up_model
from server.models.model_source import ModelSourceError, SetupError, model_folder
from server.settings.engine_settings import EngineSettings, ModelSettings
from server.settings.limits import Limits
from server.settings.server_config import ServedModel
from server.settings.setting_names import SettingNames
from server.settings.settings import Settings, SettingsError
from workers.contract.checkpoint.architectures import UnknownArchitectureError
from workers.contract.model_config import ModelConfigError

_ROUNDING = 1e-9


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """An engine: its CUDA devices, and its share of each if it was given one."""

    devices: tuple[str, ...]
    share: float | None = None


class SharesError(ValueError):
    """Shares that do not fit on a device. `tenants` are the indices of the engines at fault."""

    def __init__(self, message: str, tenants: Sequence[int]) -> None:
        super().__init__(message)
        self.tenants = tenants


def divide(tenants: Sequence[Tenant], total: float) -> list[float]:
    """Each engine's share of each of its devices.

    A share that was given is kept. On each device the engines without one divide evenly what is
    left of `total`; an engine with several devices takes the smallest of its parts. Raises
    SharesError where the given shares exceed a whole device, or leave nothing to the others.
    """
    rest: dict[str, float] = {}
    for device in sorted({device for tenant in tenants for device in tenant.devices}):
        here = [index for index, tenant in enumerate(tenants) if device in tenant.devices]
        named = [index for index in here if tenants[index].share is not None]
        taken = sum(tenants[index].share or 0 for index in named)
        if taken > 1 + _ROUNDING:
            raise SharesError(f"{taken:.4g} of {device}, more than all of it", named)
        others = len(here) - len(named)
        if others and taken >= total - _ROUNDING:
            what = f"{taken:.4g} of {device}, nothing of {total:.4g} is left to others"
            raise SharesError(what, named)
        rest[device] = (total - taken) / others if others else 0.0
    return [
        min((rest[device] for device in tenant.devices), default=total)
        if tenant.share is None
        else tenant.share
        for tenant in tenants
    ]


MODEL_ERRORS = (ModelConfigError, ModelSourceError, TokenizerError, UnknownArchitectureError)
"""What is wrong with a model itself. Each message is one line."""


def build_served_models(
    settings: Settings, setting_names: SettingNames, folder: Path
) -> tuple[ServedModel, ...]:
    """Every model as it will run, with its sockets in `folder`.

    Raises SettingsError, and without a file also MODEL_ERRORS.
    """
    names = _names(settings.models, setting_names)
    shares = _memory_shares(settings, setting_names)
    resolved: list[ServedModel] = []
    for index, model in enumerate(settings.models):
        shared = {key: getattr(model, key) for key in EngineSettings.__struct_fields__}
        options = EngineOptions(
            **shared,
            memory_share=shares[index],
            rerank=model.rerank,
            sources=(model.model,),
            stall_timeout=settings.stall_timeout,
            log_level=settings.log_level,
            setting_names=setting_names.of_engine(index),
        )
        prefix = str(folder / str(index))
        name, *aliases = names[index]
        with _named_in_errors(setting_names, index):
            source = model_folder(model.model, model.load_format)
            served = set_up_model(name, source, options, _limits(settings, model), prefix)
        resolved.append(msgspec.structs.replace(served, aliases=tuple(aliases)))
    return tuple(resolved)


def _limits(settings: Settings, model: ModelSettings) -> Limits:
    """The daemon's, but for what the model has of its own."""
    own = model.max_queue_seconds
    limits = settings.limits
    return limits if own is None else msgspec.structs.replace(limits, max_queue_seconds=own)


@contextmanager
def _named_in_errors(setting_names: SettingNames, index: int) -> Generator[None]:
    """Complaints about the model say which it is, and which of its keys is at fault."""
    try:
        yield
    except SetupError as error:
        raise SettingsError(f"{setting_names.of(error.key, index)}: {error.reason}") from None
    except MODEL_ERRORS as error:
        if setting_names.file is None:
            raise
        raise SettingsError(f"{setting_names.of('model', index)}: {error}") from None


def _names(models: tuple[ModelSettings, ...], setting_names: SettingNames) -> list[tuple[str, ...]]:
    """Each model's names, of which no two are the same."""
    names = [model.names or (_default_name(model.model),) for model in models]
    taken: set[str] = set()
    for index, own in enumerate(names):
        for name in own:
            place = setting_names.of("names", index)
            if not name.strip() or not name.isprintable():
                raise SettingsError(f"{place}: {name!r} is not a name")
            if name in taken:
                raise SettingsError(f"{place}: two models are called {name}")
            taken.add(name)
    return names


def _default_name(source: str) -> str:
    """A folder's own name; a hub id as it is."""
    path = Path(source).expanduser()
    return path.resolve().name if path.is_dir() else source


def _memory_shares(settings: Settings, setting_names: SettingNames) -> list[float]:
    tenants: list[Tenant] = []
    for index, model in enumerate(settings.models):
        with _named_in_errors(setting_names, index):
            devices = resolve_devices(model.device, model.pipeline_stages)
        cuda = tuple(device for device in devices if device != "cpu")
        tenants.append(Tenant(devices=cuda, share=model.memory_share))
    try:
        return divide(tenants, settings.memory_share)
    except SharesError as error:
        keys = [f"models[{index}].memory_share" for index in error.tenants]
        raise SettingsError(f"{setting_names.prefix(', '.join(keys))}{error}") from None
