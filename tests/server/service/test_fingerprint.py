"""What a system fingerprint tells apart, and what it does not."""

from typing import Any

import msgspec
import pytest

from server.service.service import system_fingerprint
from tests.engine_core.configs import execution_config

CONFIG = execution_config()


@pytest.mark.parametrize(
    "changes",
    [
        {"worker_endpoint": "ipc:///other"},
        {"token_endpoint": "ipc:///other"},
        {"rendezvous": "/other"},
        {"kv_cache_bytes": CONFIG.kv_cache_bytes + 1},
        {"log_level": "debug"},
    ],
)
def test_another_start_has_the_same(changes: dict[str, Any]) -> None:
    other = msgspec.structs.replace(CONFIG, **changes)
    assert other != CONFIG
    assert system_fingerprint(other) == system_fingerprint(CONFIG)


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"devices": ("cpu", "cpu")},
        {"attention_backend": "naive"},
        {"model": msgspec.structs.replace(CONFIG.model, path="/other")},
    ],
)
def test_another_computation_has_another(changes: dict[str, Any]) -> None:
    other = msgspec.structs.replace(CONFIG, **changes)
    assert system_fingerprint(other) != system_fingerprint(CONFIG)


def test_another_release_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = system_fingerprint(CONFIG)
    monkeypatch.setattr("server.service.service.__version__", "99.0")
    assert system_fingerprint(CONFIG) != before
