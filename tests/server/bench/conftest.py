"""An engine that computes nothing, and what measures it; `penstock bench offline` on a CPU."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.client.engine_client import EngineClient
from engine_core.client.engines import Engines
from engine_core.tokenization.tokenizer import Tokenizer
from server import cli
from server.bench.offline import OfflineRunner
from server.daemon.run import RunningEngine
from tests.server.checkpoint_folders import write_json
from tests.server.conftest import DeploymentBuilder
from tests.server.fake_engine import FakeEngine

ON_CPU = ("--device", "cpu", "--threads", "1")


def write_shape(folder: Path, config: dict[str, Any]) -> str:
    folder.mkdir()
    write_json(folder / "config.json", config | {"vocab_size": 20_480})
    return str(folder)


def bench(*arguments: str) -> int:
    return cli.main(["bench", "offline", *arguments, *ON_CPU])


def cases_of(folder: Path, config: dict[str, Any], *arguments: str, code: int = 0) -> Any:
    """What `penstock bench offline` reports of its cases, on a model of `config`."""
    kept = folder / "out.json"
    shape = write_shape(folder / "tiny", config)
    assert bench("--shape", shape, "--json", str(kept), *arguments) == code
    return json.loads(kept.read_bytes())["cases"]


@pytest.fixture
async def fake(
    builder: DeploymentBuilder, tokenizer: Tokenizer
) -> AsyncIterator[tuple[FakeEngine, OfflineRunner]]:
    """An engine that says what it is told, and what measures it."""
    model = builder.model("fake", "generate")
    with FakeEngine(model.engine.client_endpoint, tokenizer) as engine:
        client = EngineClient(model.engine.client_endpoint)
        client.start()
        await client.wait_ready()
        running = RunningEngine(Engines([client]), model)
        yield engine, OfflineRunner(running, 1.5, prefix_caching=True)
        client.close()
