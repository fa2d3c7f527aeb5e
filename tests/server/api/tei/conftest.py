"""API processes before fake engines whose models TEI's endpoints serve."""

from collections.abc import Iterator

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.api.conftest import LABELS
from tests.server.conftest import Deployment, own_builder
from tests.server.support import server_config


@pytest.fixture(scope="package")
def open_tei_deployments(tokenizer: Tokenizer) -> Iterator[list[Deployment]]:
    """One with an embedder, one with a SPLADE model, each beside a classifier."""
    with own_builder(tokenizer) as builder:
        dense = builder.model("vectors", "embed"), builder.model("sorter", "classify", LABELS)
        sparse = builder.model("splade", "embed_sparse"), builder.model("other", "classify", LABELS)
        yield [builder.open(server_config(*models)) for models in (dense, sparse)]


@pytest.fixture
def tei_deployment(open_tei_deployments: list[Deployment]) -> Deployment:
    open_tei_deployments[0].reset()
    return open_tei_deployments[0]


@pytest.fixture
def splade_deployment(open_tei_deployments: list[Deployment]) -> Deployment:
    open_tei_deployments[1].reset()
    return open_tei_deployments[1]
