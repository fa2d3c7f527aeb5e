"""Prompts that begin alike go to the engine as groups. Nothing else of the server knows of groups.

Each prompt of a window of lines is held where its handler submits it, until all have come; then the
groups are found, and sent as there is room.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from engine_core.client.encode_calls import EncodeCall
from engine_core.client.pending_jobs import GenerateStream
from engine_core.config import EngineConfig
from engine_core.messages import Accepted, EncodeJob, GenerateGroup, GenerateJob
from engine_core.prefix_groups.find_groups import find_groups
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server.batches.base import Line
from server.batches.batch_client import ID_BYTES, BatchClient

_LINES, _BYTES = 1024, 32 << 20
"""A window of lines."""
_UNSHARED_AT_ONCE = 64
"""Prompts that share nothing, in one message."""


class Grouping:
    """The clients of all engines, and which lines have begun without having come to one."""

    def __init__(self) -> None:
        self._clients: list[GroupingClient] = []
        self._coming: set[asyncio.Task[Any]] = set()
        self._all_came = asyncio.Event()

    def client(self, engine: EngineConfig, tokenizer: Tokenizer, share: float) -> "GroupingClient":
        """A client that uses at most this `share` of what the engine takes at once."""
        self._clients.append(GroupingClient(engine, tokenizer, share, self))
        return self._clients[-1]

    async def submit(self, begun: Sequence[asyncio.Task[Any]]) -> None:
        """Wait until all of `begun` have come to their engines or are over, and send the groups."""
        self._coming.update(begun)
        self._all_came.clear()
        for task in begun:
            task.add_done_callback(self._leave)
        await self._all_came.wait()
        await asyncio.gather(*[client.submit_held() for client in self._clients])

    def arrive(self) -> asyncio.Task[Any] | None:
        """The running task, if it is a line that comes to its engine for the first time."""
        task = asyncio.current_task()
        if task not in self._coming:
            return None
        self._leave(task)
        return task

    def _leave(self, task: asyncio.Task[Any]) -> None:
        self._coming.discard(task)
        if not self._coming:
            self._all_came.set()


@dataclass(slots=True, eq=False)
class HeldPrompt:
    """A job of one prompt that waits until it has been `sent` (False: as it is not tokenized, it
    is to go alone). `ids` are empty until they are made."""

    task: asyncio.Task[Any]
    message: GenerateJob
    waiting: GenerateStream | EncodeCall[Any, Any]
    ids: bytes
    sent: asyncio.Future[bool]

    @property
    def tokens(self) -> int:
        """Tokens of all its sequences together."""
        return len(self.ids) // ID_BYTES * self.message.n


class GroupingClient(BatchClient):
    """Holds the prompts of lines until their groups are known."""

    def __init__(
        self, engine: EngineConfig, tokenizer: Tokenizer, share: float, grouping: Grouping
    ) -> None:
        super().__init__(engine, share)
        self._tokenizer, self._grouping = tokenizer, grouping
        self._held: list[HeldPrompt] = []

    async def _submit(
        self,
        job: int,
        waiting: GenerateStream | EncodeCall[Any, Any],
        message: GenerateJob | EncodeJob,
    ) -> Accepted:
        task = self._grouping.arrive()
        if task is not None and isinstance(message, GenerateJob) and _may_share(message):
            sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._held.append(HeldPrompt(task, message, waiting, b"".join(message.ids), sent))
            try:
                if await sent:
                    return await waiting.accepted
            except asyncio.CancelledError:
                self._drop(job)
                raise
        return await super()._submit(job, waiting, message)

    async def submit_held(self) -> None:
        """Send what is held, group by group as there is room."""
        held, self._held = [each for each in self._held if not each.sent.done()], []
        for prefix_len, prompts in await asyncio.to_thread(self._grouped, held):
            # The next part can come before the last line of the one before has ended.
            rows, tokens = self.room.most
            for part in cut(prompts, rows // 2, tokens // 2):
                for prompt in part:
                    await self.hold(prompt.task, prompt.message.n, prompt.tokens)
                self._send_group(prefix_len, part)
        for prompt in held:
            if not prompt.sent.done():
                prompt.sent.set_result(False)

    def _grouped(self, held: Sequence[HeldPrompt]) -> list[tuple[int, list[HeldPrompt]]]:
        new = [prompt for prompt in held if not prompt.ids]
        texts = [(p.message.texts[0], p.message.tokenization.add_special_tokens) for p in new]
        for prompt, ids in zip(new, ids_of(self._tokenizer, texts), strict=True):
            prompt.ids = ids
        return list(groups_of([prompt for prompt in held if prompt.ids]))

    def _send_group(self, prefix_len: int, prompts: Sequence[HeldPrompt]) -> None:
        own = prefix_len * ID_BYTES
        prompts = [prompt for prompt in prompts if not prompt.sent.done()]  # their lines go on
        try:
            self._check_alive()
        except RefusalError as error:
            for prompt in prompts:
                prompt.sent.set_exception(error.copy())
            return
        jobs: list[GenerateJob] = []
        for prompt in prompts:
            self._jobs[prompt.message.id] = prompt.waiting
            jobs.append(msgspec.structs.replace(prompt.message, texts=[], ids=[prompt.ids[own:]]))
            prompt.sent.set_result(True)
        if jobs:
            self.send(GenerateGroup(prefix=prompts[0].ids[:own], jobs=jobs))


def windows(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Neighbouring lines, in which groups are looked for together."""
    window: list[Line] = []
    size = 0
    for line in lines:
        window.append(line)
        size += len(line.body)
        if len(window) == _LINES or size >= _BYTES:
            yield window
            window, size = [], 0
    if window:
        yield window


