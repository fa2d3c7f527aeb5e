"""Clients of every kind who know what they must get: nothing lost, repeated or different."""

import asyncio
import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import httpx
import numpy as np

from benchmarks.attacks.target import EMBEDDER, GENERATOR

Body = dict[str, Any]
_CLIENT_SECONDS = 300.0
_PAUSE_SECONDS = 0.1


class Asked(NamedTuple):
    path: str
    body: Body


def _completion(**fields: Any) -> Asked:
    return Asked("/v1/completions", {"model": GENERATOR, "stream": True} | fields)


_PROMPTS = ("The function returns", "In this case, the interpreter will", "A file is opened and")
_GREEDY = {"temperature": 0, "ignore_eos": True}
_SAMPLED = {"temperature": 0.9, "top_p": 0.9, "ignore_eos": True}
_PENALTIES = {"presence_penalty": 0.3, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer"}},
    "required": ["name", "size"],
}
_TEXTS = [f"Sentence number {i} " + "is long " * (i * 7 % 40) for i in range(24)]

MIXED: tuple[Asked, ...] = (
    *(_completion(prompt=p, max_tokens=n, **_GREEDY) for p in _PROMPTS for n in (20, 160)),
    *(_completion(prompt=p, max_tokens=90, seed=3, n=2, **_SAMPLED) for p in _PROMPTS),
    _completion(prompt=_PROMPTS[0], max_tokens=120, seed=8, **_SAMPLED, **_PENALTIES),
    _completion(prompt=_PROMPTS[1], max_tokens=60, seed=9, logprobs=3, **_SAMPLED),
    _completion(prompt=_PROMPTS[2], max_tokens=200, seed=5, stop=[" the", "ing"]),
    _completion(prompt=_PROMPTS[0], max_tokens=80, min_tokens=30, seed=4, logit_bias={"394": -3.5}),
    _completion(prompt="{", max_tokens=120, seed=4, temperature=1, regex=r"[a-z]{20,60}\.[0-9]{9}"),
    _completion(
        prompt="As JSON:",
        max_tokens=150,
        seed=6,
        temperature=1,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}},
    ),
    _completion(prompt=_PROMPTS[1] * 20, max_tokens=1, prompt_logprobs=1, stream=False, **_GREEDY),
    Asked("/v1/embeddings", {"model": EMBEDDER, "input": _TEXTS}),
    Asked("/v1/rerank", {"model": EMBEDDER, "query": "long", "documents": _TEXTS}),
)
"""Greedy, sampled, penalised and constrained texts, with log-probabilities and stop strings; whole
answers; vectors and scores."""


class Answer:
    """What a client has got so far, as it compares it."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.over = False
        self.texts: defaultdict[int, str] = defaultdict(str)
        self.ends: dict[int, str] = {}
        self.numbers: list[float] = []
        self.body: Any = None

    def add_event(self, event: str) -> None:
        if event == "[DONE]":
            self.over = True
            return
        chunk = json.loads(event)
        if error := chunk.get("error"):
            self.error = error["code"]
        for choice in chunk.get("choices", ()):
            index = choice["index"]
            self.texts[index] += choice["text"]
            if choice["finish_reason"]:
                self.ends[index] = choice["finish_reason"]
            if choice.get("logprobs"):
                self.numbers += choice["logprobs"]["token_logprobs"]

    def add_body(self, status: int, body: Any) -> None:
        self.over = True
        if status != httpx.codes.OK:
            self.error = body.get("error", {}).get("code", str(status))
            return
        self.body = [
            [item.get("text"), item.get("finish_reason"), item.get("index")]
            for item in body.get("choices", body.get("data", body.get("results", ())))
        ]
        self.numbers = [*_numbers_in(body)]

    def equals(self, other: "Answer") -> bool:
        same = (self.texts, self.ends, self.body) == (other.texts, other.ends, other.body)
        return same and self._numbers_agree(other)

    def begins(self, other: "Answer") -> bool:
        """Whether the other one may go on from here."""
        texts = all(other.texts[index].startswith(text) for index, text in self.texts.items())
        return texts and self._numbers_agree(other)

    def _numbers_agree(self, other: "Answer") -> bool:
        common = min(len(self.numbers), len(other.numbers))
        return np.allclose(self.numbers[:common], other.numbers[:common], atol=1e-4)


def _numbers_in(value: Any) -> Iterator[float]:
    """All numbers of an answer that are no counts or times."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in {"usage", "created", "meta", "rank"}:
                yield from _numbers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers_in(inner)
    elif isinstance(value, float):
        yield value


class MixedLoad:
    """Clients in a thread, each of which asks again as soon as it is answered.

    outcomes  how often answers were the "same", "different" or "broken" off, or had an error's code
    wrong     what was asked where the answer was different
    longest_pause  seconds between two events of a stream, and where one waited for its first
    """

    def __init__(self, url: str, requests: Iterable[Asked] = MIXED) -> None:
        """Ask once for everything: these answers are right."""
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[Asked] = []
        self.longest_pause = 0.0
        self._url, self._requests = url, [*requests]
        self.last_update = time.monotonic()
        self._open: dict[Answer, float] = {}
        self._right = asyncio.run(self._ask_all())
        self._over = False
        self._thread: threading.Thread | None = None

    @property
    def oldest_update(self) -> float:
        """The time since which each open request has begun or got on."""
        return min([*self._open.values()], default=time.monotonic())

    def start(self, clients: int, seed: int) -> None:
        work = self._ask_again_and_again(clients, random.Random(seed))
        # A test that fails leaves it to its end.
        self._thread = threading.Thread(target=asyncio.run, args=(work,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the last answers."""
        self._over = True
        assert self._thread is not None
        self._thread.join()

    async def _ask_all(self) -> list[Answer]:
        async with self._client() as client:
            answers = [await self._answer(client, asked) for asked in self._requests]
        assert all(answer.over and not answer.error for answer in answers), "what is asked is wrong"
        return answers

    def _client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self._url, limits=limits, timeout=_CLIENT_SECONDS)

    async def _ask_again_and_again(self, clients: int, drawn: random.Random) -> None:
        async with self._client() as client, asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(self._visit(client, drawn))

    async def _visit(self, client: httpx.AsyncClient, drawn: random.Random) -> None:
        while not self._over:
            number = drawn.randrange(len(self._requests))
            asked, right = self._requests[number], self._right[number]
            answer = await self._answer(client, asked)
            if answer.over and not answer.error:
                is_right, outcome = answer.equals(right), "same"
            else:
                is_right, outcome = answer.begins(right), answer.error or "broken"
            if not is_right:
                self.wrong.append(asked)
            self.outcomes[outcome if is_right else "different"] += 1
            if outcome != "same":
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _answer(self, client: httpx.AsyncClient, asked: Asked) -> Answer:
        answer, last = Answer(), time.monotonic()
        self._open[answer] = last
        try:
            async with client.stream("POST", asked.path, json=asked.body) as response:
                if response.headers["content-type"].startswith("text/event-stream"):
                    async for line in response.aiter_lines():
                        if line.startswith("data: "):
                            answer.add_event(line.removeprefix("data: "))
                            last = self._note(answer, last)
                else:
                    await response.aread()
                    answer.add_body(response.status_code, response.json())
                    self._note(answer, last)
        except httpx.TransportError:
            pass
        finally:
            del self._open[answer]
        return answer

    def _note(self, answer: Answer, last: float) -> float:
        """Note that an answer has come or gone on, unless it is an error."""
        if answer.error:
            return last
        now = time.monotonic()
        self.longest_pause = max(self.longest_pause, now - last)
        self.last_update = self._open[answer] = now
        return now
