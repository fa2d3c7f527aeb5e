"""Chat's log-probabilities, which tell tokens apart that read the same."""

from server.schemas.chat import ChatLogprobs, TokenLogprob, TopLogprob
from server.schemas.completions import CompletionLogprobs
from server.service.registry import Model
from server.service.token_text import TokenIds, TokenText


class ChatSpelling:
    """A model's tokens, as chat's log-probabilities tell them."""

    def __init__(self, model: Model, *, as_ids: bool) -> None:
        self._bytes = model.token_bytes
        self._text = TokenIds() if as_ids else TokenText(model.token_bytes, mark="")

    def told(self, entries: CompletionLogprobs, width: int) -> ChatLogprobs:
        """What was collected by ids, with the `width` likeliest tokens at each place."""
        rows = zip(entries.tokens, entries.token_logprobs, entries.top_logprobs, strict=True)
        return ChatLogprobs(
            content=[
                self._entry(TokenIds.id_of(token), own or 0.0, top or {}, width)
                for token, own, top in rows
            ]
        )

    def _entry(self, token: int, own: float, top: dict[str, float], width: int) -> TokenLogprob:
        # The chosen token comes last in `top` where it is not among the likeliest.
        best = [(TokenIds.id_of(other), value) for other, value in list(top.items())[:width]]
        likeliest = [
            TopLogprob(token=self._text[other], logprob=value, bytes=self._byte_list(other))
            for other, value in best
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
