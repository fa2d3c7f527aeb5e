"""A daemon with the demo generator and a state folder, and its batches."""

import time
from contextlib import AbstractContextManager
from pathlib import Path

import openai

from server.demo import GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.patience import PATIENCE, wait_until
from tests.server.batches.requests_file import line


def storing(folder: Path, *arguments: str) -> AbstractContextManager[Daemon]:
    """A daemon that keeps its state in `folder`."""
    model = str(demo_models()[GENERATOR_NAME])
    return running(model, "--threads", "1", "--state-dir", str(folder), *arguments)


def lines(count: int, tokens: int = 8) -> bytes:
    texts = ((str(number), f"The dam number {number}") for number in range(count))
    return b"".join(line(custom_id, text, max_tokens=tokens) for custom_id, text in texts)


def client_of(daemon: Daemon, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key=key, max_retries=0)


def begin(client: openai.OpenAI, contents: bytes) -> str:
    """Start a batch, and wait until some of its lines are answered."""
    file = client.files.create(file=("in.jsonl", contents), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )

    def is_under_way() -> bool:
        counts = client.batches.retrieve(batch.id).request_counts
        return counts is not None and 0 < counts.completed < counts.total

    wait_until(is_under_way)
    return batch.id


def ended(client: openai.OpenAI, batch_id: str) -> openai.types.Batch:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        batch = client.batches.retrieve(batch_id)
        if batch.status not in ("validating", "in_progress", "finalizing", "cancelling"):
            return batch
        time.sleep(0.1)
    raise AssertionError(f"not over: {client.batches.retrieve(batch_id)}")
