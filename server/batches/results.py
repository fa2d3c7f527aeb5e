"""What a job gives: a result or an error for each of its requests, and a summary."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from engine_core.refusal import ErrorCode
from server.schemas.common import CompletionUsage, FinishReason
from server.schemas.completions import CompletionChoice, CompletionLogprobs

Sharing = Literal["by token", "by whole blocks"]
"""How prompts that begin alike share what is computed of their prefix."""


class RequestError(Exception):
    """Why one request of a job was refused or failed. It stands in the place of its result."""

    def __init__(self, code: ErrorCode | str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def __repr__(self) -> str:
        return f"RequestError({self.code!r}, {self.message!r}, {self.param!r})"


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is continued by: `n` choices as `/v1/completions` has them, with their token
    ids. The properties are those of the first."""

    choices: list[CompletionChoice]
    usage: CompletionUsage

    @property
    def text(self) -> str:
        """As it is returned: without a stop string."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Every sampled token, a stop token included."""
        ids = self.choices[0].token_ids
        return [] if isinstance(ids, msgspec.UnsetType) else ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> CompletionLogprobs | None:
        """Its tokens' log-probabilities, if they were requested."""
        return self.choices[0].logprobs

    @property
    def cached_tokens(self) -> int:
        """How many of the prompt's tokens had been computed before."""
        return self.usage.prompt_tokens_details.cached_tokens


GenerateResult = Generated | RequestError


class JobStoppedError(RuntimeError):
    """The engine or the daemon of a job is gone, or refuses everything.

    `results` has what was done until then, in the order of the requests: None where nothing was.
    """

    def __init__(self, message: str, results: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One job in numbers. `failed` of the `requests` have an error for a result. `saved_tokens` of
    the `prompt_tokens` were not computed again, as the engine counted them."""

    requests: int
    failed: int
    prompt_tokens: int
    output_tokens: int
    saved_tokens: int
    seconds: float
    sharing: Sharing

    @property
    def saved_share(self) -> float:
        """Between 0 and 1."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def requests_per_s(self) -> float:
        """Failed ones included."""
        return self.requests / self.seconds

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests ({self.failed:,} failed) in {self.seconds:,.1f} s, "
            f"{self.requests_per_s:,.1f} req/s; {self.prompt_tokens:,} tokens in, "
            f"{self.saved_tokens:,} of them saved ({self.saved_share:.1%}, {self.sharing}), "
            f"{self.output_tokens:,} out"
        )
