"""`/v1/completions`."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from server.schemas.common import (
    CompletionUsage,
    Count,
    FinishReason,
    PromptLogprobs,
    TextAnswer,
    TextOrIds,
)
from server.schemas.sampling import SamplingOptions


class CompletionRequest(SamplingOptions, kw_only=True, frozen=True):
    """A request of `/v1/completions`."""

    """Example: {"max_tokens": 12, "prompt": "The function returns", "temperature": 0}"""
    """Example: {"max_tokens": 8, "n": 2, "prompt": ["The file", "The server"], "seed": 7, "stop": "
    the"}"""

    prompt: TextOrIds
    """Texts get the tokenizer's special tokens, and may be empty if the tokenizer adds any; ids are
    used as they are. Texts and ids cannot be mixed, lists cannot be empty, ids must be within the
    vocabulary; over 2048 prompts: `too_large`."""
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 to 2³¹ − 1; more than the prompt leaves of the context: `context_length_exceeded`, also
    where it is left out and the prompt leaves nothing. With 0 nothing is generated: see [scores of
    a prompt](#scores-of-a-prompt). Default: 16, or what the prompt leaves of the context."""
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Another name of `max_tokens`; refused if both are given and differ."""
    best_of: Count | None = None
    """From `n`; over 128: `too_large`. The number of choices generated for each prompt; the `n`
    whose tokens have the highest mean log-probability are returned, the best first. With `stream`
    it cannot be more than `n`. Default: `n`."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20: the number of alternatives reported for each token, with `echo` also for each of the
    prompt."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """One entry for each token."""

    text_offset: list[int]
    """Where each token's text begins in `text`, in characters."""
    token_logprobs: list[float | None]
    """Natural logarithm of each token's probability, before sampling options; null for a prompt's
    first token."""
    tokens: list[str]
    """Each token's text, `bytes:...` for a part of a character, or its id with
    `return_tokens_as_token_ids`."""
    top_logprobs: list[dict[str, float] | None]
    """For each token the likeliest ones and itself, from text to log-probability; null for a
    prompt's first token."""


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation, or its next piece in a stream."""

    index: int
    """Number of the choice: that of the prompt times `n`, plus that among the prompt's choices."""
    text: str
    """The generated text, behind the prompt's with `echo`; in a stream, what is added to it."""
    logprobs: CompletionLogprobs | None
    """Log-probabilities of the tokens, if requested; else null."""
    finish_reason: FinishReason | None
    """`length` at `max_tokens`, `stop` at an end token, stop token or stop string, `timeout` at the
    deadline; in a stream null until the choice's last chunk."""
    token_ids: list[int] | UnsetType = UNSET
    """Ids of the generated tokens, if `return_token_ids` asks for them."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """Ids of the prompt, if `return_token_ids` asks for them; in a stream in the choice's first
    chunk."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """If requested, for each token of the prompt the likeliest tokens and itself, by id; null for
    the first."""


class Completion(TextAnswer, kw_only=True, frozen=True):
    """The answer of `/v1/completions`, and each chunk of a stream."""

    object: str = "text_completion"
    """Always `text_completion`."""
    choices: list[CompletionChoice]
    """One for each prompt and choice, in the order of the prompts; in a stream, the pieces of this
    chunk."""
    usage: CompletionUsage | UnsetType | None = UNSET
    """Counts of tokens; in a stream absent, or with `include_usage` null until the last chunk."""
