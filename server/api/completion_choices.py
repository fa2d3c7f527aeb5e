"""From text pieces to the choices of `/v1/completions`."""

from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw

from server.generation.prompt_logprobs import in_turns, prompt_logprobs
from server.generation.text_piece import ScoredToken, TextPiece
from server.schemas.common import PromptLogprobs
from server.schemas.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
)
from server.service.registry import Model
from server.service.token_text import TokenIds

_NO_SCORES = Raw(b"[null]")
"""Those of a prompt that the engine has not computed in time."""


class CompletionFormat:
    """Formats the pieces of one answer, with the parts that its request selects."""

    def __init__(self, body: CompletionRequest, model: Model) -> None:
        self._prompt_text = model.token_text
        self._text = TokenIds() if body.return_tokens_as_token_ids else model.token_text
        self._logprobs = body.logprobs
        self._prompt_logprobs = body.prompt_logprobs
        self._echo = bool(body.echo)
        self._has_ids = bool(body.return_token_ids)
        # The scores of the last prompt, as JSON: those by token id, and the columns of `logprobs`.
        self._scored: list[ScoredToken] = []
        self._scores = _NO_SCORES
        self._columns: list[bytes] = []

    async def encode_scores(self, piece: TextPiece) -> None:
        """To be called before `choice`, if the piece has scores of its prompt: they are encoded,
        with other requests in between, and once for all choices."""
        tokens = piece.prompt_tokens
        if tokens is self._scored:
            return
        self._scored = tokens
        if (width := self._prompt_logprobs) is not None:
            self._scores = await prompt_logprobs(tokens, width, self._prompt_text)
        if self._echo and (width := self._logprobs) is not None:
            parts = [
                [msgspec.json.encode(column)[1:-1] for column in self._columns_of(some, width)]
                async for some in in_turns(tokens, width)
            ]
            self._columns = [b",".join(column) for column in zip(*parts, strict=True)]

    def choice(self, piece: TextPiece) -> CompletionChoice:
        """One choice, or a piece of it."""
        return CompletionChoice(
            index=piece.index,
            text=piece.text,
            logprobs=None if self._logprobs is None else self._logprobs_of(piece, self._logprobs),
            finish_reason=piece.finish_reason,
            token_ids=piece.token_ids if self._has_ids else UNSET,
            prompt_token_ids=UNSET if piece.prompt_ids is None else piece.prompt_ids,
            prompt_logprobs=UNSET
            if self._prompt_logprobs is None
            else cast("PromptLogprobs", self._scores if piece.prompt_tokens else _NO_SCORES),
        )

    def _logprobs_of(self, piece: TextPiece, width: int) -> CompletionLogprobs:
        """`width` alternatives for each token; the token itself is always among them."""
        columns = self._columns_of(piece.tokens, width)
        if not self._echo or not piece.prompt_tokens:
            return CompletionLogprobs(*columns)
        joined = [
            before if not column else before + b"," + msgspec.json.encode(column)[1:-1]
            for before, column in zip(self._columns, columns, strict=True)
        ]
        return CompletionLogprobs(*(cast("Any", Raw(b"[" + column + b"]")) for column in joined))

    def _columns_of(
        self, tokens: list[ScoredToken], width: int
    ) -> tuple[list[int], list[float | None], list[str], list[dict[str, float] | None]]:
        """Those of CompletionLogprobs, in order."""
        return (
            [token.offset for token in tokens],
            [token.logprob for token in tokens],
            [self._text[token.id] for token in tokens],
            [self._alternatives(token, width) for token in tokens],
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
