"""Which fraction of its CUDA devices each engine may take, where several share one.

From that fraction `model_setup.py` takes the engine's bytes, `workers/stage/decode_runner.py` what
is left of them for the KV cache, and `engine_core/executor/capacity.py` the number of blocks.
"""

from collections.abc import Sequence

import msgspec

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
