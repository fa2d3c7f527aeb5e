"""From a generation's pieces to its answer: whole, or as events while they grow."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from server.generation.choice import TextPiece
from server.generation.generation import Generation, generate
from server.generation.plan import GenerationPlan
from server.generation.scores import prompt_logprobs
from server.http.sse import DONE, EventStream, event
from server.schemas.chat import ChatChunk
from server.schemas.common import PromptLogprobs
from server.schemas.completions import Completion
from server.schemas.sampling import SamplingOptions, StreamOptions
from server.service.registry import Model
from server.service.service import json_answer

_encode = msgspec.json.Encoder().encode


class AnswerForm(ABC):
    """One answer in the shapes of an API, with the parts that its request selects."""

    @abstractmethod
    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> Struct:
        """The answer, of one piece for each choice."""

    def begin(self) -> bytes:
        """The events before the first text."""
        return b""

    @abstractmethod
    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        """The events of the pieces that have come at once."""

    @abstractmethod
    def end(self, generation: Generation) -> bytes:
        """The events after the last text."""


class TextForm(AnswerForm):
    """What the forms of completions and chat have in common.

    With `include_usage` one more chunk at the end carries the whole usage; with
    `continuous_usage_stats` all chunks before that carry the usage so far.
    """

    def __init__(
        self,
        body: SamplingOptions,
        model: Model,
        answer_id: str,
        chunk: type[ChatChunk] | type[Completion],
    ) -> None:
        self._prompt_logprobs = body.prompt_logprobs
        self._prompt_text = model.token_text
        self._usage = body.stream_options or StreamOptions()
        self._named: dict[str, Any] = {
            "id": answer_id,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }
        self._chunk = chunk(**self._named, choices=[])

    async def events(self, pieces: Sequence[TextPiece], generation: Generation) -> bytes:
        usage = None if self._usage.include_usage else UNSET
        if self._usage.continuous_usage_stats:
            usage = generation.usage()
        chunks = [chunk for piece in pieces for chunk in await self._chunks(piece)]
        return b"".join(event(_encode(replace(chunk, usage=usage))) for chunk in chunks)

    def end(self, generation: Generation) -> bytes:
        if not self._usage.include_usage:
            return b""
        return event(_encode(replace(self._chunk, usage=generation.usage())))

    @abstractmethod
    async def choice(self, piece: TextPiece) -> Struct:
        """A choice of a whole answer."""

    @abstractmethod
    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        """A piece of a choice, without the usage."""

    async def _scores_of_prompt(self, piece: TextPiece) -> PromptLogprobs | UnsetType:
        """What a request for `prompt_logprobs` gets."""
        width = self._prompt_logprobs
        if width is None:
            return UNSET
        return await prompt_logprobs(piece.prompt_tokens, width, self._prompt_text)

    async def _choices(self, pieces: Sequence[TextPiece]) -> list[Any]:
        """The choices of a whole answer as JSON, with other requests in between: each repeats what
        it has of its prompt."""
        choices: list[Any] = []
        for piece in pieces:
            if choices:
                await asyncio.sleep(0)
            choices.append(Raw(_encode(await self.choice(piece))))
        return choices


async def answer(
    request: Request, model: Model, plan: GenerationPlan, form: AnswerForm, *, stream: bool | None
) -> Response:
    """The answer once it has ended, or as a stream. Raises RefusalError as `generate` does."""
    generating = generate(request, model, plan)
    if stream:
        return await EventStream.begin(_events(generating, form))
    async with generating as generation:
        pieces = await generation.final_pieces()
        async with generation.encoding():
            return json_answer(await form.whole(pieces, generation))


async def _events(
    generating: AbstractAsyncContextManager[Generation], form: AnswerForm
) -> AsyncGenerator[bytes]:
    """An empty item once the engine has accepted the job, then the text of each step in one item.

    If the engine fails, everything that was certain by then has been sent. Text that was held back,
    because it might have become a stop string or because a character was incomplete, is lost.
    """
    async with generating as generation:
        yield b""
        if begin := form.begin():
            yield begin
        while updated := await generation.advance():
            pieces = [piece for choice in updated if (piece := choice.next_piece()) is not None]
            if events := await form.events(pieces, generation):
                yield events
        end = form.end(generation)
    yield end + DONE
