"""A completion that is streamed while something else happens."""

import json
import threading

import httpx

from tests.patience import PATIENCE


class Stream:
    """A completion of `tokens` tokens, read in a thread of its own; it has begun."""

    def __init__(self, url: str, tokens: int) -> None:
        self.tokens = 0  # what the last event counts
        self.whole = False
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, tokens))
        self._thread.start()
        assert self._begun.wait(PATIENCE)

    def _read(self, url: str, tokens: int) -> None:
        body = {
            "model": "penstock-demo",
            "prompt": "The Python interpreter",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
            for line in answer.iter_lines():
                self._begun.set()
                if line == "data: [DONE]":
                    self.whole = True
                elif line and (usage := json.loads(line.removeprefix("data: ")).get("usage")):
                    self.tokens = usage["completion_tokens"]

    def join(self) -> None:
        self._thread.join()
