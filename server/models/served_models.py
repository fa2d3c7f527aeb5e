"""Every model of a daemon, from its settings to its frozen configuration: its names, limits, share.

`model_setup.py` decides everything else that its settings leave open.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine_core.tokenization.tokenizer import TokenizerError
from server.models.model_setup import EngineOptions, set_up_model
from server.models.model_source import ModelSourceError, SetupError, model_folder
from server.models.placement import Cluster, place_stages
from server.settings.settings import (
    EngineSettings,
    Limits,
    ModelSettings,
    ServedModel,
    SettingNames,
    Settings,
    SettingsError,
)
from workers.contract.model_config import ModelConfigError

_ROUNDING = 1e-9

MODEL_ERRORS = (ModelConfigError, ModelSourceError, TokenizerError)
"""Errors of a model itself. Each message is one line."""


def build_served_models(
    settings: Settings,
    setting_names: SettingNames,
    folder: Path,
    cluster: Cluster | None = None,
) -> tuple[ServedModel, ...]:
    """Every model as it will run, with its sockets in `folder`. A `cluster` has one model.

    Raises SettingsError, and without a file also MODEL_ERRORS.
    """
    names = _names(settings.models, setting_names)
    known, default = [name for own in names for name in own], settings.default_model
    if default is not None and default not in known:
        where = setting_names.of("default_model")
        raise SettingsError(f"{where}: no model is called {default} ({', '.join(known)})")
    shares = _memory_shares(settings, setting_names, cluster)
    resolved: list[ServedModel] = []
    for index, model in enumerate(settings.models):
        shared = {key: getattr(model, key) for key in EngineSettings.__struct_fields__}
        options = EngineOptions(
            **shared,
            memory_share=shares[index],
            cluster=cluster,
            rerank=model.rerank,
            sources=(model.model,),
            stall_timeout=settings.stall_timeout,
            startup_timeout=settings.startup_timeout,
            max_restarts=settings.max_restarts,
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
    own = model.max_queue_seconds
    return settings if own is None else msgspec.structs.replace(settings, max_queue_seconds=own)


@contextmanager
def _named_in_errors(setting_names: SettingNames, index: int) -> Generator[None]:
    """Name the model, and the key at fault, in its errors."""
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
    """A folder's own name. A hub id as it is."""
    path = Path(source).expanduser()
    return path.resolve().name if path.is_dir() else source


def _memory_shares(
    settings: Settings, setting_names: SettingNames, cluster: Cluster | None
) -> list[float]:
    devices: list[tuple[str, ...]] = []
    for index, model in enumerate(settings.models):
        with _named_in_errors(setting_names, index):
            copies = model.data_parallel_size
            own = place_stages(model.device, model.pipeline_stages, cluster, copies).devices
        devices.append(tuple(device for device in own if device != "cpu"))
    return divide_memory(settings, devices, setting_names)


def divide_memory(
    settings: Settings, devices: Sequence[tuple[str, ...]], setting_names: SettingNames
) -> list[float]:
    """Each model's share of each of its CUDA `devices`.

    A share that was given is kept. The other models on a device divide the rest of the daemon's
    share evenly. A model with several devices takes its smallest share on each. What follows from
    it: `model_setup.py` (bytes), `workers/stage/kv_budget.py` (what is left for the KV cache) and
    `engine_core/executor/stage_link.py` (blocks).

    Raises SettingsError where the given shares exceed a device, or leave nothing to the others.
    """
    given, total = [model.memory_share for model in settings.models], settings.memory_share
    rest: dict[str, float] = {}
    for device in sorted({device for own in devices for device in own}):
        here = [index for index, own in enumerate(devices) if device in own]
        named = [index for index in here if given[index] is not None]
        taken = sum(given[index] or 0 for index in named)
        others = len(here) - len(named)
        fault = None
        if taken > 1 + _ROUNDING:
            fault = "more than all of it"
        elif others and taken >= total - _ROUNDING:
            fault = f"nothing of {total:.4g} is left to others"
        if fault is not None:
            keys = ", ".join(f"models[{index}].memory_share" for index in named)
            where = setting_names.of(keys)
            raise SettingsError(f"{where}: {taken:.4g} of {device}, {fault}")
        rest[device] = (total - taken) / others if others else 0.0
    return [
        min((rest[device] for device in own), default=total) if share is None else share
        for own, share in zip(devices, given, strict=True)
    ]
