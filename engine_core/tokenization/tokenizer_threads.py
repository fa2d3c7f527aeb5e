"""Tokenizing off the loop: threads that turn jobs' texts into ids, many texts a call."""

import queue
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from engine_core.job import Job
from engine_core.mailbox import Mailbox
from engine_core.messages import EncodeJob, GenerateJob, Tokenization
from engine_core.tokenization.tokenizer import Tokenizer

Text = str | tuple[str, str]
_SLICE_BYTES = 64 * 1024
_ITEM = 4  # bytes of an int32


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One text's (or pair's) ids, int32 bytes, and segments, uint8 bytes (empty for one text).

    `dropped` counts the tokens that truncation took away.
    """

    ids: bytes
    segments: bytes = b""
    dropped: int = 0


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


def given_ids(message: GenerateJob | EncodeJob) -> list[Tokenized]:
    """A job's items that came as ids, cut where the job wishes it."""
    limit = message.tokenization.truncate_to
    if limit is None:
        return [Tokenized(ids) for ids in message.ids]
    left = message.tokenization.truncation_side == "left"
    size = limit * _ITEM
    return [
        Tokenized(ids[-size:] if left else ids[:size], dropped=max(len(ids) // _ITEM - limit, 0))
        for ids in message.ids
    ]


class TokenizingThreads:
    """Two lanes, so that no long text delays a short one. `take` gives finished jobs; `fileno`
    becomes readable when there are some. The threads end when nobody holds this object.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._finished: Mailbox[TokenizedJob] = Mailbox()
        self._short, self._long = (
            self._started_lane(name, tokenizer) for name in ("tokenize-short", "tokenize-long")
        )

    def _started_lane(self, name: str, tokenizer: Tokenizer) -> "_Lane":
        lane = _Lane(tokenizer, self._finished)
        threading.Thread(target=lane.run, name=name, daemon=True).start()
        weakref.finalize(self, lane.put, None)
        return lane

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._finished.fileno()

    def put(self, job: Job, texts: list[Text]) -> None:
        """Queue a job's texts."""
        long = any(_length(text) > _SLICE_BYTES for text in texts)
        (self._long if long else self._short).put(TokenizedJob(job, texts))

    def take(self) -> list[TokenizedJob]:
        """The jobs whose texts are all done, since the last call."""
        return self._finished.take()


class _Lane:
    """One thread. Jobs are served slice by slice in rotation, and one call encodes a slice of each:
    the tokenizer fans a batch out over its own threads.
    """

    def __init__(self, tokenizer: Tokenizer, finished: Mailbox[TokenizedJob]) -> None:
        self._tokenizer = tokenizer
        self._finished = finished
        self._queue: queue.SimpleQueue[TokenizedJob | None] = queue.SimpleQueue()

    def put(self, job: TokenizedJob | None) -> None:
        """Queue a job, or the end of the lane."""
        self._queue.put(job)

    def run(self) -> None:
        """Work in this thread, until the end is taken from the queue."""
        active: deque[TokenizedJob] = deque()
        while True:
            while not active or not self._queue.empty():
                if (job := self._queue.get()) is None:
                    return
                active.append(job)
            self._encode_slices(active)

    def _encode_slices(self, active: deque[TokenizedJob]) -> None:
        """Encode one slice of as many jobs as fill a call, and put the unfinished ones back."""
        jobs: list[TokenizedJob] = []
        slices: list[list[Text]] = []
        size = 0
        while active and size < _SLICE_BYTES:
            jobs.append(active.popleft())
            slices.append([] if jobs[-1].job.ended else jobs[-1].next_slice())
            size += sum(map(_length, slices[-1]))
        self._encode(jobs, slices)
        active.extend(job for job in jobs if not _is_over(job))
        if finished := [job for job in jobs if _is_over(job)]:
            self._finished.put(*finished)

    def _encode(self, jobs: list[TokenizedJob], slices: list[list[Text]]) -> None:
        """One call for all neighbours that want special tokens, or do not."""
        turns = zip(jobs, slices, strict=True)
        for special, group in groupby(turns, key=_adds_special_tokens):
            self._encode_alike(list(group), special)

    def _encode_alike(self, turns: list[tuple[TokenizedJob, list[Text]]], special: bool) -> None:
        texts = [text for _, part in turns for text in part]
        try:
            encodings = self._tokenizer.raw.encode_batch_fast(texts, add_special_tokens=special)
        except Exception as error:  # tokenizers raises plain Exception; it is these jobs' alone
            for job, _ in turns:
                job.error = f"the text cannot be tokenized: {error}"
            return
        remaining = iter(encodings)
        for job, part in turns:
            wishes = job.job.message.tokenization
            job.done += [
                _tokenized(next(remaining), wishes, paired=isinstance(text, tuple)) for text in part
            ]


def _adds_special_tokens(turn: tuple[TokenizedJob, list[Text]]) -> bool:
    return turn[0].job.message.tokenization.add_special_tokens


def _tokenized(encoding: Encoding, wishes: Tokenization, *, paired: bool) -> Tokenized:
    ids = np.array(encoding.ids, np.int32)
    segments = np.array(encoding.type_ids if paired else [], np.uint8)
    limit = wishes.truncate_to
    if limit is None or len(ids) <= limit:
        return Tokenized(ids.tobytes(), segments.tobytes())
    kept = _kept(encoding, limit, left=wishes.truncation_side == "left")
    segments = segments[kept] if paired else segments
    return Tokenized(ids[kept].tobytes(), segments.tobytes(), len(ids) - len(kept))


def _kept(encoding: Encoding, limit: int, *, left: bool) -> npt.NDArray[np.intp]:
    """The `limit` positions that stay when the last text of an encoding is cut on one side.

    Where the other tokens alone are more than that, they are cut as well.
    """
    sequences = np.array([-1 if at is None else at for at in encoding.sequence_ids])
    count = len(sequences)
    text = np.flatnonzero(sequences == max(sequences.max(), 0))
    excess = count - limit
    cut = text[:excess] if left else text[max(len(text) - excess, 0) :]
    kept = np.delete(np.arange(count), cut)
    return kept[-limit:] if left else kept[:limit]


def _is_over(job: TokenizedJob) -> bool:
    return job.error is not None or job.job.ended or len(job.done) == len(job.texts)


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
