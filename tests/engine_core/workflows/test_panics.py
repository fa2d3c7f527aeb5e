"""A text at which the tokenizer's library panics is refused, and nothing else is disturbed."""

import gc
import select
import weakref

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob
from engine_core.refusal import RefusalError
from engine_core.tokenization.sliced_text import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import TextPieces
from engine_core.tokenization.tokenizer import PanicError, Tokenizer, as_exception
from engine_core.workflows.tokenizer_threads import JobInputs, Text, TokenizerThreads
from tests.engine_core.panicking import BAD, make_panicking

LONG = "b " * SLICE_CHARACTERS


def panicking() -> Tokenizer:
    raw = RawTokenizer(WordLevel({"a": 0, "b": 1}, "a"))
    raw.pre_tokenizer = WhitespaceSplit()
    make_panicking(raw)
    return Tokenizer(raw)


def tokenized(threads: TokenizerThreads, *jobs: list[Text]) -> list[JobInputs]:
    """Jobs that come together, in that order."""
    for number, texts in enumerate(jobs):
        threads.put(Job(b"client", EncodeJob(number), len(texts), 0), texts)
    done: dict[int, JobInputs] = {}
    while len(done) < len(jobs):
        assert select.select([threads.fileno()], [], [], 30)[0], "a thread has ended"
        done |= {finished.job.message.id: finished for finished in threads.take()}
    return [done[number] for number in range(len(jobs))]


def is_refused(job: JobInputs) -> bool:
    if job.refusal is None:
        return False
    assert job.refusal.code == "invalid_request"
    assert "the text cannot be tokenized: Onig" in job.refusal.message
    return True


each_kind = pytest.mark.parametrize(
    ("bad", "good"),
    [
        ([BAD], ["b b"]),
        (["b", BAD], ["b", "b b"]),
        ([("b", BAD)], [("b", "b b")]),
        ([LONG + BAD], [LONG]),
        ([TextPieces(("b ", " b"), 0, BAD)], [TextPieces(("b ", " b"), 0, "b")]),
    ],
    ids=["text", "texts", "pair", "long", "pieces"],
)


@each_kind
def test_only_its_job_is_refused_and_the_thread_goes_on(bad: list[Text], good: list[Text]) -> None:
    threads = TokenizerThreads(panicking(), 1_000_000)
    for _ in range(3):
        jobs = tokenized(threads, good, bad, good)
        assert [is_refused(job) for job in jobs] == [False, True, False]
        assert [len(job.tokenized) for job in (jobs[0], jobs[2])] == [len(good), len(good)]
    (last,) = tokenized(threads, good)
    assert last.refusal is None


class Kept(list[Text]):
    """Texts of which one sees whether they are kept."""

    __slots__ = ("__weakref__",)


@each_kind
def test_its_texts_are_free_without_a_collector(bad: list[Text], good: list[Text]) -> None:
    threads = TokenizerThreads(panicking(), 1_000_000)
    texts = Kept(bad)
    kept = weakref.ref(texts)
    gc.collect()
    gc.disable()
    try:
        (job,) = tokenized(threads, texts)
        assert is_refused(job)
        del job, texts
        tokenized(threads, good)  # until then a thread knows its last job
        assert kept() is None
    finally:
        gc.enable()


def test_encodings_refuse_it() -> None:
    tokenizer = panicking()
    for offsets in (False, True):
        with pytest.raises(RefusalError, match="cannot be tokenized"):
            tokenizer.encodings([BAD], offsets=offsets)
    assert tokenizer.encodings(["b"])[0].ids == [1]


def test_what_ends_a_process_is_no_panic() -> None:
    with pytest.raises(KeyboardInterrupt):
        as_exception(KeyboardInterrupt())
    plain = ValueError("plain")
    assert as_exception(plain) is plain
    with pytest.raises(BaseException, match="retry-limit") as caught:
        panicking().raw.encode(BAD)
    assert not isinstance(caught.value, Exception)
    assert isinstance(as_exception(caught.value), PanicError)
