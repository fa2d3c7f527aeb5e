"""Texts are tokenized whole, slice by slice, for as long as somebody waits for them."""

import asyncio
import threading

import pytest

from engine_core.tokenization import sliced_text
from engine_core.tokenization.sliced_text import SlicedText
from engine_core.tokenization.tokenizer import Tokenizer
from server.api.tokenize import all_slices, in_thread, with_special_tokens
from server.demo import demo_models
from tests.patience import PATIENCE

TEXTS = ["", "a few words", "naïve \u00ad Straße,\n two lines\n\nand 1 2 3 🙂 more" * 9, "x" * 60]


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_text, "SLICE_CHARACTERS", 24)


@pytest.mark.parametrize("name", list(demo_models()))
@pytest.mark.parametrize("special", [True, False])
async def test_ids_and_places_are_those_of_the_whole_text(name: str, special: bool) -> None:
    tokenizer = Tokenizer.load(demo_models()[name])
    slices = await all_slices(tokenizer, TEXTS, offsets=True)
    whole = tokenizer.raw.encode_batch(TEXTS, add_special_tokens=special)
    for sliced, expected in zip(slices, whole, strict=True):
        encoding = with_special_tokens(tokenizer, sliced, special=special)
        assert encoding.ids == expected.ids
        assert encoding.special_tokens_mask == expected.special_tokens_mask
        own = zip(expected.offsets, expected.special_tokens_mask, strict=True)
        assert list(sliced.offsets()) == [place for place, added in own if not added]


async def test_nothing_is_begun_for_a_client_that_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(demo_models()["penstock-demo"])
    take, began, may_end, taken = SlicedText.take, threading.Event(), threading.Event(), list[int]()

    def held(self: SlicedText) -> int:
        began.set()
        assert may_end.wait(PATIENCE)
        taken.append(take(self))
        return taken[-1]

    monkeypatch.setattr(SlicedText, "take", held)
    monkeypatch.setattr("server.api.tokenize.SLICE_CHARACTERS", 24)
    waiting = asyncio.create_task(all_slices(tokenizer, ["some words " * 100]))
    await asyncio.to_thread(began.wait, 10)
    waiting.cancel()
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done, "what the thread does still counts"
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(taken) == 1


async def test_an_error_of_the_thread_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
