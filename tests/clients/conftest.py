"""The daemon that the clients are driven against. tests/e2e/users/test_clients.py starts it."""

from typing import NamedTuple

import pytest


class Daemon(NamedTuple):
    """What a user of a client has to know: where, with which key, and the models' names."""

    url: str
    key: str
    generator: str = "penstock-demo"
    embedder: str = "all-MiniLM-L6-v2"
    classifier: str = "moods"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--url", required=True)
    parser.addoption("--key", required=True)


@pytest.fixture(scope="session")
def daemon(pytestconfig: pytest.Config) -> Daemon:
    return Daemon(pytestconfig.getoption("url"), pytestconfig.getoption("key"))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """The second is about pandas' food."""
    return [
        "Paris is the capital of France.",
        "The giant panda lives on bamboo.",
        "Interest rates rose in March.",
    ]
