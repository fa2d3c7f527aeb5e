"""Texts are tokenized and truncated as a job asks, against the tokenizer's own truncation."""

import select
from array import array
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import PostProcessor, RobertaProcessing, TemplateProcessing

from engine_core.loop.jobs import Job
from engine_core.messages import EncodeJob, GenerateJob, SamplingParams, Tokenization
from engine_core.tokenization.tokenized import Tokenized, given_ids
from engine_core.tokenization.tokenizer import Tokenizer
from engine_core.workflows.tokenizer_threads import Text, TokenizerThreads

WORDS = ["a", "b", "c", "d", "e", "f", "[CLS]", "[SEP]"]
CLS, SEP = 6, 7
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
    if processor is not None:
        raw.post_processor = processor
    return raw


def tokenize(
    processor: PostProcessor | None, options: list[tuple[list[Text], Tokenization]]
) -> list[list[Tokenized]]:
    """Jobs that come at the same time, each with its own options."""
    threads = TokenizerThreads(Tokenizer(raw_tokenizer(processor)), MAX_MODEL_LEN)
    jobs = [
        Job(b"client", EncodeJob(number, tokenization=tokenization), 1, 0)
        for number, (_, tokenization) in enumerate(options)
    ]
    for job, (texts, _) in zip(jobs, options, strict=True):
        threads.put(job, texts)
    done: dict[int, list[Tokenized]] = {}
    poller = select.poll()
    poller.register(threads.fileno(), select.POLLIN)
    while len(done) < len(jobs):
        assert poller.poll(30_000)
        for finished in threads.take():
            assert finished.refusal is None
            done[finished.job.message.id] = finished.tokenized
    return [done[number] for number in range(len(jobs))]


def ids_of(tokenized: Tokenized) -> list[int]:
    return array("i", tokenized.ids).tolist()


@pytest.mark.parametrize("processor", [None, TEMPLATE, ROBERTA], ids=["none", "bert", "roberta"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("text", ["a b c d e f", "a [SEP] b [CLS] c", "a", ("a b", "c d e f c")])
def test_truncation_is_the_tokenizers_own(processor: Any, side: Any, text: Text) -> None:
    raw = raw_tokenizer(processor)
    paired = isinstance(text, tuple)
    whole = raw.encode(*text) if isinstance(text, tuple) else raw.encode(text)
    # The reference cannot cut everything away.
    for size in range(raw.num_special_tokens_to_add(paired) + (3 if paired else 1), 12):
        strategy = "only_second" if paired else "longest_first"
        raw.enable_truncation(size, direction=side, strategy=strategy)
        expected = raw.encode(*text) if isinstance(text, tuple) else raw.encode(text)
        raw.no_truncation()
        options = Tokenization(truncate_to=size, truncation_side=side)
        (((cut),),) = tokenize(processor, [([text], options)])
        assert ids_of(cut) == expected.ids
        if processor is not None:
            assert list(cut.segments) == (expected.type_ids if paired else [])
        assert cut.dropped == len(whole.ids) - len(expected.ids)


@pytest.mark.parametrize("text", ["a b c", "", ("a b", "c d")])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_truncation_leaves_more_than_it_may(text: Text, size: int) -> None:
    for side in ("left", "right"):
        options = Tokenization(truncate_to=size, truncation_side=side)
        ((cut,),) = tokenize(TEMPLATE, [([text], options)])
        assert 0 < len(ids_of(cut)) <= size
        assert len(cut.segments) == (len(ids_of(cut)) if isinstance(text, tuple) else 0)


def test_every_job_has_its_own_options() -> None:
    long = " ".join(["a b c d e f"] * 30_000)
    options: list[tuple[list[Text], Tokenization]] = [
        (["a", long, "b"], Tokenization()),
        (["a", long, "b"], Tokenization(add_special_tokens=False)),
        (["a b c", "d"], Tokenization(truncate_to=3)),
        ([long, "c d"], Tokenization(add_special_tokens=False, truncate_to=2)),
        (["a b"], Tokenization()),
    ]
    first, second, third, fourth, fifth = tokenize(TEMPLATE, options)
    assert [len(ids_of(item)) for item in first] == [3, 180_002, 3]
    assert [len(ids_of(item)) for item in second] == [1, 180_000, 1]
    assert [ids_of(item) for item in third] == [[CLS, 0, SEP], [CLS, 3, SEP]]
    assert [ids_of(item) for item in fourth] == [[0, 1], [2, 3]]
    assert [item.dropped > 0 for item in fourth] == [True, False]
    assert ids_of(fifth[0]) == [CLS, 0, 1, SEP]


@pytest.mark.parametrize(
    ("side", "limit", "kept"),
    [("left", 2, [4, 5]), ("right", 2, [3, 4]), ("left", 3, [3, 4, 5]), ("right", 9, [3, 4, 5])],
)
def test_ids_are_cut_as_they_are(side: Any, limit: int, kept: list[int]) -> None:
    options = Tokenization(truncate_to=limit, truncation_side=side)
    ids = [array("i", [3, 4, 5]).tobytes()]
    (cut,) = given_ids(GenerateJob(1, params=SamplingParams(), ids=ids, tokenization=options))
    assert (ids_of(cut), cut.dropped) == (kept, 3 - len(kept))
    (whole,) = given_ids(GenerateJob(1, params=SamplingParams(), ids=ids))
    assert ids_of(whole) == [3, 4, 5]
