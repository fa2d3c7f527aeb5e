"""Files of requests, and a backend that answers them without a model."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from server.batches.answering import Answer, Backend, Line, Put
from server.batches.file_job import FileJob, LineRules
from server.batches.results import Sharing
from tests.patience import PATIENCE

RULES = LineRules(max_line_bytes=1 << 20)


def line(custom_id: str, prompt: str = "a", **others: object) -> bytes:
    body = {"prompt": prompt, **others}
    given = {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(given).encode() + b"\n"


def numbered(count: int, prompt: str = "a") -> list[bytes]:
    return [line(str(number), prompt) for number in range(count)]


def write(folder: Path, *lines: bytes) -> Path:
    file = folder / "in.jsonl"
    file.write_bytes(b"".join(lines))
    return file


def job_of(source: Path, rules: LineRules = RULES, **options: str) -> FileJob:
    return FileJob(source, source.with_name("log"), rules=rules, options=options)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 (another thread changes it)
            await asyncio.sleep(0.005)


def outputs(file: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in file.read_text().splitlines()]


class Echo(Backend):
    """Answers each line with its own body, after a `pause` in seconds; `before` is called with the
    number of answers before each."""

    sharing: Sharing = "by token"

    def __init__(self, before: Callable[[int], None] = lambda _: None, pause: float = 0.0) -> None:
        self.asked: list[str] = []
        self._before, self._pause = before, pause

    async def answer(self, lines: Iterable[Line], put: Put) -> None:
        for each in lines:
            await asyncio.sleep(self._pause)
            self._before(len(self.asked))
            self.asked.append(each.custom_id)
            put(each, Answer(200, f"req-{each.index}", each.body))
