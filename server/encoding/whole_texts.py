"""Texts tokenized whole by an API process, slice by slice: it ends soon after a client has left."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from tokenizers import Encoding

from engine_core.tokenization.sliced_text import SLICE_CHARACTERS, SlicedText
from engine_core.tokenization.tokenizer import Tokenizer

ResultT = TypeVar("ResultT")


async def all_slices(
    tokenizer: Tokenizer, texts: Sequence[str], *, offsets: bool = False
) -> list[SlicedText]:
    """The tokens of each text, and with `offsets` where they are in it."""
    sliced = [SlicedText(tokenizer, text, offsets=offsets) for text in texts]
    incomplete = deque(sliced)

    def take_some() -> None:
        size = 0
        while incomplete and size < SLICE_CHARACTERS:
            size += incomplete[0].take()
            if incomplete[0].is_complete:
                incomplete.popleft()

    while incomplete:
        await in_thread(take_some)
    return sliced


def with_special_tokens(tokenizer: Tokenizer, sliced: SlicedText, *, special: bool) -> Encoding:
    """The text's encoding, but for its offsets."""
    return tokenizer.raw.post_process(sliced.merged(), None, special)


async def in_thread(work: Callable[[], ResultT]) -> ResultT:
    """The result of `work`, done in a thread: the tokenizer releases the interpreter's lock. Who is
    cancelled waits for the thread, which nothing can stop, and so is counted until then."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # nobody asks for it any more
        raise
