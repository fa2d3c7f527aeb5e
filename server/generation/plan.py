"""A request for text, once it has been checked."""

import msgspec

from engine_core.messages import SamplingParams, Tokenization
from server.service.inputs import Items


class GenerationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is generated for a request, and how much of it is returned.

    `width` choices of each prompt are generated, and the best `n` of them returned. `logprobs`
    counts the alternatives returned with each sampled token, None for no log-probabilities at all;
    `params` may request more from the engine. With `echo` a choice's text begins with its prompt.
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
    return_token_ids: bool = False

    @property
    def rows(self) -> int:
        """Sequences: `width` for each prompt."""
        return len(self.prompts) * self.width

    def tokens(self, prompt_tokens: int, max_model_len: int) -> int:
        """The most tokens that the job may hold: its prompts, and every row run to its end."""
        limit = self.params.max_tokens
        longest = max_model_len if limit is None else min(limit, max_model_len)
        return prompt_tokens + self.rows * longest
