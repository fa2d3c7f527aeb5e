"""From text pieces to the messages, deltas and log-probabilities of `/v1/chat/completions`."""

from collections.abc import Iterator

from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    TokenLogprob,
    TopLogprob,
)
from server.service.registry import Model
from server.service.token_text import TokenIds, TokenText


class ChatFormat:
    """Formats the pieces of one answer, with `top_logprobs` alternatives for each token; None for
    no log-probabilities. `as_ids` names tokens in them by their ids."""

    def __init__(self, model: Model, top_logprobs: int | None, *, as_ids: bool) -> None:
        self._top_logprobs = top_logprobs
        self._bytes = model.token_bytes
        self._text = TokenIds() if as_ids else TokenText(model.token_bytes, mark="")
        self._begun: set[int] = set()

    def choice(self, piece: TextPiece) -> ChatChoice:
        """A whole answer."""
        return ChatChoice(
            index=piece.index,
            message=AssistantMessage(content=piece.text),
            logprobs=self._logprobs(piece),
            finish_reason=piece.finish_reason,
        )

    def deltas(self, piece: TextPiece) -> Iterator[ChunkChoice]:
        """The role before a message's first piece, the piece, its finish reason after the last."""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            yield _delta(piece, Delta(role="assistant", content="", refusal=None))
        if piece.text or piece.tokens:
            yield _delta(piece, Delta(content=piece.text), self._logprobs(piece))
        if piece.finish_reason is not None:
            yield ChunkChoice(
                index=piece.index,
                delta=Delta(),
                logprobs=None,
                finish_reason=piece.finish_reason,
            )

    def _logprobs(self, piece: TextPiece) -> ChatLogprobs | None:
        width = self._top_logprobs
        if width is None:
            return None
        return ChatLogprobs(content=[self._entry(token, width) for token in piece.tokens])

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


def _delta(piece: TextPiece, delta: Delta, logprobs: ChatLogprobs | None = None) -> ChunkChoice:
    return ChunkChoice(index=piece.index, delta=delta, logprobs=logprobs, finish_reason=None)
