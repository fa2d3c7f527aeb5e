"""The log-probabilities of an answer's tokens, as OpenAI's API has them."""

from collections.abc import Sequence

from server.generation.scores import ScoredToken, score_columns
from server.schemas.chat import TokenLogprob, TopLogprob
from server.service.service import Model
from server.service.token_text import TokenIds, TokenText


class TokenLogprobs:
    """Makes entries of tokens, with at most `width` alternatives beside the token itself."""

    def __init__(self, model: Model, width: int, *, as_ids: bool = False) -> None:
        self._width = width
        self._bytes = model.token_bytes
        self._text = TokenIds() if as_ids else TokenText(model.token_bytes, mark="")

    async def of(self, tokens: Sequence[ScoredToken]) -> list[TokenLogprob]:
        """The entries of tokens, made with other requests in between."""
        (entries,) = await score_columns(
            [tokens], self._width, lambda some: [[*map(self._entry, some)]]
        )
        return entries

    def _entry(self, token: ScoredToken) -> TokenLogprob:
        return TokenLogprob(
            token=self._text[token.id],
            logprob=token.logprob or 0.0,
            bytes=self._byte_list(token.id),
            top_logprobs=[
                TopLogprob(token=self._text[other], logprob=value, bytes=self._byte_list(other))
                for other, value in token.top
            ],
        )

    def _byte_list(self, token: int) -> list[int] | None:
        data = self._bytes[token]
        return None if data is None else list(data)
