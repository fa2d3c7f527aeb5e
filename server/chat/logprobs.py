"""Chat's log-probabilities, which tell tokens apart that read the same."""

import copy

from server.generation.token_text import TokenText
from server.registry import Model
from server.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.schemas.completions import CompletionLogprobs


class TokenIds(TokenText):
    """Spells tokens by their ids: "17"."""

    def __getitem__(self, token: int) -> str:
        return str(token)


class ChatSpelling:
    """A model's tokens, as chat's log-probabilities tell them."""

    def __init__(self, model: Model) -> None:
        self._bytes = model.token_bytes
        self._text = TokenText(model.token_bytes, mark="")
        # Legacy log-probabilities are keyed by text; by ids they lose nothing on their way here.
        self.by_ids = copy.copy(model)
        self.by_ids.token_text = TokenIds(model.token_bytes)

    def told(self, entries: CompletionLogprobs, width: int) -> ChatLogprobs:
        """What `by_ids` has collected, with the `width` likeliest tokens at each place."""
        rows = zip(entries.tokens, entries.token_logprobs, entries.top_logprobs, strict=True)
        return ChatLogprobs(
            content=[
                self._entry(int(token), own or 0.0, top or {}, width) for token, own, top in rows
            ]
        )

    def _entry(self, token: int, own: float, top: dict[str, float], width: int) -> TokenLogprob:
        # The chosen token comes last in `top` where it is not among the likeliest.
        likeliest = [
            TopLogprob(
                token=self._text[int(other)], logprob=value, bytes=self._byte_list(int(other))
            )
            for other, value in list(top.items())[:width]
        ]
        return TokenLogprob(
            token=self._text[token],
            logprob=own,
            bytes=self._byte_list(token),
            top_logprobs=likeliest,
        )

    def _byte_list(self, token: int) -> list[int] | None:
        data = self._bytes[token]
        return None if data is None else list(data)
