"""The daemons that the end-to-end tests share."""

from collections.abc import Generator

import pytest

from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import guarded_arguments, write_models


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """`penstock serve` with the demo models, one thread, and a state folder."""
    state = tmp_path_factory.mktemp("state")
    with running("--threads", "1", "--priority-range=-1:1", "--state-dir", str(state)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def pipeline() -> Generator[Daemon]:
    """The same in two stages."""
    with running("--pipeline-stages", "2", "--threads", "1") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def full_daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """A generator that chats, an embedder and a classifier, for those who have the key."""
    arguments = guarded_arguments(write_models(tmp_path_factory.mktemp("models")))
    with running(*arguments, "--state-dir", str(tmp_path_factory.mktemp("state"))) as daemon:
        yield daemon
