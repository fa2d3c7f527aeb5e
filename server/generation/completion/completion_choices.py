"""From text pieces to the choices of `/v1/completions`."""

from collections.abc import Sequence

from msgspec import UNSET

from server.generation.prompt_logprobs import prompt_logprobs
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from server.service.registry import Model
from server.service.token_text import TokenIds


class CompletionFormat:
    """Formats the pieces of one answer, with the parts that its request selects."""

    def __init__(self, body: CompletionRequest, model: Model) -> None:
        self.prompt_text = model.token_text
        self.prompt_logprobs = body.prompt_logprobs
        self.logprobs = body.logprobs
        self._text = TokenIds() if body.return_tokens_as_token_ids else model.token_text
        self._echo = bool(body.echo)
        self._has_ids = bool(body.return_token_ids)

    @property
    def repeats_prompt(self) -> bool:
        """Each choice of a prompt has something of it, the same for all."""
        return self._echo or self._has_ids or self.prompt_logprobs is not None

    def choice(self, piece: TextPiece) -> CompletionChoice:
        """One choice, or a piece of it."""
        return CompletionChoice(
            index=piece.index,
            text=piece.echo + piece.text,
            logprobs=self._logprobs_of(piece),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids if self._has_ids else UNSET,
            prompt_token_ids=UNSET if piece.prompt_ids is None else piece.prompt_ids,
            prompt_logprobs=UNSET
            if self.prompt_logprobs is None
            else prompt_logprobs(piece.prompt_tokens, self.prompt_logprobs, self.prompt_text),
        )

    def columns(self, tokens: Sequence[ScoredToken]) -> CompletionLogprobs:
        """The tokens with `logprobs` alternatives each; the token itself is always among them."""
        width = self.logprobs or 0
        return CompletionLogprobs(
            [token.offset for token in tokens],
            [token.logprob for token in tokens],
            [self._text[token.id] for token in tokens],
            [self._alternatives(token, width) for token in tokens],
        )

    def echoed(self, piece: TextPiece) -> Sequence[ScoredToken]:
        """Those tokens of the prompt that `logprobs` reports, too."""
        return piece.prompt_tokens if self._echo and self.logprobs is not None else []

    def _logprobs_of(self, piece: TextPiece) -> CompletionLogprobs | None:
        if self.logprobs is None:
            return None
        return self.columns([*self.echoed(piece), *piece.tokens])

    def _alternatives(self, token: ScoredToken, width: int) -> dict[str, float] | None:
        """Log-probabilities by the text of the token: the highest where several have the same."""
        if token.logprob is None:
            return None
        alternatives: dict[str, float] = {}
        for other, logprob in token.top[:width]:
            alternatives.setdefault(self._text[other], logprob)
        alternatives.setdefault(self._text[token.id], token.logprob)
        return alternatives
