"""Tokenizing off the loop: threads that turn jobs' texts into ids, many texts a call."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from engine_core.job import Job
from engine_core.tokenizer import Tokenizer

Text = str | tuple[str, str]
_SLICE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One text's (or pair's) ids, int32 bytes, and segments, uint8 bytes (empty for one text)."""

    ids: bytes
    segments: bytes = b""


@dataclass(slots=True, eq=False)
class TokenizedJob:
    """A job on its way through a lane: what is done so far, or why it failed."""

    job: Job
    texts: list[Text]
    done: list[Tokenized] = field(default_factory=list[Tokenized])
    error: str | None = None

    def next_slice(self) -> list[Text]:
        """The next texts, about `_SLICE_BYTES` of them, at least one."""
        size, start = 0, len(self.done)
        for stop in range(start, len(self.texts)):
            size += _length(self.texts[stop])
            if size >= _SLICE_BYTES:
                return self.texts[start : stop + 1]
        return self.texts[start:]


class TokenizingThreads:
    """Two lanes, so that no long text delays a short one. `take` gives finished jobs; `fileno`
    becomes readable when there are some.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._finished: deque[TokenizedJob] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._short = _Lane("tokenize-short", tokenizer, self._finish)
        self._long = _Lane("tokenize-long", tokenizer, self._finish)

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._event

    def put(self, job: Job, texts: list[Text]) -> None:
        """Queue a job's texts."""
        long = any(_length(text) > _SLICE_BYTES for text in texts)
        (self._long if long else self._short).put(TokenizedJob(job, texts))

    def take(self) -> list[TokenizedJob]:
        """The jobs whose texts are all done, since the last call."""
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return []
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def _finish(self, jobs: list[TokenizedJob]) -> None:
        self._finished.extend(jobs)
        os.eventfd_write(self._event, 1)


class _Lane:
    """One thread. Jobs take turns slice by slice, and a call encodes the slices of all of them:
    the tokenizer fans a batch out over its own threads.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, finish: Callable[[list[TokenizedJob]], None]
    ) -> None:
        self._tokenizer = tokenizer
        self._finish = finish
        self._queue: queue.SimpleQueue[TokenizedJob] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, job: TokenizedJob) -> None:
        self._queue.put(job)

    def _run(self) -> None:
        active: deque[TokenizedJob] = deque()
        while True:
            if not active:
                active.append(self._queue.get())
            while not self._queue.empty():
                active.append(self._queue.get())
            self._turn(active)

    def _turn(self, active: deque[TokenizedJob]) -> None:
        """Encode one slice of as many jobs as fill a call, and put the unfinished ones back."""
        jobs: list[TokenizedJob] = []
        slices: list[list[Text]] = []
        size = 0
        while active and size < _SLICE_BYTES:
            jobs.append(active.popleft())
            slices.append([] if jobs[-1].job.ended else jobs[-1].next_slice())
            size += sum(map(_length, slices[-1]))
        self._encode(jobs, slices)
        finished = [job for job in jobs if _is_over(job)]
        active.extend(job for job in jobs if not _is_over(job))
        if finished:
            self._finish(finished)

    def _encode(self, jobs: list[TokenizedJob], slices: list[list[Text]]) -> None:
        texts = [text for part in slices for text in part]
        try:
            encodings = iter(self._tokenizer.raw.encode_batch_fast(texts))
        except Exception as error:  # tokenizers raises plain Exception; it is these jobs' alone
            for job in jobs:
                job.error = f"the text cannot be tokenized: {error}"
            return
        for job, part in zip(jobs, slices, strict=True):
            for text in part:
                encoding = next(encodings)
                ids = np.array(encoding.ids, np.int32).tobytes()
                paired = isinstance(text, tuple)
                segments = np.array(encoding.type_ids, np.uint8).tobytes() if paired else b""
                job.done.append(Tokenized(ids, segments))


def _is_over(job: TokenizedJob) -> bool:
    return job.error is not None or job.job.ended or len(job.done) == len(job.texts)


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
