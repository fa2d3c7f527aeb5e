"""Texts are tokenized and truncated as a job asks, and one at which the tokenizer's library panics
is refused without disturbing others."""

import gc
import select
import time
import weakref
from array import array
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import PostProcessor, RobertaProcessing, TemplateProcessing

from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob, Tokenization
from engine_core.refusal import RefusalError
from engine_core.tokenization.continuation import Piece
from engine_core.tokenization.sliced_text import SLICE_CHARACTERS
from engine_core.tokenization.tokenized import TextPieces, Tokenized, given_ids
from engine_core.tokenization.tokenizer import Tokenizer, as_exception
from engine_core.workflows.tokenizer_threads import JobInputs, Text, TokenizerThreads
from tests.engine_core.panicking import BAD, make_panicking
from tests.patience import PATIENCE

WORDS = ["a", "b", "c", "d", "e", "f", "[CLS]", "[SEP]"]
CLS, SEP = 6, 7
PLAIN = Tokenization()
MAX_MODEL_LEN = 200_000
TEMPLATE = TemplateProcessing(
    single="[CLS] $A [SEP]",
    pair="[CLS] $A [SEP] $B:1 [SEP]:1",
    special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
)
ROBERTA = RobertaProcessing(("[SEP]", SEP), ("[CLS]", CLS))


def raw_tokenizer(processor: PostProcessor | None) -> RawTokenizer:
    raw = RawTokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, "a"))
    raw.pre_tokenizer = WhitespaceSplit()
    raw.add_special_tokens(["[CLS]", "[SEP]"])
    raw.post_processor = processor
    return raw


Texts = list[Text]


def prepared(threads: TokenizerThreads, *jobs: tuple[Texts, Tokenization]) -> list[JobInputs]:
    """Jobs that come at the same time, each with its own options, in that order."""
    for number, (texts, tokenization) in enumerate(jobs):
        message = EncodeJob(number, tokenization=tokenization)
        threads.put(Job(b"client", message, len(texts), 0), texts)
    done: dict[int, JobInputs] = {}
    while len(done) < len(jobs):
        assert select.select([threads.fileno()], [], [], PATIENCE)[0], "a thread has ended"
        done |= {finished.job.message.id: finished for finished in threads.take()}
    return [done[number] for number in range(len(jobs))]


def tokenize(
    processor: PostProcessor | None, *jobs: tuple[Texts, Tokenization]
) -> list[list[Tokenized]]:
    threads = TokenizerThreads(Tokenizer(raw_tokenizer(processor)), MAX_MODEL_LEN)
    done = prepared(threads, *jobs)
    assert all(job.refusal is None for job in done)
    return [job.tokenized for job in done]


def ids_of(tokenized: Tokenized) -> list[int]:
    return array("i", tokenized.ids).tolist()


