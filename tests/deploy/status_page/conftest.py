"""One browser for all tests of the page, and the daemons that it looks at."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.status_page.chromium import Chromium, Page
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import (
    HEADERS,
    guarded_arguments,
    write_classifier,
    write_models,
    write_sparse_embedder,
)

NASTY = "<script>alert(1)</script>"
"""The last name of every model of `guarded`."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
def page(browser: Chromium) -> Page:
    return browser.page()


@pytest.fixture(scope="session")
def demo() -> Iterator[Daemon]:
    """The demo models behind two API processes, open to everybody."""
    with running("--threads", "1", "--api-workers", "2") as daemon:
        yield daemon


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The demo models and a classifier with a key; the classifier's name is markup."""
    models = write_models(tmp_path_factory.mktemp("models"))
    *names, _ = models
    renamed = dict(zip([*names, NASTY], models.values(), strict=True))
    with running(*guarded_arguments(renamed)) as daemon:
        yield daemon


@pytest.fixture(scope="session")
def readers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The models `moods`, a classifier, and `splade`, which embeds texts as sparse vectors."""
    folder = tmp_path_factory.mktemp("readers")
    models = [write_classifier(folder / "moods"), write_sparse_embedder(folder / "splade")]
    with running(*map(str, models), "--threads", "1") as daemon:
        yield daemon


def status(daemon: Daemon, **headers: str) -> dict:
    """What /status tells."""
    return httpx.get(f"{daemon.url}/status", headers=HEADERS | headers).raise_for_status().json()


def axe_source() -> str:
    """axe-core, which `npm ci` installs."""
    tools = Path(__file__).parents[1] / "tools"
    return (tools / "node_modules" / "axe-core" / "axe.min.js").read_text()
