"""Weights are compared in the process of the tests: each one of its own would import torch."""

import pytest

from workers.weights.loader import faults


@pytest.fixture(autouse=True)
def compared_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the process that `inspect` starts by a call of what runs in it."""
    monkeypatch.setattr(
        "server.models.inspection.weight_faults", lambda execution: list(faults(execution))
    )
