"""A result or an error for each request of a job, and the job's summary."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from engine_core.refusal import ErrorCode
from server.schemas.common import CompletionUsage, FinishReason
from server.schemas.completions import CompletionChoice, CompletionLogprobs

Sharing = Literal["by token", "by whole blocks"]
"""How prompts that begin alike share what is computed of their prefix."""


@dataclass(eq=False)
class RequestError(ValueError):
    """One request of a job was refused or failed. The error stands in place of its result."""

    code: ErrorCode | str
    message: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's choices as `/v1/completions` returns them. The properties are the first one's."""

    choices: list[CompletionChoice]
    usage: CompletionUsage

    @property
    def text(self) -> str:
        """The text as it is returned, without a stop string."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Every sampled token, a stop token included."""
        ids = self.choices[0].token_ids
        return ids if isinstance(ids, list) else []

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> CompletionLogprobs | None:
        """The tokens' log-probabilities, if they were requested."""
        return self.choices[0].logprobs

    @property
    def cached_tokens(self) -> int:
        """The number of the prompt's tokens that had been computed before."""
        return self.usage.prompt_tokens_details.cached_tokens


GenerateResult = Generated | RequestError


class JobStoppedError(RuntimeError):
    """The engine or the daemon of a job is gone, or refuses everything. `results` has the results
    so far, None for a request without one."""

    def __init__(self, message: str, results: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    """The counts of an answer, by the names of completions, of decisions or of messages."""

    prompt_tokens: int = 0
    input_tokens: int = 0
    completion_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int = 0


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


class Summary(msgspec.Struct, kw_only=True):
    """One job in numbers, kept up to date while it runs.

    `done` counts `failed` requests, and `earlier` ones of other runs. `saved_tokens` of the
    `prompt_tokens` were not computed again.
    """

    requests: int = 0
    done: int = 0
    earlier: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    saved_tokens: int = 0
    seconds: float = 0.0
    sharing: Sharing = "by token"

    @property
    def completed(self) -> int:
        return self.done - self.failed

    @property
    def computed_tokens(self) -> int:
        """Generated tokens, and those of prompts that were not saved."""
        return self.prompt_tokens - self.saved_tokens + self.output_tokens

    @property
    def saved_share(self) -> float:
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def requests_per_s(self) -> float:
        """The rate of this run, failed requests included."""
        return (self.done - self.earlier) / self.seconds

    def count(self, *, failed: bool = False) -> None:
        self.done += 1
        self.failed += failed

    def add_usage(self, body: bytes) -> None:
        """Add the tokens that a good answer reports, if it does."""
        with suppress(msgspec.ValidationError):
            usage = msgspec.json.decode(body, type=_Answered).usage or _Usage()
            details = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
            beside = usage.cache_read_input_tokens
            self.prompt_tokens += (usage.prompt_tokens or usage.input_tokens) + beside
            self.output_tokens += usage.completion_tokens or usage.output_tokens
            self.saved_tokens += details.cached_tokens + beside

    def __str__(self) -> str:
        earlier = f", {self.earlier:,} of them earlier" if self.earlier else ""
        return (
            f"{self.requests:,} requests{earlier} ({self.failed:,} failed) in "
            f"{self.seconds:,.1f} s, {self.requests_per_s:,.1f} req/s; "
            f"{self.prompt_tokens:,} tokens in, {self.saved_tokens:,} of them saved "
            f"({self.saved_share:.1%}, {self.sharing}), {self.output_tokens:,} out"
        )
