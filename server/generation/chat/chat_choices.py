"""From text pieces to the messages, deltas and log-probabilities of `/v1/chat/completions`."""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from server.generation.chat.conversation import last_answer
from server.generation.generation import Generation
from server.generation.score_columns import prompt_logprobs, score_columns
from server.generation.stream import TextForm
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from server.schemas.common import FinishReason
from server.service.service import Model
from server.service.token_text import TokenIds, TokenText


class ChatForm(TextForm):
    """One answer of `/v1/chat/completions`."""

    def __init__(
        self, body: ChatRequest, model: Model, answer_id: str, top_logprobs: int | None
    ) -> None:
        """With `top_logprobs` alternatives for each token; None for no log-probabilities."""
        super().__init__(body, model, answer_id, ChatChunk)
        self._top_logprobs = top_logprobs
        self._bytes = model.token_bytes
        as_ids = bool(body.return_tokens_as_token_ids)
        self._text = TokenIds() if as_ids else TokenText(model.token_bytes, mark="")
        self._echo = last_answer(body.messages) if body.echo else ""
        self._begun: set[int] = set()

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> ChatCompletion:
        first, width, named = pieces[0], self._prompt_logprobs, self._chunk
        return ChatCompletion(
            id=named.id,
            created=named.created,
            model=named.model,
            system_fingerprint=named.system_fingerprint,
            choices=await self._choices(pieces),
            usage=generation.usage(),
            prompt_token_ids=UNSET if first.prompt_ids is None else first.prompt_ids,
            prompt_logprobs=UNSET
            if width is None
            else await prompt_logprobs(first.prompt_tokens, width, self._prompt_text),
        )

    async def choice(self, piece: TextPiece) -> ChatChoice:
        return ChatChoice(
            index=piece.index,
            message=AssistantMessage(content=self._echo + piece.text),
            logprobs=await self._logprobs(piece),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids if self._has_ids else UNSET,
        )

    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        """The role before a message's first piece, the piece, its finish reason after the last."""
        deltas: list[ChunkChoice] = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            deltas.append(_delta(piece, Delta(role="assistant", content="", refusal=None)))
            if self._echo:
                deltas.append(_delta(piece, Delta(content=self._echo)))
        if piece.text or piece.tokens or piece.token_ids:
            deltas.append(
                ChunkChoice(
                    index=piece.index,
                    delta=Delta(content=piece.text),
                    logprobs=await self._logprobs(piece),
                    finish_reason=None,
                    token_ids=piece.token_ids if self._has_ids else UNSET,
                )
            )
        if piece.finish_reason is not None:
            deltas.append(_delta(piece, Delta(), piece.finish_reason))
        first, *others = [replace(self._chunk, choices=[delta]) for delta in deltas]
        if piece.prompt_ids is not None:
            first = replace(first, prompt_token_ids=piece.prompt_ids)
        return [first, *others]

    async def _logprobs(self, piece: TextPiece) -> ChatLogprobs | None:
        width = self._top_logprobs
        if width is None:
            return None
        (content,) = await score_columns(
            [piece.tokens], width, lambda some: [[self._entry(token, width) for token in some]]
        )
        return ChatLogprobs(content=content)

    def _entry(self, token: ScoredToken, width: int) -> TokenLogprob:
        return TokenLogprob(
            token=self._text[token.id],
            logprob=token.logprob or 0.0,
            bytes=self._byte_list(token.id),
            top_logprobs=[
                TopLogprob(token=self._text[other], logprob=value, bytes=self._byte_list(other))
                for other, value in token.top[:width]
            ],
        )

    def _byte_list(self, token: int) -> list[int] | None:
        data = self._bytes[token]
        return None if data is None else list(data)


def _delta(piece: TextPiece, delta: Delta, finish: FinishReason | None = None) -> ChunkChoice:
    """One that has no tokens."""
    return ChunkChoice(index=piece.index, delta=delta, logprobs=None, finish_reason=finish)
