"""Compiles grammars off the loop: in threads, within a time limit, each once while it is cached."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from dataclasses import dataclass, field, replace
from functools import partial

from engine_core.loop.fair_queue import BlockingQueue, Mailbox
from engine_core.messages import Grammar, GrammarKind, KeyShare
from engine_core.refusal import RefusalError
from engine_core.structured.grammar import Compile, CompiledGrammar
from engine_core.structured.schema_tree import GrammarError
from engine_core.workflows.tokenizer_threads import JobInputs

_log = logging.getLogger(__name__)

TIME_LIMIT_S = 5.0
_MAX_WAIT_S = 10.0
_SHORT_CHARS = 4096
_SHORT_THREADS, _LONG_THREADS = 2, 1
_MAX_OVERDUE = 2
_MAX_CACHED = 64
_MAX_CACHED_CHARS = 1024 * 1024

_Source = tuple[GrammarKind, str]


@dataclass(frozen=True, slots=True)
class _Query:
    """A grammar that an API key asks for. Each key has its own, so that none waits for another's
    turn."""

    source: _Source
    key: KeyShare
    grammar: Grammar = field(compare=False)
    since: float = field(compare=False)


_Outcome = tuple[_Query, CompiledGrammar | RefusalError]
_BUSY = RefusalError("overloaded", "too many grammars are being compiled; try again later")
_BROKEN = RefusalError("invalid_request", "it cannot be compiled")


class CompilerThreads:
    """Compiles the grammars of jobs. Long ones have threads of their own, so that they delay no
    short ones. `take` returns the jobs whose grammars are compiled; `fileno` is readable when there
    are some. The threads end when nobody holds this object.
    """

    def __init__(self, compile_grammar: Compile, time_limit: float = TIME_LIMIT_S) -> None:
        """`compile_grammar` raises GrammarError. `time_limit` is in seconds, for each grammar."""
        self._outcomes: Mailbox[_Outcome] = Mailbox()
        lane = partial(_Lane, compile_grammar, time_limit, self._outcomes)
        self._short = lane("compile-short", _SHORT_THREADS)
        self._long = lane("compile-long", _LONG_THREADS)
        for lane in (self._short, self._long):
            weakref.finalize(self, lane.queue.close)
        self._cache: dict[_Source, CompiledGrammar] = {}  # the last used at its end
        self._waiting: dict[_Query, list[tuple[JobInputs, str]]] = {}
        self._compiled: list[JobInputs] = []

    def fileno(self) -> int:
        return self._outcomes.fileno()

    def put(self, inputs: JobInputs, grammar: Grammar) -> None:
        """Queue a tokenized job. If its grammar is cached, the next `take` returns it."""
        source = (grammar.kind, grammar.source)
        query = _Query(source, inputs.key, grammar, time.monotonic())
        if (cached := self._cache.pop(source, None)) is not None:
            inputs.grammar = self._cache[source] = cached
            self._compiled.append(inputs)
        elif (waiting := self._waiting.get(query)) is not None:
            waiting.append((inputs, grammar.param))
        else:
            self._waiting[query] = [(inputs, grammar.param)]
            short = len(grammar.source) <= _SHORT_CHARS
            (self._short if short else self._long).queue.put(query, query.key)

    def take(self) -> list[JobInputs]:
        """The jobs whose grammars were compiled, or could not be, since the last call."""
        # Each grammar that jobs wait for has one outcome: while none wait there is nothing to read.
        for query, outcome in self._outcomes.take() if self._waiting else []:
            if isinstance(outcome, CompiledGrammar):
                self._remember(query.source, outcome)
            for inputs, param in self._waiting.pop(query):
                if isinstance(outcome, CompiledGrammar):
                    inputs.grammar = outcome
                else:
                    message = f"{param}: {outcome}"
                    inputs.refusal = replace(outcome, message=message, param=param)
                self._compiled.append(inputs)
        compiled, self._compiled = self._compiled, []
        return compiled

    def _remember(self, source: _Source, grammar: CompiledGrammar) -> None:
        self._cache[source] = grammar
        while (
            len(self._cache) > _MAX_CACHED
            or sum(len(text) for _, text in self._cache) > _MAX_CACHED_CHARS
        ):
            del self._cache[next(iter(self._cache))]


class _Lane:
    """Threads that take one grammar after another. API keys take turns.

    Each is compiled in a thread of its own, which cannot be stopped. An overdue one runs on within
    llguidance's limits, and no other is started while too many of them run.
    """

    def __init__(
        self,
        compile_grammar: Compile,
        time_limit: float,
        outcomes: Mailbox[_Outcome],
        name: str,
        threads: int,
    ) -> None:
        self._compile, self._time_limit, self._outcomes = compile_grammar, time_limit, outcomes
        self._permits = threading.Semaphore(threads + _MAX_OVERDUE)
        self.queue: BlockingQueue[_Query] = BlockingQueue()
        for _ in range(threads):
            threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (query := self.queue.get()) is not None:
            waited = time.monotonic() - query.since
            busy = waited > _MAX_WAIT_S or not self._permits.acquire(blocking=False)
            outcome = _BUSY if busy else self._attempt(query.grammar)
            self._outcomes.put((query, outcome))

    def _attempt(self, grammar: Grammar) -> CompiledGrammar | RefusalError:
        outcome: list[CompiledGrammar | RefusalError] = [_BROKEN]

        def attempt() -> None:
            try:
                outcome[0] = self._compile(grammar)
            except GrammarError as error:
                outcome[0] = RefusalError("invalid_request", str(error))
            except BaseException as error:  # llguidance may panic: that refuses this grammar alone
                _log.error("a grammar cannot be compiled: %r", error)
            finally:
                self._permits.release()

        thread = threading.Thread(target=attempt, name="compile-one", daemon=True)
        thread.start()
        thread.join(self._time_limit)
        if not thread.is_alive():
            return outcome[0]
        message = f"too complex: it takes more than {self._time_limit:g} s to compile"
        return RefusalError("invalid_request", message)
