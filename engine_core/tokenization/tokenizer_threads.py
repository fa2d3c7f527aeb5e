"""Tokenizes the texts of jobs in threads, off the loop, many texts a call."""

import queue
import threading
import weakref
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from engine_core.job import Job, RefusalError
from engine_core.mailbox import Mailbox
from engine_core.messages import EncodeJob, GenerateJob, Tokenization
from engine_core.tokenization.fair_turns import FairTurns
from engine_core.tokenization.text_pieces import TextPieces, tokenize_pieces
from engine_core.tokenization.tokenized import Tokenized
from engine_core.tokenization.tokenizer import Tokenizer

Text = str | tuple[str, str] | TextPieces
_SLICE_BYTES = 64 * 1024
_ITEM = 4  # bytes of an int32


@dataclass(slots=True, eq=False)
class TokenizedJob:
    """A job and its items' ids, complete once `TokenizerThreads` has returned it; or the reason
    why its texts cannot be tokenized."""

    job: Job
    texts: list[Text]
    tokenized: list[Tokenized] = field(default_factory=list[Tokenized])
    refusal: RefusalError | None = None

    @property
    def key(self) -> int:
        """The number of its API key."""
        return self.job.message.key.number

    def next_slice(self) -> list[Text]:
        """The next texts, about `_SLICE_BYTES` of them, at least one."""
        size, start = 0, len(self.tokenized)
        for stop in range(start, len(self.texts)):
            size += _length(self.texts[stop])
            if size >= _SLICE_BYTES:
                return self.texts[start : stop + 1]
        return self.texts[start:]


