"""Compiling off the loop: every job comes back once, in bounded time, from bounded memory."""

import re
import select
import threading
import time

import pytest

from engine_core.loop.fair_queue import Mailbox
from engine_core.loop.jobs import Job
from engine_core.messages import NO_KEY, GenerateJob, Grammar, KeyShare, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.structured.compiler import Rules
from engine_core.structured.grammar import CompiledGrammar, GrammarCompiler
from engine_core.structured.schema_tree import GrammarError
from engine_core.tokenization.tokenized import Tokenized
from engine_core.workflows import compiler_threads
from engine_core.workflows.compiler_threads import CompilerThreads
from engine_core.workflows.tokenizer_threads import JobInputs
from tests.engine_core.grammars import GRAMMARS, json_tokenizer
from tests.engine_core.simulated_model import VOCAB
from tests.patience import PATIENCE

TOKENIZED = [Tokenized(b"ids")]


class Scripted:
    """A compiler that counts, and fails, dies or waits as the regex says."""

    def __init__(self) -> None:
        self.sources: list[str] = []
        self.go = threading.Event()
        self.threads: list[CompilerThreads] = []
        self._compiled = GrammarCompiler(json_tokenizer(), VOCAB).compile(GRAMMARS[0])

    def compile(self, grammar: Rules) -> CompiledGrammar:
        assert isinstance(grammar, Grammar)
        self.sources.append(grammar.source)
        if grammar.source.startswith("wait"):
            self.go.wait(PATIENCE)
        if grammar.source.startswith("fail"):
            raise GrammarError("it is bad")
        if grammar.source.startswith("die"):
            raise SystemExit
        return CompiledGrammar(self._compiled.start, 44, 2)


class Threads(CompilerThreads):
    """Threads with a mailbox of their own, which end with their test."""

    def __init__(self, script: Scripted, **changes) -> None:
        self.mailbox: Mailbox[JobInputs] = Mailbox()
        super().__init__(script.compile, self.mailbox, **changes)
        script.threads.append(self)

    def ask(self, number: int, source: str, param: str = "regex", key: KeyShare = NO_KEY) -> Job:
        """Put a job with this grammar."""
        grammar = Grammar("regex", source, param)
        params = SamplingParams(grammar=grammar)
        job = Job(b"a", GenerateJob(number, params=params, ids=[b"ids"], key=key), 1, 0)
        inputs = JobInputs(job, TOKENIZED)
        if self.put(inputs, grammar):
            self.mailbox.put(inputs)
        return job

    def refusals(self, count: int) -> dict[int, RefusalError]:
        taken = self.take(count).items()
        return {number: done.refusal for number, done in taken if done.refusal is not None}

    def take(self, count: int) -> dict[int, JobInputs]:
        """The next jobs that are done."""
        taken: list[JobInputs] = []
        while len(taken) < count:
            assert select.select([self.mailbox.fileno()], [], [], PATIENCE)[0]
            taken += self.mailbox.take()
        by_id = {done.job.message.id: done for done in taken}
        assert len(by_id) == len(taken)
        return by_id


@pytest.fixture
def script():
    script = Scripted()
    yield script
    script.go.set()
    for threads in script.threads:
        threads.close()


def test_a_job_comes_back_with_its_grammar_which_others_get_at_once(script: Scripted) -> None:
    threads = Threads(script)
    job = threads.ask(1, "a")
    first = threads.take(1)[1]
    assert (first.job, first.tokenized, first.refusal) == (job, TOKENIZED, None)
    job = threads.ask(2, "a")
    (second,) = threads.mailbox.take()
    assert second.job is job
    assert second.grammar is first.grammar is not None
    assert script.sources == ["a"]


def test_jobs_that_wait_for_the_same_grammar_share_it(script: Scripted) -> None:
    threads = Threads(script)
    for job in range(5):
        threads.ask(job, "wait")
    script.go.set()
    grammars = [done.grammar for done in threads.take(5).values()]
    assert grammars[0] is not None
    assert len({id(grammar) for grammar in grammars}) == 1
    assert script.sources == ["wait"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("source", "says"), [("fail", "it is bad"), ("die", "cannot be compiled")])
def test_a_fault_names_the_field_of_each_job(script: Scripted, source: str, says: str) -> None:
    threads = Threads(script)
    threads.ask(1, source)
    threads.ask(2, source, "response_format")
    refusals = threads.refusals(2)
    for job, param in ((1, "regex"), (2, "response_format")):
        assert (refusals[job].code, refusals[job].param) == ("invalid_request", param)
        assert re.match(f"{param}: .*{says}", refusals[job].message)


def test_a_grammar_over_the_time_limit_is_refused_and_others_go_on(script: Scripted) -> None:
    threads = Threads(script, time_limit=0.2)
    threads.ask(1, "wait")
    threads.ask(2, "a")
    assert list(threads.take(1)) == [2]
    refused = threads.refusals(1)[1]
    assert (refused.code, refused.param) == ("invalid_request", "regex")
    assert "0.2 s" in refused.message


def test_compilations_that_never_end_do_not_pile_up(script: Scripted) -> None:
    """The rest are refused as `overloaded`, and may come back once those have ended."""
    threads = Threads(script, time_limit=0.05)
    for job in range(20):
        threads.ask(job, f"wait {job}")
    codes = [refused.code for refused in threads.refusals(20).values()]
    assert len(script.sources) == codes.count("invalid_request") == 4
    assert codes.count("overloaded") == 16
    script.go.set()
    deadline = time.monotonic() + PATIENCE
    while threads.ask(20, "a") and (refused := threads.refusals(1)):
        assert refused[20].code == "overloaded"
        assert time.monotonic() < deadline


def test_long_grammars_delay_no_short_ones(script: Scripted) -> None:
    threads = Threads(script)
    for job in range(9):
        threads.ask(job, f"wait {job}" + "x" * 5000)
    threads.ask(9, "a")
    assert list(threads.take(1)) == [9]


def test_api_keys_take_turns(script: Scripted, monkeypatch) -> None:
    monkeypatch.setattr(compiler_threads, "_SHORT_THREADS", 1)
    threads = Threads(script)
    threads.ask(0, "wait", key=KeyShare(1))
    for job in range(1, 30):
        threads.ask(job, f"greedy {job}", key=KeyShare(1))
    threads.ask(30, "honest", key=KeyShare(2))
    threads.ask(31, "greedy 29", key=KeyShare(2))
    script.go.set()
    done = threads.take(32)
    assert all(job.refusal is None for job in done.values())
    order = script.sources
    assert order.index("honest") <= 2
    assert order.index("greedy 29") <= 4, "nor does it wait where another key stands"


def test_the_cache_is_bounded_by_count_and_by_size(script: Scripted, monkeypatch) -> None:
    threads = Threads(script)
    for job in range(compiler_threads._MAX_CACHED + 10):
        threads.ask(job, f"a{job}")
        threads.take(1)
    assert len(threads._cache) == compiler_threads._MAX_CACHED
    monkeypatch.setattr(compiler_threads, "_MAX_CACHED_CHARS", 100)
    for job in range(30):
        threads.ask(job, f"b{job}" + "x" * 17)
        threads.take(1)
    cached = [rules for rules in threads._cache if isinstance(rules, Grammar)]
    assert sum(len(grammar.source) for grammar in cached) <= 100
    assert len(cached) == 5
    threads.ask(0, "b29" + "x" * 17)
    assert len(threads.mailbox.take()) == 1, "the last ones are kept"
