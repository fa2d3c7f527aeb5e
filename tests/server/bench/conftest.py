"""An engine that computes nothing, and what measures it."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine_core.client.engine_client import EngineClient
from engine_core.tokenization.tokenizer import Tokenizer
from server.bench.offline import OfflineRunner
from server.daemon.run import RunningEngine
from tests.server.fake_engine import FakeEngine
from tests.server.support import served_model


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
