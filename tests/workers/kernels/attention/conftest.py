"""For tests of attention kernels."""

import pytest

from workers.attention import prefix_tiles


@pytest.fixture
def any_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_SAVED", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_TOKENS", 1)
    monkeypatch.setattr(prefix_tiles, "PREFIX_MIN_PART", 16)
