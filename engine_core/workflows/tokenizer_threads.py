"""Tokenizes the texts of jobs in threads, off the loop, many texts a call."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING

from engine_core.loop.fair_queue import FairQueue, Mailbox
from engine_core.loop.jobs import Job
from engine_core.messages import KeyShare
from engine_core.refusal import RefusalError
from engine_core.tokenization.continuation import Piece, tokenize_each, tokenize_long_piece
from engine_core.tokenization.sliced_text import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import (
    TextPieces,
    Tokenized,
    WholeText,
    given_ids,
    tokenize_if_known,
    tokenize_long,
    tokenize_pieces,
    tokenize_texts,
)
from engine_core.tokenization.tokenizer import Tokenizer, not_tokenized

if TYPE_CHECKING:
    from engine_core.structured.compiler import Compiled

Text = WholeText | TextPieces | Piece


@dataclass(slots=True, eq=False)
class JobInputs:
    """The items of a job from number `first` on, which are tokenized, and its grammar, or why it is
    refused. `is_last`: no item of it is missing behind these."""

    job: Job
    tokenized: list[Tokenized] = field(default_factory=list[Tokenized])
    first: int = 0
    is_last: bool = True
    grammar: Compiled | None = None
    refusal: RefusalError | None = None

    @property
    def key(self) -> KeyShare:
        return self.job.message.key


@dataclass(slots=True, eq=False)
class _JobTexts:
    """A job's texts, which are tokenized in order, and what of them is `ready` to be given away.
    With `whole` that is all of them, or nothing."""

    job: Job
    texts: list[Text]
    whole: bool
    ready: JobInputs = field(init=False)
    long_item: Iterator[Tokenized | None] | None = None

    def __post_init__(self) -> None:
        self.ready = JobInputs(self.job)

    @property
    def is_over(self) -> bool:
        """Whether no text is left to tokenize."""
        return self.ready.refusal is not None or self.job.ended or self._next == len(self.texts)

    @property
    def _next(self) -> int:
        return self.ready.first + len(self.ready.tokenized)

    def take(self) -> list[JobInputs]:
        """The items that are tokenized since the last call, if they are to be given away."""
        if not self.is_over and (self.whole or not self.ready.tokenized):
            return []
        taken, self.ready = self.ready, JobInputs(self.job, first=self._next)
        taken.is_last = self.is_over
        self.ready.refusal = taken.refusal
        return [taken]

    def next_texts(self) -> list[WholeText]:
        """The next texts, about `SLICE_CHARACTERS`, for one call with those of other jobs. It is
        empty where `next_part` is due."""
        texts: list[WholeText] = []
        for text in self._next_slice():
            if isinstance(text, TextPieces | Piece) or _is_long(text):
                break
            texts.append(text)
        return texts

    def next_part(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Tokenize the next texts in a template, or the next short pieces, or a part of the next
        text or piece, which is long."""
        options, done = self.job.message.tokenization, self.ready.tokenized
        text, *others = self._next_slice()
        if isinstance(text, TextPieces):
            pieces = [text, *(other for other in others if isinstance(other, TextPieces))]
            done += tokenize_pieces(tokenizer, pieces, options, max_model_len)
            return
        if isinstance(text, Piece) and not _is_long(text):
            pieces = [other for other in (text, *others) if isinstance(other, Piece)]
            short = takewhile(lambda piece: not _is_long(piece), pieces)
            done += tokenize_each(tokenizer, [*short])
            return
        if self.long_item is None:
            self.long_item = (
                tokenize_long_piece(tokenizer, text, max_model_len)
                if isinstance(text, Piece)
                else tokenize_long(tokenizer, text, options, max_model_len)
            )
        if (whole := next(self.long_item)) is not None:
            done.append(whole)
            self.long_item = None

    def _next_slice(self) -> list[Text]:
        size, start = 0, self._next
        for stop in range(start, len(self.texts)):
            size += _length_of(self.texts[stop])
            if size >= SLICE_CHARACTERS:
                # The first slice is short: steps wait for it.
                return self.texts[start : stop + 1] if start else self.texts[: stop // 4 + 1]
        return self.texts[start:]


_Part = tuple[_JobTexts, list[WholeText]]
_LANE_THREADS = 2


class TokenizerThreads:
    """Two lanes of threads that end when nobody holds this object. One is for jobs with long texts,
    so that they delay no short ones."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int, *, whole: bool = True) -> None:
        """Texts of more than `max_model_len` tokens need not be tokenized further than that. Unless
        a job is taken `whole`, its items come slice by slice, in order."""
        self._tokenizer, self._whole = tokenizer, whole
        self._ready: Mailbox[JobInputs] = Mailbox()
        self._short, self._long = (
            self._started_lane(name, _Lane(tokenizer, max_model_len, self._ready))
            for name in ("tokenize-short", "tokenize-long")
        )

    def _started_lane(self, name: str, lane: _Lane) -> _Lane:
        for _ in range(_LANE_THREADS):
            threading.Thread(target=lane.run, name=name, daemon=True).start()
        weakref.finalize(self, lane.queue.put, None)
        return lane

    def fileno(self) -> int:
        """Readable when `take` has something, for the loop's poller."""
        return self._ready.fileno()

    def put(self, job: Job, texts: list[Text]) -> JobInputs | None:
        """Queue a job's texts. Returns its inputs at once where it has none, or few that need no
        thread: waking one takes longer."""
        if not texts:
            return JobInputs(job, given_ids(job.message))
        if sum(map(_length_of, texts)) <= SLICE_CHARACTERS:
            whole = [text for text in texts if isinstance(text, str | tuple)]
            known = tokenize_if_known(self._tokenizer, whole, job.message.tokenization)
            if known is not None and len(known) == len(texts):
                return JobInputs(job, known)
        long = any(map(_is_long, texts))
        (self._long if long else self._short).queue.put(_JobTexts(job, texts, self._whole))
        return None

    def take(self) -> list[JobInputs]:
        """The inputs that became ready since the last call. The last of a job may have no items, if
        they refuse it."""
        return self._ready.take()


class _Lane:
    """Tokenizes in some threads. API keys take turns, and the jobs of each are served slice by
    slice in rotation. One call encodes a slice of each, in threads of the library. Meanwhile
    another thread reads what its last call has made, under the interpreter's lock."""

    def __init__(
        self, tokenizer: Tokenizer, max_model_len: int, tokenized: Mailbox[JobInputs]
    ) -> None:
        self._tokenizer, self._max_model_len = tokenizer, max_model_len
        self._tokenized = tokenized
        self._choosing = threading.Lock()
        self._active: FairQueue[_JobTexts] = FairQueue()
        self.queue: queue.SimpleQueue[_JobTexts | None] = queue.SimpleQueue()
        """Jobs that are new, or have more slices. One that a thread works on is nowhere else."""

    def run(self) -> None:
        """Work in this thread, until None is taken from the queue."""
        while self._encode_slices():
            pass
        self.queue.put(None)  # for the other threads

    def _next_parts(self) -> list[_Part]:
        """A slice of each of as many jobs as fill a call."""
        parts: list[_Part] = []
        with self._choosing:
            while not self._active or not self.queue.empty():
                if (job := self.queue.get()) is None:
                    return []
                self._active.put(job, job.ready.key)
            size = 0
            while self._active and size < SLICE_CHARACTERS:
                job = self._active.take()
                texts = [] if job.job.ended else job.next_texts()
                parts.append((job, texts))
                is_whole_call = not texts and not job.job.ended
                size += SLICE_CHARACTERS if is_whole_call else sum(map(_length_of, texts))
        return parts

    def _encode_slices(self) -> bool:
        """Encode the next slices, and put back the jobs that have more. False if it is over."""
        parts = self._next_parts()
        for job, texts in parts:
            if not texts and not job.job.ended:
                try:
                    job.next_part(self._tokenizer, self._max_model_len)
                except BaseException as error:
                    job.ready.refusal = _refusal(error)
        for special, group in groupby(parts, key=_adds_special_tokens):
            self._encode(list(group), special)
        self._tokenized.put(*(ready for job, _ in parts for ready in job.take()))
        for job, _ in parts:
            if not job.is_over:
                self.queue.put(job)
        return bool(parts)

    def _encode(self, parts: list[_Part], special: bool) -> None:
        """Encode the texts of jobs that agree about special tokens with one call. If it fails those
        of each job are encoded alone, and the job whose text has failed is refused."""
        batch = [text for _, texts in parts for text in texts]
        options = [job.job.message.tokenization for job, texts in parts for _ in texts]
        try:
            done = iter(tokenize_texts(self._tokenizer, batch, options))
        except RefusalError as error:
            if len(parts) == 1:
                parts[0][0].ready.refusal = _refusal(error)
            else:
                for part in parts:
                    self._encode([part], special)
            return
        for job, texts in parts:
            job.ready.tokenized += islice(done, len(texts))


def _adds_special_tokens(part: _Part) -> bool:
    return part[0].job.message.tokenization.add_special_tokens


def _refusal(error: BaseException) -> RefusalError:
    """Raises what is neither an Exception nor a panic."""
    return error.copy() if isinstance(error, RefusalError) else not_tokenized(error)


def _is_long(text: Text) -> bool:
    return _length_of(text) > SLICE_CHARACTERS


def _length_of(text: Text) -> int:
    """In characters."""
    return len(text[0]) + len(text[1]) if isinstance(text, tuple) else len(text)
