"""From text pieces to the choices of `/v1/completions`."""

from collections.abc import Sequence

from msgspec import UNSET, Struct
from msgspec.structs import replace

from server.generation.generation import Generation
from server.generation.score_columns import prompt_logprobs, score_columns
from server.generation.stream import TextForm
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.completions import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from server.service.service import Model
from server.service.token_text import TokenIds


class CompletionForm(TextForm):
    """One answer of `/v1/completions`."""

    def __init__(self, body: CompletionRequest, model: Model, answer_id: str) -> None:
        super().__init__(body, model, answer_id, Completion)
        self._logprobs = body.logprobs
        self._text = TokenIds() if body.return_tokens_as_token_ids else model.token_text
        self._echo = bool(body.echo)

    async def whole(self, pieces: Sequence[TextPiece], generation: Generation) -> Struct:
        choices = await self._choices(pieces)
        return replace(self._chunk, choices=choices, usage=generation.usage())

    async def _chunks(self, piece: TextPiece) -> Sequence[Struct]:
        return [replace(self._chunk, choices=[await self.choice(piece)])]

    async def choice(self, piece: TextPiece) -> CompletionChoice:
        width = self._prompt_logprobs
        return CompletionChoice(
            index=piece.index,
            text=piece.echo + piece.text,
            logprobs=None if self._logprobs is None else await self._scores(piece, self._logprobs),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids if self._has_ids else UNSET,
            prompt_token_ids=UNSET if piece.prompt_ids is None else piece.prompt_ids,
            prompt_logprobs=UNSET
            if width is None
            else await prompt_logprobs(piece.prompt_tokens, width, self._prompt_text),
        )

    async def _scores(self, piece: TextPiece, width: int) -> CompletionLogprobs:
        """The tokens with `width` alternatives each. The token itself is always among them."""
        tokens = [piece.prompt_tokens, piece.tokens] if self._echo else [piece.tokens]
        return CompletionLogprobs(
            *await score_columns(
                tokens,
                width,
                lambda some: [
                    [token.offset for token in some],
                    [token.logprob for token in some],
                    [self._text[token.id] for token in some],
                    [self._alternatives(token, width) for token in some],
                ],
            )
        )

    def _alternatives(self, token: ScoredToken, width: int) -> dict[str, float] | None:
        """Log-probabilities by the text of the token: the highest where several have the same."""
        if token.logprob is None:
            return None
        alternatives: dict[str, float] = {}
        for other, logprob in token.top[:width]:
            alternatives.setdefault(self._text[other], logprob)
        alternatives.setdefault(self._text[token.id], token.logprob)
        return alternatives
