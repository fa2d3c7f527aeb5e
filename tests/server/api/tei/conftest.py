"""API processes before fake engines whose models TEI's endpoints serve."""

from collections.abc import Iterator

import pytest

from tests.server.api.tei.tei_client import LABELS
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.fake_engine import Script
from tests.server.support import server_config


@pytest.fixture(scope="package")
def open_tei_deployment(folder, tokenizer) -> Iterator[Deployment]:
    builder = DeploymentBuilder(folder, tokenizer)
    models = [builder.model("tei-vectors", "embed"), builder.model("sorter", "classify", LABELS)]
    yield builder.open(server_config(*models))
    builder.close()


@pytest.fixture
def tei_deployment(open_tei_deployment) -> Iterator[Deployment]:
    for engine in open_tei_deployment.engines.values():
        engine.script = Script()
        engine.received.clear()
    yield open_tei_deployment
    for engine in open_tei_deployment.engines.values():
        engine.script = Script()


@pytest.fixture(scope="package")
def open_splade_deployment(folder, tokenizer) -> Iterator[Deployment]:
    builder = DeploymentBuilder(folder, tokenizer)
    models = [builder.model("splade", "embed_sparse"), builder.model("sorter2", "classify", LABELS)]
    yield builder.open(server_config(*models))
    builder.close()


@pytest.fixture
def splade_deployment(open_splade_deployment) -> Iterator[Deployment]:
    engine = open_splade_deployment.engines["splade"]
    engine.script = Script()
    engine.received.clear()
    yield open_splade_deployment
    engine.script = Script()
