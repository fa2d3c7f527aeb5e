"""Tokenizes the texts of jobs in threads, off the loop, many texts a call."""

import queue
import threading
import weakref
from dataclasses import dataclass, field
from itertools import groupby

from engine_core.fair_queuing.fair_queue import FairQueue
from engine_core.fair_queuing.key_share import KeyShare
from engine_core.job import Job
from engine_core.mailbox import Mailbox
from engine_core.refusal import RefusalError
from engine_core.tokenization.long_item import LongItem
from engine_core.tokenization.text_pieces import TextPieces, tokenize_pieces
from engine_core.tokenization.text_slicer import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import Tokenized, given_ids, tokenized
from engine_core.tokenization.tokenizer import Tokenizer, not_tokenized

Text = str | tuple[str, str] | TextPieces


@dataclass(slots=True, eq=False)
class TokenizedJob:
    """A job and its items' ids, complete once `TokenizerThreads` has returned it; or the reason
    why its texts cannot be tokenized."""

    job: Job
    texts: list[Text]
    tokenized: list[Tokenized] = field(default_factory=list[Tokenized])
    refusal: RefusalError | None = None
    long_item: LongItem | None = None

    @property
    def key(self) -> KeyShare:
        """Its API key."""
        return self.job.message.key

    def next_slice(self) -> list[Text]:
        """The next texts, about `SLICE_CHARACTERS` of them, before one that is tokenized in parts:
        there are none where that is the next."""
        size, start = 0, len(self.tokenized)
        for stop in range(start, len(self.texts)):
            length = _length(self.texts[stop])
            if length > SLICE_CHARACTERS and not isinstance(self.texts[stop], TextPieces):
                return self.texts[start:stop]
            size += length
            if size >= SLICE_CHARACTERS:
                return self.texts[start : stop + 1]
        return self.texts[start:]

    def next_part(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Tokenize a part of the next text, which is long."""
        if self.long_item is None:
            text, options = self.texts[len(self.tokenized)], self.job.message.tokenization
            assert not isinstance(text, TextPieces)
            self.long_item = LongItem(tokenizer, text, options, max_model_len)
        if (whole := self.long_item.step()) is not None:
            self.tokenized.append(whole)
            self.long_item = None


class TokenizerThreads:
    """Two threads, one for jobs with long texts, so that they delay no short ones. `take` returns
    the jobs that are tokenized; `fileno` is readable when there are some. The threads end when
    nobody holds this object.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Texts of more than `max_model_len` tokens need not be tokenized further than that."""
        self._tokenized: Mailbox[TokenizedJob] = Mailbox()
        self._short, self._long = (
            self._started_lane(name, _Lane(tokenizer, max_model_len, self._tokenized))
            for name in ("tokenize-short", "tokenize-long")
        )

    def _started_lane(self, name: str, lane: "_Lane") -> "_Lane":
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
        long = any(_length(text) > SLICE_CHARACTERS for text in texts)
        (self._long if long else self._short).put(TokenizedJob(job, texts))
        return None

    def take(self) -> list[TokenizedJob]:
        """The jobs that were tokenized, or could not be, since the last call."""
        return self._tokenized.take()


class _Lane:
    """One thread. API keys take turns, and the jobs of each are served slice by slice in rotation;
    one call encodes a slice of each: the tokenizer fans a batch out over its own threads.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_model_len: int, tokenized: Mailbox[TokenizedJob]
    ) -> None:
        self._tokenizer, self._max_model_len = tokenizer, max_model_len
        self._tokenized = tokenized
        self._queue: queue.SimpleQueue[TokenizedJob | None] = queue.SimpleQueue()

    def put(self, job: TokenizedJob | None) -> None:
        """Queue a job, or the end of the lane."""
        self._queue.put(job)

    def run(self) -> None:
        """Work in this thread, until the end is taken from the queue."""
        active: FairQueue[TokenizedJob] = FairQueue()
        while True:
            while not active or not self._queue.empty():
                if (job := self._queue.get()) is None:
                    return
                active.put(job, job.key)
            self._encode_slices(active)

    def _encode_slices(self, active: FairQueue[TokenizedJob]) -> None:
        """Encode one slice of as many jobs as fill a call, and put back those that have more."""
        jobs: list[TokenizedJob] = []
        slices: list[list[Text]] = []
        size = 0
        while active and size < SLICE_CHARACTERS:
            job = active.take()
            jobs.append(job)
            slices.append([] if job.job.ended else job.next_slice())
            size += sum(map(_length, slices[-1]))
            if not slices[-1] and not job.job.ended:
                self._encode_part(job)
                size += SLICE_CHARACTERS
        self._encode(jobs, slices)
        for job in jobs:
            if not _is_over(job):
                active.put(job, job.key)
        if over := [job for job in jobs if _is_over(job)]:
            self._tokenized.put(*over)

    def _encode_part(self, job: TokenizedJob) -> None:
        try:
            job.next_part(self._tokenizer, self._max_model_len)
        except BaseException as error:
            job.refusal = _refusal(error)

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
            options = job.job.message.tokenization
            job.tokenized += tokenize_pieces(self._tokenizer, own, options, self._max_model_len)
        except BaseException as error:
            job.refusal = _refusal(error)

    def _encode_alike(self, parts: list[tuple[TokenizedJob, list[Text]]], special: bool) -> None:
        batch = [text for _, texts in parts for text in texts if not isinstance(text, TextPieces)]
        try:
            encodings = self._tokenizer.encodings(batch, add_special_tokens=special)
        except RefusalError as error:
            self._refuse_failed(parts, special, error)
            return
        remaining = iter(encodings)
        for job, texts in parts:
            options = job.job.message.tokenization
            job.tokenized += [
                tokenized(next(remaining), options, paired=isinstance(text, tuple))
                for text in texts
            ]

    def _refuse_failed(
        self, parts: list[tuple[TokenizedJob, list[Text]]], special: bool, error: RefusalError
    ) -> None:
        """Refuse the job whose text has failed: of several, each is encoded alone."""
        if len(parts) == 1:
            parts[0][0].refusal = _refusal(error)
            return
        for part in parts:
            self._encode_alike([part], special)


def _way(part: tuple[TokenizedJob, list[Text]]) -> tuple[bool, bool]:
    """Whether special tokens are added, and whether the texts are in a template: all are, or none
    is."""
    job, texts = part
    pieces = bool(texts) and isinstance(texts[0], TextPieces)
    return job.job.message.tokenization.add_special_tokens, pieces


def _refusal(error: BaseException) -> RefusalError:
    """Raises what is neither an Exception nor a panic."""
    if not isinstance(error, RefusalError):
        return not_tokenized(error)
    return error.copy()


def _is_over(job: TokenizedJob) -> bool:
    return job.refusal is not None or job.job.ended or len(job.tokenized) == len(job.texts)


def _length(text: Text) -> int:
    return len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)
