"""Tokenizes the texts of jobs in threads, off the loop, many texts a call."""

import queue
import threading
import weakref
from itertools import groupby

from engine_core.loop.fair_queue import FairQueue, Mailbox
from engine_core.loop.jobs import Job
from engine_core.preprocessing.job_inputs import JobInputs, Text, WholeText, length_of
from engine_core.refusal import RefusalError
from engine_core.tokenization.text_slicer import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import given_ids, tokenized
from engine_core.tokenization.tokenizer import Tokenizer, not_tokenized

_Part = tuple[JobInputs, list[WholeText]]


class TokenizerThreads:
    """Two threads, one for jobs with long texts, so that they delay no short ones. `take` returns
    the jobs that are tokenized; `fileno` is readable when there are some. The threads end when
    nobody holds this object.
    """

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        """Texts of more than `max_model_len` tokens need not be tokenized further than that."""
        self._tokenized: Mailbox[JobInputs] = Mailbox()
        self._short, self._long = (
            self._started_lane(name, _Lane(tokenizer, max_model_len, self._tokenized))
            for name in ("tokenize-short", "tokenize-long")
        )

    def _started_lane(self, name: str, lane: "_Lane") -> "_Lane":
        threading.Thread(target=lane.run, name=name, daemon=True).start()
        weakref.finalize(self, lane.queue.put, None)
        return lane

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._tokenized.fileno()

    def put(self, job: Job, texts: list[Text]) -> JobInputs | None:
        """Queue a job's texts. A job of ids has none, and is returned at once."""
        if not texts:
            return JobInputs(job, given_ids(job.message))
        long = any(length_of(text) > SLICE_CHARACTERS for text in texts)
        (self._long if long else self._short).queue.put(JobInputs(job, texts=texts))
        return None

    def take(self) -> list[JobInputs]:
        """The jobs that were tokenized, or could not be, since the last call."""
        return self._tokenized.take()


class _Lane:
    """One thread. API keys take turns, and the jobs of each are served slice by slice in rotation;
    one call encodes a slice of each: the tokenizer fans a batch out over its own threads.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_model_len: int, tokenized: Mailbox[JobInputs]
    ) -> None:
        self._tokenizer, self._max_model_len = tokenizer, max_model_len
        self._tokenized = tokenized
        self.queue: queue.SimpleQueue[JobInputs | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Work in this thread, until None is taken from the queue."""
        active: FairQueue[JobInputs] = FairQueue()
        while True:
            while not active or not self.queue.empty():
                if (job := self.queue.get()) is None:
                    return
                active.put(job, job.key)
            self._encode_slices(active)

    def _encode_slices(self, active: FairQueue[JobInputs]) -> None:
        """Encode one slice of as many jobs as fill a call, and put back those that have more."""
        parts: list[_Part] = []
        size = 0
        while active and size < SLICE_CHARACTERS:
            job = active.take()
            texts = [] if job.job.ended else job.next_texts()
            parts.append((job, texts))
            size += sum(map(length_of, texts))
            if not texts and not job.job.ended:
                self._encode_part(job)
                size += SLICE_CHARACTERS
        for special, group in groupby(parts, key=_adds_special_tokens):
            self._encode(list(group), special)
        over: list[JobInputs] = []
        for job, _ in parts:
            if job.is_over:
                over.append(job)
            else:
                active.put(job, job.key)
        if over:
            self._tokenized.put(*over)

    def _encode_part(self, job: JobInputs) -> None:
        try:
            job.next_part(self._tokenizer, self._max_model_len)
        except BaseException as error:
            job.refusal = _refusal(error)

    def _encode(self, parts: list[_Part], special: bool) -> None:
        """Encode the texts of jobs that agree about special tokens with one call, or those of each
        job alone if that fails: then the job whose text has failed is refused."""
        batch = [text for _, texts in parts for text in texts]
        try:
            encodings = iter(self._tokenizer.encodings(batch, add_special_tokens=special))
        except RefusalError as error:
            if len(parts) == 1:
                parts[0][0].refusal = _refusal(error)
            else:
                for part in parts:
                    self._encode([part], special)
            return
        for job, texts in parts:
            options = job.job.message.tokenization
            job.tokenized += [
                tokenized(next(encodings), options, paired=isinstance(text, tuple))
                for text in texts
            ]


def _adds_special_tokens(part: _Part) -> bool:
    return part[0].job.message.tokenization.add_special_tokens


def _refusal(error: BaseException) -> RefusalError:
    """Raises what is neither an Exception nor a panic."""
    if not isinstance(error, RefusalError):
        return not_tokenized(error)
    return error.copy()
