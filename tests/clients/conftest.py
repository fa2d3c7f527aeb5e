"""The daemon that the clients are driven against. tests/e2e/users/test_clients.py starts it."""

import os
from typing import NamedTuple

import pytest


class Daemon(NamedTuple):
    """What a user of a client has to know: where, with which key, and the models' names."""

    url: str
    key: str
    generator: str = "penstock-demo"
    embedder: str = "all-MiniLM-L6-v2"
    classifier: str = "moods"


@pytest.fixture(scope="session")
def daemon() -> Daemon:
    return Daemon(os.environ["DAEMON_URL"], os.environ["DAEMON_KEY"])


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """The second is about pandas' food."""
    return [
        "Paris is the capital of France.",
        "The giant panda lives on bamboo.",
        "Interest rates rose in March.",
    ]
