"""From text pieces to the messages, deltas and log-probabilities of `/v1/chat/completions`."""

from msgspec import UNSET, UnsetType

from server.generation.chat.conversation import last_answer
from server.generation.prompt_logprobs import prompt_logprobs
from server.generation.score_columns import score_columns
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatLogprobs,
    ChatRequest,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from server.schemas.common import FinishReason, PromptLogprobs
from server.service.registry import Model
from server.service.token_text import TokenIds, TokenText


class ChatFormat:
    """Formats the pieces of one answer, with the parts that its request selects."""

    def __init__(self, body: ChatRequest, model: Model, top_logprobs: int | None) -> None:
        """With `top_logprobs` alternatives for each token; None for no log-probabilities."""
        self._top_logprobs = top_logprobs
        self._bytes = model.token_bytes
        as_ids = bool(body.return_tokens_as_token_ids)
        self._text = TokenIds() if as_ids else TokenText(model.token_bytes, mark="")
        self._prompt_text = model.token_text
        self._prompt_logprobs = body.prompt_logprobs
        self._has_ids = bool(body.return_token_ids)
        self._echo = last_answer(body.messages) if body.echo else ""
        self._begun: set[int] = set()

    async def choice(self, piece: TextPiece) -> ChatChoice:
        """A whole answer."""
        return ChatChoice(
            index=piece.index,
            message=AssistantMessage(content=self._echo + piece.text),
            logprobs=None
            if self._top_logprobs is None
            else await self._logprobs(piece, self._top_logprobs),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids if self._has_ids else UNSET,
        )

    async def prompt_logprobs(self, piece: TextPiece) -> PromptLogprobs | UnsetType:
        """Log-probabilities of the prompt, for a whole answer."""
        width = self._prompt_logprobs
        if width is None:
            return UNSET
        return await prompt_logprobs(piece.prompt_tokens, width, self._prompt_text)

    async def deltas(self, piece: TextPiece) -> list[ChunkChoice]:
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
                    logprobs=None
                    if self._top_logprobs is None
                    else await self._logprobs(piece, self._top_logprobs),
                    finish_reason=None,
                    token_ids=piece.token_ids if self._has_ids else UNSET,
                )
            )
        if piece.finish_reason is not None:
            deltas.append(_delta(piece, Delta(), piece.finish_reason))
        return deltas

    async def _logprobs(self, piece: TextPiece, width: int) -> ChatLogprobs:
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
