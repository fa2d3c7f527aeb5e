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
    invalid,
)
from server.schemas.sampling import SamplingOptions


class PromptObject(msgspec.Struct, frozen=True):
    """A prompt as vLLM's Python API has it: a text or its token ids."""

    prompt: str | None = None
    """The text."""
    prompt_token_ids: list[int] | None = None
    """The token ids; not together with `prompt`."""

    def opened(self, field: str) -> tuple[str, str | list[int]]:
        """The field that is given and what is in it, where the object itself is in `field`. Raises
        RefusalError unless it is one of the two."""
        ids_field = f"{field}.prompt_token_ids"
        if self.prompt_token_ids is None:
            if self.prompt is None:
                raise invalid(ids_field, "is required without prompt")
            return f"{field}.prompt", self.prompt
        if self.prompt is not None:
            raise invalid(ids_field, "not together with prompt")
        return ids_field, self.prompt_token_ids


class CompletionRequest(SamplingOptions, kw_only=True, frozen=True):
    """A request of `/v1/completions`."""

    """Example: {"max_tokens": 12, "prompt": "The function returns", "temperature": 0}"""
    """Example: {"max_tokens": 8, "n": 2, "prompt": ["The file", "The server"], "seed": 7, "stop": "
    the"}"""

    prompt: str | PromptObject | list[str | int | list[int] | PromptObject]
    """Texts get special tokens, and are empty only if there are any; ids are used as they are.
    Either texts or ids within the vocabulary, bare or in [objects](#prompts-promptobject), no empty
    lists; over 2048: `too_large`."""
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 to 2³¹ − 1; more than the prompt leaves of the context: `context_length_exceeded`. 0
    generates nothing: see [scores of a prompt](#scores-of-a-prompt). Default: 16, or what the
    prompt leaves, if anything."""
    max_completion_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """Another name of `max_tokens`; refused if both are given and differ."""
    best_of: Count | None = None
    """From `n`; over 128: `too_large`. Choices generated for each prompt: the `n` with the highest
    mean log-probability are returned, the best first; with `stream` only `n`. Default: `n`."""
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """0 to 20: alternatives reported for each token, with `echo` also for the prompt's."""


class CompletionLogprobs(msgspec.Struct, frozen=True):
    text_offset: list[int]
    """Where each token's text begins in `text`, in characters."""
    token_logprobs: list[float | None]
    """Log-probability of each token before sampling options; null for a prompt's first."""
    tokens: list[str]
    """Each token's text, `bytes:...` for a part of a character, or its `token_id:...`."""
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens, or those named, and the token itself: text to log-probability; null for
    a prompt's first."""


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One continuation, or its next piece in a stream."""

    index: int
    """Number of the choice: that of the prompt times `n`, plus that among the prompt's choices."""
    text: str
    """The generated text, behind the prompt's with `echo`; in a stream, what is added to it."""
    logprobs: CompletionLogprobs | None
    """Log-probabilities of the tokens, if requested; else null."""
    finish_reason: FinishReason | None
    """`length` at `max_tokens`, `stop` at an end, `timeout` at the deadline; null before a stream's
    end."""
    token_ids: list[int] | UnsetType | None = None
    """Ids of the generated tokens, if `return_token_ids` asks for them; else null, and absent in a
    stream, like the next two."""
    prompt_token_ids: list[int] | UnsetType | None = None
    """Ids of the prompt, by `return_token_ids`; in a stream in the choice's first chunk."""
    prompt_logprobs: PromptLogprobs | UnsetType | None = None
    """For each token of the prompt the likeliest and itself, by id, if asked; null for the
    first."""


class Completion(TextAnswer, kw_only=True, frozen=True):
    """The answer of `/v1/completions`, and each chunk of a stream."""

    object: str = "text_completion"
    """Always `text_completion`."""
    choices: list[CompletionChoice]
    """One for each prompt and choice, prompt by prompt; in a stream, the pieces of this chunk."""
    usage: CompletionUsage | UnsetType | None = UNSET
    """Counts of tokens; in a stream absent, or with `include_usage` null until the last chunk."""
