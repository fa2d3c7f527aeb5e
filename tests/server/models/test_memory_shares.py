"""Engines that share devices: what each gets, and what cannot be."""

import re

import pytest

from server.models.served_models import divide_memory
from server.settings.settings import ModelSettings, SettingNames, Settings, SettingsError

Tenant = tuple[tuple[str, ...], float | None]
"""The devices of an engine, and its share of each if it was given one."""


def on(first: int, stages: int = 1, share: float | None = None) -> Tenant:
    return tuple(f"cuda:{n}" for n in range(first, first + stages)), share


def divided(tenants: list[Tenant]) -> list[float]:
    models = tuple(ModelSettings(model="m", memory_share=share) for _, share in tenants)
    devices = [own for own, _ in tenants]
    names = SettingNames(file="a.yaml")
    return divide_memory(Settings(models=models, memory_share=0.9), devices, names)


CPU: Tenant = ((), None)


@pytest.mark.parametrize(
    ("tenants", "shares"),
    [
        ([], []),
        ([on(0)], [0.9]),
        ([CPU, CPU], [0.9, 0.9]),
        ([on(0), CPU, on(1)], [0.9, 0.9, 0.9]),
        ([on(0), on(0), on(0)], [0.3, 0.3, 0.3]),
        ([on(0, share=0.5), on(0), on(0)], [0.5, 0.2, 0.2]),
        ([on(0, share=0.7), on(0, share=0.3)], [0.7, 0.3]),
        ([on(0, share=0.1), on(0, share=0.2), on(0, share=0.7)], [0.1, 0.2, 0.7]),
        # Two stages, of which one has a neighbour: both are as large as it leaves room for.
        ([on(0, 2), on(1)], [0.45, 0.45]),
        ([on(0, 2), on(1, share=0.6), on(0)], [0.3, 0.6, 0.45]),
    ],
    ids=str,
)
def test_shares(tenants: list[Tenant], shares: list[float]) -> None:
    assert divided(tenants) == pytest.approx(shares)


def test_the_device_that_is_given_twice_is_named() -> None:
    message = "models[0].memory_share, models[1].memory_share: 1.4 of cuda:4, more than all of it"
    with pytest.raises(SettingsError, match=f"^a.yaml: {re.escape(message)}$"):
        divided([on(3, 2, share=0.7), on(4, share=0.7)])