@pytest.mark.parametrize("processor", [None, TEMPLATE, ROBERTA], ids=["none", "bert", "roberta"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("text", ["a b c d e f", "a [SEP] b [CLS] c", "a", ("a b", "c d e f c")])
def test_truncation_is_the_tokenizers_own(processor: Any, side: Any, text: Text) -> None:
    raw, paired = raw_tokenizer(processor), isinstance(text, tuple)
    whole = raw.encode_batch([text])[0]
    # The reference cannot cut everything away.
    for size in range(raw.num_special_tokens_to_add(paired) + (3 if paired else 1), 12):
        strategy = "only_second" if paired else "longest_first"
        raw.enable_truncation(size, direction=side, strategy=strategy)
        expected = raw.encode_batch([text])[0]
        raw.no_truncation()
        options = Tokenization(truncate_to=size, truncation_side=side)
        ((cut,),) = tokenize(processor, ([text], options))
        assert ids_of(cut) == expected.ids
        if processor is not None:
            assert list(cut.segments) == (expected.type_ids if paired else [])
        assert cut.dropped == len(whole.ids) - len(expected.ids)


@pytest.mark.parametrize("text", ["a b c", "", ("a b", "c d")])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_truncation_leaves_more_than_it_may(text: Text, size: int) -> None:
    for side in ("left", "right"):
        options = Tokenization(truncate_to=size, truncation_side=side)
        ((cut,),) = tokenize(TEMPLATE, ([text], options))
        assert 0 < len(ids_of(cut)) <= size
        assert len(cut.segments) == (len(ids_of(cut)) if isinstance(text, tuple) else 0)


def test_every_job_has_its_own_options() -> None:
    long = " ".join(["a b c d e f"] * 30_000)
    first, second, third, fourth, fifth = tokenize(
        TEMPLATE,
        (["a", long, "b"], PLAIN),
        (["a", long, "b"], Tokenization(add_special_tokens=False)),
        (["a b c", "d"], Tokenization(truncate_to=3)),
        ([long, "c d"], Tokenization(add_special_tokens=False, truncate_to=2)),
        (["a b"], PLAIN),
    )
    assert [item.num_tokens for item in first] == [3, 180_002, 3]
    assert [item.num_tokens for item in second] == [1, 180_000, 1]
    assert [ids_of(item) for item in third] == [[CLS, 0, SEP], [CLS, 3, SEP]]
    assert [ids_of(item) for item in fourth] == [[0, 1], [2, 3]]
    assert [item.dropped > 0 for item in fourth] == [True, False]
    assert ids_of(fifth[0]) == [CLS, 0, 1, SEP]


@pytest.mark.parametrize(
    ("side", "limit", "kept"),
    [
        ("left", 2, [4, 5]), ("right", 2, [3, 4]), ("left", 3, [3, 4, 5]), ("right", 9, [3, 4, 5]),
        ("left", None, [3, 4, 5]),
    ],
)  # fmt: skip
def test_ids_are_cut_as_they_are(side: Any, limit: int | None, kept: list[int]) -> None:
    options = Tokenization(truncate_to=limit, truncation_side=side)
    ids = [array("i", [3, 4, 5]).tobytes()]
    (cut,) = given_ids(EncodeJob(1, ids=ids, tokenization=options))
    assert (ids_of(cut), cut.dropped) == (kept, 3 - len(kept))


LONG = "b " * SLICE_CHARACTERS


def panicking() -> Tokenizer:
    raw = raw_tokenizer(None)
    make_panicking(raw)
    return Tokenizer(raw)


def are_refused(threads: TokenizerThreads, *jobs: Texts) -> list[bool]:
    """Jobs that come together: whether each is refused for a panic. The others are tokenized."""
    all_done = prepared(threads, *((job, PLAIN) for job in jobs))
    for done, texts in zip(all_done, jobs, strict=True):
        if done.refusal is None:
            assert len(done.tokenized) == len(texts)
        else:
            assert done.refusal.code == "invalid_request"
            assert "the text cannot be tokenized: Onig" in done.refusal.message
    return [done.refusal is not None for done in all_done]


each_kind = pytest.mark.parametrize(
    ("bad", "good"),
    [
        ([BAD], ["b b"]),
        (["b", BAD], ["b", "b b"]),
        ([("b", BAD)], [("b", "b b")]),
        ([LONG + BAD], [LONG]),
        ([TextPieces(("b ", " b"), 0, BAD)], [TextPieces(("b ", " b"), 0, "b")]),
        ([Piece("b", False), Piece(BAD, True)], [Piece("b", False), Piece("b b", True)]),
        ([Piece("b", False), Piece(LONG + BAD, True)], [Piece("b", False), Piece(LONG, True)]),
    ],
    ids=["text", "texts", "pair", "long", "template", "pieces", "long piece"],
)


@each_kind
def test_only_its_job_is_refused_and_the_thread_goes_on(bad: Texts, good: Texts) -> None:
    threads = TokenizerThreads(panicking(), 1_000_000)
    for _ in range(2):
        assert are_refused(threads, good, bad, good) == [False, True, False]


class Kept(list[Text]):
    """Texts of which one sees whether they are kept."""

    __slots__ = ("__weakref__",)


@each_kind
def test_its_texts_are_free_without_a_collector(bad: Texts, good: Texts) -> None:
    threads = TokenizerThreads(panicking(), 1_000_000)
    texts = Kept(bad)
    kept = weakref.ref(texts)
    gc.collect()
    gc.disable()
    try:
        assert are_refused(threads, texts) == [True]
        del texts
        are_refused(threads, good)
        until = time.monotonic() + 10  # a thread knows its last job for a moment
        while kept() is not None:
            assert time.monotonic() < until
            time.sleep(0.001)
    finally:
        gc.enable()


def test_encodings_refuse_it_but_what_ends_a_process_is_no_panic() -> None:
    with pytest.raises(RefusalError, match="cannot be tokenized"):
        panicking().encodings([BAD], offsets=True)
    with pytest.raises(KeyboardInterrupt):
        as_exception(KeyboardInterrupt())
    plain = ValueError("plain")
    assert as_exception(plain) is plain
    with pytest.raises(BaseException, match="retry-limit") as caught:
        panicking().raw.encode(BAD)
    assert not isinstance(caught.value, Exception)
    assert isinstance(as_exception(caught.value), RuntimeError)
