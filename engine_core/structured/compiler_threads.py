"""Compiling off the loop: in threads, within a time limit, each grammar once while it is in use."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass

from engine_core.job import Job, RefusalError
from engine_core.mailbox import Mailbox
from engine_core.messages import FailureCode, GenerateJob, Grammar, GrammarKind
from engine_core.structured.grammar import Compile, CompiledGrammar, GrammarError
from engine_core.tokenization.tokenizer_threads import Tokenized

TIME_LIMIT_S = 5.0
_MAX_WAIT_S = 10.0
_NUM_LANES = 2
_MAX_OVERDUE = 4
_MAX_CACHED = 64
_MAX_CACHED_CHARS = 1024 * 1024

_Key = tuple[GrammarKind, str]


@dataclass(frozen=True, slots=True)
class CompiledJob:
    """A job whose grammar is compiled (`Job.grammar`), or why it cannot be."""

    job: Job
    tokenized: list[Tokenized]
    refusal: RefusalError | None = None


@dataclass(frozen=True, slots=True)
class _Fault:
    code: FailureCode
    message: str


_Report = tuple[_Key, CompiledGrammar | _Fault]
_BUSY = _Fault("overloaded", "too many grammars are being compiled; try again later")
_BROKEN = _Fault("invalid_request", "it cannot be compiled")


class CompilingThreads:
    """Compiles the grammars of jobs. `take` gives finished jobs; `fileno` becomes readable when
    there are some. The threads end when nobody holds this object.
    """

    def __init__(self, compile_grammar: Compile, time_limit: float = TIME_LIMIT_S) -> None:
        """`compile_grammar` raises GrammarError; `time_limit` is in seconds, for each grammar."""
        self._reports: Mailbox[_Report] = Mailbox()
        self._lanes = _Lanes(compile_grammar, time_limit, self._reports)
        weakref.finalize(self, self._lanes.end)
        self._cache = _Cache()
        self._waiting: dict[_Key, list[tuple[Job, list[Tokenized]]]] = {}
        self._finished: list[CompiledJob] = []

    def fileno(self) -> int:
        """For the loop's poller."""
        return self._reports.fileno()

    def put(self, job: Job, tokenized: list[Tokenized], grammar: Grammar) -> None:
        """Queue a tokenized job; if its grammar is known, the next `take` gives it."""
        key = (grammar.kind, grammar.source)
        if (compiled := self._cache.get(key)) is not None:
            self._finish(job, tokenized, compiled)
        elif (waiting := self._waiting.get(key)) is not None:
            waiting.append((job, tokenized))
        else:
            self._waiting[key] = [(job, tokenized)]
            self._lanes.put(grammar)

    def take(self) -> list[CompiledJob]:
        """The jobs that have finished since the last call."""
        # Each grammar that is waited for is reported once, so nothing is missed without a look.
        for key, outcome in self._reports.take() if self._waiting else []:
            if isinstance(outcome, CompiledGrammar):
                self._cache.put(key, outcome)
            for job, tokenized in self._waiting.pop(key):
                self._finish(job, tokenized, outcome)
        finished, self._finished = self._finished, []
        return finished

    def _finish(
        self, job: Job, tokenized: list[Tokenized], outcome: CompiledGrammar | _Fault
    ) -> None:
        refusal = None
        if isinstance(outcome, CompiledGrammar):
            job.grammar = outcome
        else:
            param = _grammar_of(job).param
            refusal = RefusalError(outcome.code, f"{param}: {outcome.message}", param)
        self._finished.append(CompiledJob(job, tokenized, refusal))


class _Cache:
    """The grammars that were used last, bounded by their number and the length of their sources."""

    def __init__(self) -> None:
        self._grammars: OrderedDict[_Key, CompiledGrammar] = OrderedDict()
        self._chars = 0

    def get(self, key: _Key) -> CompiledGrammar | None:
        if key in self._grammars:
            self._grammars.move_to_end(key)
        return self._grammars.get(key)

    def put(self, key: _Key, compiled: CompiledGrammar) -> None:
        self._grammars[key] = compiled
        self._chars += len(key[1])
        while len(self._grammars) > _MAX_CACHED or self._chars > _MAX_CACHED_CHARS:
            (_, source), _ = self._grammars.popitem(last=False)
            self._chars -= len(source)


class _Lanes:
    """Threads that take one grammar after another.

    Each is compiled in a thread of its own, which nobody can stop: one that is overdue is left to
    llguidance's limits, and none is begun while too many of those still run.
    """

    def __init__(
        self,
        compile_grammar: Compile,
        time_limit: float,
        reports: Mailbox[_Report],
    ) -> None:
        self._compile_grammar = compile_grammar
        self._time_limit = time_limit
        self._reports = reports
        self._queue: queue.SimpleQueue[tuple[Grammar, float] | None] = queue.SimpleQueue()
        self._permits = threading.Semaphore(_NUM_LANES + _MAX_OVERDUE)
        self._started = False

    def put(self, grammar: Grammar) -> None:
        """Queue one grammar."""
        if not self._started:
            self._started = True
            for lane in range(_NUM_LANES):
                threading.Thread(target=self._run, name=f"compile-{lane}", daemon=True).start()
        self._queue.put((grammar, time.monotonic()))

    def end(self) -> None:
        """Let the threads end, once the queue is empty."""
        for _ in range(_NUM_LANES):
            self._queue.put(None)

    def _run(self) -> None:
        while (queued := self._queue.get()) is not None:
            grammar, since = queued
            waited = time.monotonic() - since
            busy = waited > _MAX_WAIT_S or not self._permits.acquire(blocking=False)
            outcome = _BUSY if busy else self._attempt(grammar)
            self._reports.put(((grammar.kind, grammar.source), outcome))

    def _attempt(self, grammar: Grammar) -> CompiledGrammar | _Fault:
        # What a thread leaves behind that dies of anything else.
        outcome: list[CompiledGrammar | _Fault] = [_BROKEN]

        def attempt() -> None:
            try:
                outcome[0] = self._compile_grammar(grammar)
            except GrammarError as error:
                outcome[0] = _Fault("invalid_request", str(error))
            finally:
                self._permits.release()

        thread = threading.Thread(target=attempt, name="compile-one", daemon=True)
        thread.start()
        thread.join(self._time_limit)
        if not thread.is_alive():
            return outcome[0]
        message = f"too complex: it takes more than {self._time_limit:g} s to compile"
        return _Fault("invalid_request", message)


def _grammar_of(job: Job) -> Grammar:
    message = job.message
    assert isinstance(message, GenerateJob)
    assert message.params.grammar is not None
    return message.params.grammar
