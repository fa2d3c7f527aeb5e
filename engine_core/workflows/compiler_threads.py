"""Compiles grammars off the loop: in threads, within a time limit, each once while it is cached."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field, replace

import msgspec

from engine_core.loop.fair_queue import BlockingQueue, Mailbox
from engine_core.messages import Grammar, KeyShare
from engine_core.refusal import RefusalError
from engine_core.structured.compiler import Compile, Compiled, Rules
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


@dataclass(frozen=True, slots=True)
class _Query:
    """A grammar that an API key asks for. Each key has its own, to wait for no other's turn."""

    grammar: Rules
    key: KeyShare
    since: float = field(default_factory=time.monotonic, compare=False)


_BUSY = RefusalError("overloaded", "too many grammars are being compiled; try again later")
_BROKEN = RefusalError("invalid_request", "it cannot be compiled")


class CompilerThreads:
    """Compiles the grammars of jobs until `close`. Long ones have threads of their own, so that
    they delay no short ones. API keys take turns.

    Each is compiled in a further thread. An overdue one runs on within llguidance's limits, and no
    other is started while too many of them run.
    """

    def __init__(
        self,
        compile_grammar: Compile,
        compiled: Mailbox[JobInputs],
        time_limit: float = TIME_LIMIT_S,
    ) -> None:
        """Jobs come to `compiled` with their grammar, or refused. `time_limit` is in seconds."""
        self._compile, self._compiled, self._time_limit = compile_grammar, compiled, time_limit
        self._lock = threading.Lock()
        self._cache: dict[Rules, Compiled] = {}  # the last used at its end
        self._waiting: dict[_Query, list[tuple[JobInputs, str]]] = {}
        self._short = self._started("compile-short", _SHORT_THREADS)
        self._long = self._started("compile-long", _LONG_THREADS)

    def close(self) -> None:
        """Let the threads end."""
        self._short.close()
        self._long.close()

    def put(self, inputs: JobInputs, grammar: Rules) -> bool:
        """Queue a tokenized job. Returns True if its grammar is cached: the job has it then."""
        param = grammar.param
        if isinstance(grammar, Grammar):
            grammar = msgspec.structs.replace(grammar, param="")
        query = _Query(grammar, inputs.key)
        with self._lock:
            if (cached := self._cache.pop(query.grammar, None)) is not None:
                inputs.grammar = self._cache[query.grammar] = cached
                return True
            if query not in self._waiting:
                self._waiting[query] = []
                short = _num_chars(grammar) <= _SHORT_CHARS
                (self._short if short else self._long).put(query, query.key)
            self._waiting[query].append((inputs, param))
        return False

    def _started(self, name: str, threads: int) -> BlockingQueue[_Query]:
        """The queue of new threads."""
        queue: BlockingQueue[_Query] = BlockingQueue()
        permits = threading.Semaphore(threads + _MAX_OVERDUE)
        for _ in range(threads):
            thread = threading.Thread(
                target=self._run, args=(queue, permits), name=name, daemon=True
            )
            thread.start()
        return queue

    def _run(self, queue: BlockingQueue[_Query], permits: threading.Semaphore) -> None:
        while (query := queue.get()) is not None:
            waited = time.monotonic() - query.since
            busy = waited > _MAX_WAIT_S or not permits.acquire(blocking=False)
            self._finish(query, _BUSY if busy else self._attempt(query.grammar, permits))

    def _finish(self, query: _Query, outcome: Compiled | RefusalError) -> None:
        with self._lock:
            waiting = self._waiting.pop(query)
            if not isinstance(outcome, RefusalError):
                self._cache[query.grammar] = outcome
            while (
                len(self._cache) > _MAX_CACHED
                or sum(map(_num_chars, self._cache)) > _MAX_CACHED_CHARS
            ):
                del self._cache[next(iter(self._cache))]
        for inputs, param in waiting:
            if not isinstance(outcome, RefusalError):
                inputs.grammar = outcome
            else:
                field = outcome.param or param
                inputs.refusal = replace(outcome, message=f"{field}: {outcome}", param=field)
            self._compiled.put(inputs)

    def _attempt(self, grammar: Rules, permits: threading.Semaphore) -> Compiled | RefusalError:
        outcome: list[Compiled | RefusalError] = [_BROKEN]

        def attempt() -> None:
            try:
                outcome[0] = self._compile(grammar)
            except GrammarError as error:
                outcome[0] = RefusalError("invalid_request", str(error), error.param)
            except BaseException as error:  # llguidance may panic: that refuses this grammar alone
                _log.error("a grammar cannot be compiled: %r", error)
            finally:
                permits.release()

        thread = threading.Thread(target=attempt, name="compile-one", daemon=True)
        thread.start()
        thread.join(self._time_limit)
        if not thread.is_alive():
            return outcome[0]
        message = f"too complex: it takes more than {self._time_limit:g} s to compile"
        return RefusalError("invalid_request", message)


def _num_chars(rules: Rules) -> int:
    if isinstance(rules, Grammar):
        return len(rules.source)
    own = 0 if rules.text is None else len(rules.text.source)
    return own + sum(len(tool.parameters) for tool in rules.tools)
