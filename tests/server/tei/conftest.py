"""API processes before fake engines whose models TEI's endpoints serve."""

from collections.abc import Iterator

import pytest

from tests.server.conftest import House, HouseBuilder
from tests.server.fake_engine import Script
from tests.server.support import server_config
from tests.server.tei.tei_client import LABELS


@pytest.fixture(scope="package")
def open_tei_house(folder, tokenizer) -> Iterator[House]:
    houses = HouseBuilder(folder, tokenizer)
    models = [houses.model("tei-vectors", "embed"), houses.model("sorter", "classify", LABELS)]
    yield houses.open(server_config(*models))
    houses.close()


@pytest.fixture
def tei_house(open_tei_house) -> Iterator[House]:
    for engine in open_tei_house.engines.values():
        engine.script = Script()
        engine.received.clear()
    yield open_tei_house
    for engine in open_tei_house.engines.values():
        engine.script = Script()


@pytest.fixture(scope="package")
def open_splade_house(folder, tokenizer) -> Iterator[House]:
    houses = HouseBuilder(folder, tokenizer)
    models = [houses.model("splade", "embed_sparse"), houses.model("sorter2", "classify", LABELS)]
    yield houses.open(server_config(*models))
    houses.close()


@pytest.fixture
def splade_house(open_splade_house) -> Iterator[House]:
    engine = open_splade_house.engines["splade"]
    engine.script = Script()
    engine.received.clear()
    yield open_splade_house
    engine.script = Script()
