"""A client of an engine that holds prompts back until those that begin alike are known."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine_core.client.encode_calls import AnswerT, CallKind
from engine_core.client.engine_client import EngineClient
from engine_core.client.job_options import NO_OPTIONS, JobOptions
from engine_core.client.pending_jobs import GenerateStream
from engine_core.config import EngineConfig
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.batch_files.answering.arrivals import Arrivals
from server.batches.bundles import Bundle, bundles, cut, ids_of
from server.batches.engine_run import Window

_ID_BYTES = 4


@dataclass(slots=True, eq=False)
class _HeldPrompt:
    """A prompt of a line that waits for its `stream`: None for one without tokens. `ids` are empty
    until `text` is tokenized. Implements `PromptRow`."""

    task: asyncio.Task[Any]
    text: tuple[str, bool]
    ids: bytes
    params: SamplingParams
    width: int
    cache_salt: str
    stream: asyncio.Future[GenerateStream | None]

    @property
    def tokens(self) -> int:
        return len(self.ids) // _ID_BYTES * self.width


class GroupingClient(EngineClient):
    """Jobs of lines wait here for room in the engine. Those of one prompt are held until `submit`,
    which finds the groups; others go as soon as there is room, those that are tried again at
    once."""

    def __init__(
        self, engine: EngineConfig, tokenizer: Tokenizer, arrivals: Arrivals, share: float
    ) -> None:
        """Uses at most this `share` of what the engine takes at once."""
        super().__init__(engine.client_endpoint)
        self.grouped = True
        self._tokenizer, self._arrivals = tokenizer, arrivals
        rows, tokens = engine.max_pending_rows, engine.max_pending_tokens
        self._most = (math.ceil(rows * share), math.ceil(tokens * share))
        self._room = Window(*self._most)
        self._held: list[_HeldPrompt] = []
        self._tokenized = 0

    def held(self) -> float:
        """How much waits for `submit`, as a part of what may be in the engine at once."""
        rows = sum(prompt.width for prompt in self._held) / self._most[0]
        return max(rows, sum(prompt.tokens for prompt in self._held) / self._most[1])

    async def generate(
        self,
        params: SamplingParams,
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        n: int = 1,
        options: JobOptions = NO_OPTIONS,
        on_row_end: Callable[[], None] | None = None,
    ) -> GenerateStream:
        """As `EngineClient` does, but later, and without priority and key: lines are of the batch
        class."""
        texts, ids = texts or [], ids or []
        tokenization, salt = options.tokenization, options.cache_salt
        if (task := self._arrivals.arrive()) is not None:
            if len(texts) + len(ids) == 1 and tokenization.truncate_to is None:
                text = (texts[0] if texts else "", tokenization.add_special_tokens)
                future = asyncio.get_running_loop().create_future()
                held = _HeldPrompt(task, text, b"".join(ids), params, n, salt, future)
                self._held.append(held)
                if (stream := await _released(held)) is not None:
                    return await _accepted(stream)
            await self._take(task, (len(texts) + len(ids)) * n, _size(texts, ids) * n)
        job = GenerateJob(
            self.new_id(),
            params=params,
            texts=texts,
            ids=ids,
            n=n,
            cache_salt=salt,
            tokenization=tokenization,
        )
        (stream,) = self.send_group(b"", [job])
        return await _accepted(stream)

    async def encode(
        self,
        kind: CallKind[AnswerT],
        *,
        texts: list[str] | None = None,
        ids: list[bytes] | None = None,
        query: str | list[str] | None = None,
        instruction: str | None = None,
        options: JobOptions = NO_OPTIONS,
    ) -> AnswerT:
        """As `EngineClient` does, once there is room."""
        if (task := self._arrivals.arrive()) is not None:
            count = len(texts or []) + len(ids or [])
            queries = [query] * count if isinstance(query, str) else query or []
            await self._take(task, count, _size([*(texts or []), *queries], ids or []))
        return await super().encode(
            kind,
            texts=texts,
            ids=ids,
            query=query,
            instruction=instruction,
            options=options,
        )

    async def tokenize(self) -> None:
        """Make the ids of held texts that have none."""
        new = self._held[self._tokenized :]
        self._tokenized = len(self._held)
        texts = [prompt for prompt in new if not prompt.ids]
        given = [prompt.text for prompt in texts]
        encoded = await asyncio.to_thread(ids_of, self._tokenizer, given)
        for prompt, ids in zip(texts, encoded, strict=True):
            prompt.ids = ids
            if not ids and not prompt.stream.done():
                prompt.stream.set_result(None)

    async def submit(self) -> None:
        """Submit what is held, group by group as there is room."""
        held = [prompt for prompt in self._held if not prompt.stream.done()]
        self._held, self._tokenized = [], 0
        groups = await asyncio.to_thread(lambda: list(bundles(held)))
        for group in groups:
            # The next part can come before the last line of the one before has ended.
            for part in cut(group, self._most[0] // 2, self._most[1] // 2):
                for prompt in part.rows:
                    await self._take(prompt.task, prompt.width, prompt.tokens)
                self._submit_part(part)

    def _submit_part(self, part: Bundle[_HeldPrompt]) -> None:
        own = part.prefix_len * _ID_BYTES
        first = part.rows[0]
        try:
            streams = self.generate_group(
                first.ids[:own],
                [(prompt.ids[own:], prompt.params) for prompt in part.rows],
                n=first.width,
                cache_salt=first.cache_salt,
            )
        except RefusalError as error:
            for prompt in part.rows:
                if not prompt.stream.done():
                    prompt.stream.set_exception(error)
            return
        for prompt, stream in zip(part.rows, streams, strict=True):
            if prompt.stream.done():  # its line is over
                stream.abort()
            else:
                prompt.stream.set_result(stream)

    async def _take(self, task: asyncio.Task[Any], rows: int, tokens: int) -> None:
        """Wait for room, until the task ends. The engine refuses what is larger than all of it."""
        if self._room.holds(rows, tokens):
            await self._room.take(rows, tokens)
            task.add_done_callback(lambda _: self._room.give(rows, tokens))


async def _released(held: _HeldPrompt) -> GenerateStream | None:
    """Its stream, once there is one. If nobody waits for it any more, it is aborted."""
    try:
        return await held.stream
    except asyncio.CancelledError:
        over = held.stream.cancelled() or held.stream.exception() is not None
        if not over and (stream := held.stream.result()) is not None:
            stream.abort()
        raise


async def _accepted(stream: GenerateStream) -> GenerateStream:
    try:
        await stream.accepted
    except asyncio.CancelledError:
        stream.abort()
        raise
    return stream


def _size(texts: list[str], ids: list[bytes]) -> int:
    """The most tokens that these may be: a text has at most one a byte."""
    return sum(len(text.encode()) for text in texts) + sum(map(len, ids)) // _ID_BYTES
