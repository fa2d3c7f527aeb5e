"""What a request for text comes to, once it has been checked."""

import msgspec

from engine_core.messages import SamplingParams, Tokenization
from server.service.inputs import Items


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of a generator, and how its text is to be told.

    `n` choices of each prompt are told, of `width` that are generated.
    `logprobs` and `prompt_logprobs` count the alternatives to tell, None is none at all; `params`
    may ask the engine for more. With `tokens_as_ids` log-probabilities spell tokens by their ids.
    `timeout` is in seconds from the request's arrival.
    """

    prompts: Items
    n: int
    width: int
    params: SamplingParams
    stops: tuple[str, ...]
    logprobs: int | None
    echo: bool
    cache_salt: str = ""
    tokenization: Tokenization = Tokenization()
    priority: int = 0
    timeout: float | None = None
    include_stop: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    tokens_as_ids: bool = False

    @property
    def rows(self) -> int:
        """Sequences: `width` for each prompt."""
        return len(self.prompts) * self.width

    def tokens(self, prompt_tokens: int, max_model_len: int) -> int:
        """What the job may come to hold: its prompts, and every row run to its end."""
        wanted = self.params.max_tokens
        longest = max_model_len if wanted is None else min(wanted, max_model_len)
        return prompt_tokens + self.rows * longest
