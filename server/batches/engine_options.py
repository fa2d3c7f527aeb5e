"""The options of an engine from keyword arguments, named as in `penstock.yaml`."""

import argparse
from collections.abc import Mapping

import msgspec

from server.models.model_setup import EngineOptions
from server.settings.setting_types import parse_size
from server.settings.settings import EngineSettings

_KEYS = (*EngineSettings.__struct_fields__, "memory_share", "rerank")
_SIZE = "kv_cache_memory"


def engine_options(settings: Mapping[str, object]) -> EngineOptions:
    """Raises ValueError, naming the setting."""
    for key in settings:
        if key not in _KEYS:
            raise ValueError(f"{key}: there is no such setting; there are {', '.join(_KEYS)}")
    given = dict(settings)
    names = {key: key for key in (*_KEYS, "stall_timeout")}
    try:
        if isinstance(size := given.get(_SIZE), str):
            given[_SIZE] = parse_size(size)
        return msgspec.convert(
            {"log_level": "warning", "setting_names": names, **given}, EngineOptions
        )
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{_SIZE}: {error}") from None
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        raise ValueError(f"{where.rstrip('`')}: {reason}") from None