def given_ids(message: GenerateJob | EncodeJob) -> list[Tokenized]:
    """A job's items that came as ids, truncated as the job's options say."""
    limit = message.tokenization.truncate_to
    if limit is None:
        return [Tokenized(ids) for ids in message.ids]
    left = message.tokenization.truncation_side == "left"
    size = limit * _ITEM
    return [
        Tokenized(ids[-size:] if left else ids[:size], dropped=max(len(ids) // _ITEM - limit, 0))
        for ids in message.ids
    ]


class TokenizerThreads:
    """Two threads, one for jobs with long texts, so that they delay no short ones. `take` returns
    the jobs that are tokenized; `fileno` is readable when there are some. The threads end when
    nobody holds this object.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenized: Mailbox[TokenizedJob] = Mailbox()
        self._short, self._long = (
            self._started_lane(name, tokenizer) for name in ("tokenize-short", "tokenize-long")
        )

    def _started_lane(self, name: str, tokenizer: Tokenizer) -> "_Lane":
        lane = _Lane(tokenizer, self._tokenized)
        threading.Thread(target=lane.run, name=name, daemon=True).start()
        weakref.finalize(self, lane.put, None)
        return lane

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._tokenized.fileno()

    def put(self, job: Job, texts: list[Text]) -> TokenizedJob | None:
        """Queue a job's texts. A job of ids has none, and is returned at once."""
        if not texts:
            return TokenizedJob(job, texts, given_ids(job.message))
        long = any(_length(text) > _SLICE_BYTES for text in texts)
        (self._long if long else self._short).put(TokenizedJob(job, texts))
        return None

    def take(self) -> list[TokenizedJob]:
        """The jobs that were tokenized, or could not be, since the last call."""
        return self._tokenized.take()


class _Lane:
    """One thread. API keys take turns, and the jobs of each are served slice by slice in rotation;
    one call encodes a slice of each: the tokenizer fans a batch out over its own threads.
    """

    def __init__(self, tokenizer: Tokenizer, tokenized: Mailbox[TokenizedJob]) -> None:
        self._tokenizer = tokenizer
        self._tokenized = tokenized
        self._queue: queue.SimpleQueue[TokenizedJob | None] = queue.SimpleQueue()

    def put(self, job: TokenizedJob | None) -> None:
        """Queue a job, or the end of the lane."""
        self._queue.put(job)

    def run(self) -> None:
        """Work in this thread, until the end is taken from the queue."""
        active: FairTurns[TokenizedJob] = FairTurns()
        while True:
            while not active or not self._queue.empty():
                if (job := self._queue.get()) is None:
                    return
                active.put(job, job.key)
            self._encode_slices(active)

    def _encode_slices(self, active: FairTurns[TokenizedJob]) -> None:
        """Encode one slice of as many jobs as fill a call, and put back those that have more."""
        jobs: list[TokenizedJob] = []
        slices: list[list[Text]] = []
        size = 0
        while active and size < _SLICE_BYTES:
            jobs.append(active.take())
            slices.append([] if jobs[-1].job.ended else jobs[-1].next_slice())
            size += sum(map(_length, slices[-1]))
        self._encode(jobs, slices)
        for job in jobs:
            if not _is_over(job):
                active.put(job, job.key)
        if over := [job for job in jobs if _is_over(job)]:
            self._tokenized.put(*over)

    def _encode(self, jobs: list[TokenizedJob], slices: list[list[Text]]) -> None:
        """Encode with one call for each run of jobs that agree about special tokens; texts in a
        template have a call for each job."""
        for (special, pieces), group in groupby(zip(jobs, slices, strict=True), key=_way):
            if pieces:
                for job, texts in group:
                    self._encode_pieces(job, texts)
            else:
                self._encode_alike(list(group), special)

    def _encode_pieces(self, job: TokenizedJob, texts: list[Text]) -> None:
        own = [text for text in texts if isinstance(text, TextPieces)]
        try:
            job.tokenized += tokenize_pieces(self._tokenizer, own, job.job.message.tokenization)
        except RefusalError as error:
            job.refusal = error
        except Exception as error:  # tokenizers raises plain Exception
            job.refusal = _not_tokenized(error)

    def _encode_alike(self, parts: list[tuple[TokenizedJob, list[Text]]], special: bool) -> None:
        batch = [text for _, texts in parts for text in texts]
        try:
            encodings = self._tokenizer.raw.encode_batch_fast(batch, add_special_tokens=special)
        except Exception as error:  # tokenizers raises plain Exception; it is these jobs' alone
            for job, _ in parts:
                job.refusal = _not_tokenized(error)
            return
        remaining = iter(encodings)
        for job, texts in parts:
            options = job.job.message.tokenization
            job.tokenized += [
                _tokenized(next(remaining), options, paired=isinstance(text, tuple))
                for text in texts
            ]


def _way(part: tuple[TokenizedJob, list[Text]]) -> tuple[bool, bool]:
    """Whether special tokens are added, and whether the texts are in a template: all are, or none
    is."""
    job, texts = part
    pieces = bool(texts) and isinstance(texts[0], TextPieces)
    return job.job.message.tokenization.add_special_tokens, pieces


def _not_tokenized(error: Exception) -> RefusalError:
    return RefusalError("invalid_request", f"the text cannot be tokenized: {error}")


def _tokenized(encoding: Encoding, options: Tokenization, *, paired: bool) -> Tokenized:
    ids = np.array(encoding.ids, np.int32)
    segments = np.array(encoding.type_ids if paired else [], np.uint8)
    limit = options.truncate_to
    if limit is None or len(ids) <= limit:
        return Tokenized(ids.tobytes(), segments.tobytes())
    kept = _kept(encoding, limit, left=options.truncation_side == "left")
    segments = segments[kept] if paired else segments
    return Tokenized(ids[kept].tobytes(), segments.tobytes(), len(ids) - len(kept))


def _kept(encoding: Encoding, limit: int, *, left: bool) -> npt.NDArray[np.intp]:
    """The positions of the `limit` tokens that truncation keeps.

    It removes tokens of the last text first, from its left or right end. If all other tokens (the
    first text of a pair, special tokens) are still more than `limit`, it removes those, from the
    same side.
    """
    sequences = np.array([-1 if at is None else at for at in encoding.sequence_ids])
    count = len(sequences)
    text = np.flatnonzero(sequences == max(sequences.max(), 0))
    excess = count - limit
    cut = text[:excess] if left else text[max(len(text) - excess, 0) :]
    kept = np.delete(np.arange(count), cut)
    return kept[-limit:] if left else kept[:limit]


def _is_over(job: TokenizedJob) -> bool:
    return job.refusal is not None or job.job.ended or len(job.tokenized) == len(job.texts)


def _length(text: Text) -> int:
    return len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)
