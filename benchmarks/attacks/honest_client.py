"""A client that asks for a little, once a second a model, whatever comes of it."""

import threading
import time
from typing import NamedTuple

from benchmarks.attacks.target import EMBEDDER, GENERATOR, Target

_TEXT = "The gate opens, water falls, and the turbine turns."
_QUESTIONS = {
    "/v1/completions": {"model": GENERATOR, "prompt": _TEXT, "max_tokens": 8},
    "/v1/chat/completions": {
        "model": GENERATOR,
        "messages": [{"role": "user", "content": _TEXT}],
        "max_tokens": 8,
    },
    "/v1/embeddings": {"model": EMBEDDER, "input": _TEXT},
}
_PERIOD_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0


class Answer(NamedTuple):
    """Its status, 0 for none, and how long it took."""

    status: int
    seconds: float


class HonestClient:
    """Asks each of its questions once a second, each over a connection of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._answers: list[Answer] = []

    def ask_for(self, seconds: float) -> list[Answer]:
        """All answers to what it asks within so many seconds."""
        self._answers = []
        threads: list[threading.Thread] = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for path in _QUESTIONS:
                threads.append(threading.Thread(target=self._ask, args=(path,)))
                threads[-1].start()
                time.sleep(_PERIOD_SECONDS / len(_QUESTIONS))
        for thread in threads:
            thread.join()
        return self._answers

    def _ask(self, path: str) -> None:
        started = time.perf_counter()
        status = self._target.ask(path, _QUESTIONS[path], _PATIENCE_SECONDS)
        self._answers.append(Answer(status, time.perf_counter() - started))