def groups_of(held: Sequence[HeldPrompt]) -> Iterator[tuple[int, list[HeldPrompt]]]:
    """How many tokens some prompts begin with alike, and these, those with a shared prefix first.
    Prompts of different cache salts, or numbers of choices, are not together."""
    alike: defaultdict[tuple[str, int], list[HeldPrompt]] = defaultdict(list)
    for prompt in held:
        alike[prompt.message.cache_salt, prompt.message.n].append(prompt)
    for own in alike.values():
        for prefix_len, members in find_groups([prompt.ids for prompt in own]):
            most = len(members) if prefix_len else _UNSHARED_AT_ONCE
            for start in range(0, len(members), most):
                yield prefix_len, [own[int(i)] for i in members[start : start + most]]


def cut(prompts: Sequence[HeldPrompt], rows: int, tokens: int) -> Iterator[list[HeldPrompt]]:
    """Parts of at most so many sequences and tokens (but one prompt at least)."""
    part: list[HeldPrompt] = []
    sequences = size = 0
    for prompt in prompts:
        sequences, size = sequences + prompt.message.n, size + prompt.tokens
        if part and (sequences > rows or size > tokens):
            yield part
            part, sequences, size = [], prompt.message.n, prompt.tokens
        part.append(prompt)
    yield part


def ids_of(tokenizer: Tokenizer, texts: Sequence[tuple[str, bool]]) -> list[bytes]:
    """The ids (int32 bytes) of each text, with special tokens added or not. A text that cannot be
    tokenized has none: the engine refuses it."""
    ids = [b""] * len(texts)
    for special in {special for _, special in texts}:
        own = [at for at, (_, each) in enumerate(texts) if each == special]
        encoded = _encoded(tokenizer, [texts[at][0] for at in own], special)
        for at, tokens in zip(own, encoded, strict=True):
            ids[at] = tokens
    return ids


def _encoded(tokenizer: Tokenizer, texts: list[str], special: bool) -> list[bytes]:
    try:
        return tokenizer.encode(texts, add_special_tokens=special)
    except RefusalError:
        if len(texts) == 1:
            return [b""]
        return [ids for text in texts for ids in _encoded(tokenizer, [text], special)]


def _may_share(message: GenerateJob) -> bool:
    """Whether it has one prompt, whose ids can be known here."""
    one = len(message.texts) + len(message.ids) == 1
    return one and all(message.ids) and message.tokenization.truncate_to is None
