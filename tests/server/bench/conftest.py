"""An engine that computes nothing, and what measures it; `penstock bench offline` on a CPU."""

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine_core.client.engine_client import EngineClient
from engine_core.tokenization.tokenizer import Tokenizer
from server import cli
from server.bench.offline import OfflineRunner
from server.daemon.run import RunningEngine
from tests.server.checkpoint_folders import write_json
from tests.server.fake_engine import FakeEngine
from tests.server.support import served_model

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
    folder: Path, tokenizer: Tokenizer
) -> AsyncIterator[tuple[FakeEngine, OfflineRunner]]:
    """An engine that says what it is told, and what measures it."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        endpoint = f"ipc://{directory}/engine"
        model = served_model("fake", "generate", folder, endpoint, vocab_size=400)
        with FakeEngine(endpoint, tokenizer) as engine:
            client = EngineClient(endpoint)
            await client.start()
            await client.wait_ready()
            yield engine, OfflineRunner(RunningEngine(client, model), prefix_caching=True)
            client.close()
