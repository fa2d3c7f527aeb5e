"""The daemons that the end-to-end tests share."""

from collections.abc import Generator

import pytest

from tests.e2e.daemon import Daemon, running


@pytest.fixture(scope="session")
def demo() -> Generator[Daemon]:
    """`penstock serve` with the demo models, one thread."""
    with running("--threads", "1") as daemon:
        yield daemon
