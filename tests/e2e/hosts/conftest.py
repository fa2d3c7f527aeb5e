"""Tests of several hosts need network namespaces."""

import pytest

from tests.e2e.hosts.network import missing


@pytest.fixture(scope="session", autouse=True)
def _namespaces() -> None:
    why = missing()
    if why is not None:
        pytest.skip(why)
