"""API processes before fake engines whose models TEI's endpoints serve."""

from collections.abc import Iterator

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.api.conftest import LABELS
from tests.server.conftest import Deployment, own_builder
from tests.server.support import server_config
from workers.contract.config import Task


def serving(tokenizer: Tokenizer, name: str, task: Task) -> Iterator[Deployment]:
    """One model of a task, and a classifier."""
    with own_builder(tokenizer) as builder:
        models = builder.model(name, task), builder.model("sorter", "classify", LABELS)
        yield builder.open(server_config(*models))


@pytest.fixture(scope="package")
def open_tei_deployment(tokenizer: Tokenizer) -> Iterator[Deployment]:
    yield from serving(tokenizer, "vectors", "embed")


@pytest.fixture(scope="package")
def open_splade_deployment(tokenizer: Tokenizer) -> Iterator[Deployment]:
    yield from serving(tokenizer, "splade", "embed_sparse")


@pytest.fixture
def tei_deployment(open_tei_deployment: Deployment) -> Deployment:
    open_tei_deployment.reset()
    return open_tei_deployment


@pytest.fixture
def splade_deployment(open_splade_deployment: Deployment) -> Deployment:
    open_splade_deployment.reset()
    return open_splade_deployment
