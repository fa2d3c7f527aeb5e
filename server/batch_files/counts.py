"""What a job has done so far, in numbers."""

import msgspec

from server.batch_files.batch_lines import Answer, LineError


class Counts(msgspec.Struct, kw_only=True):
    """Requests in all, answered well, and failed; tokens as the answers' usage has them: those of
    `prompt_tokens` that were not computed again are `saved_tokens`."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    saved_tokens: int = 0

    @property
    def done(self) -> int:
        """Requests that have a result or an error."""
        return self.completed + self.failed

    @property
    def saved_share(self) -> float:
        """Between 0 and 1."""
        return self.saved_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def since(self, earlier: "Counts") -> "Counts":
        """What was done after `earlier`."""
        return Counts(
            total=self.total,
            completed=self.completed - earlier.completed,
            failed=self.failed - earlier.failed,
            prompt_tokens=self.prompt_tokens - earlier.prompt_tokens,
            output_tokens=self.output_tokens - earlier.output_tokens,
            saved_tokens=self.saved_tokens - earlier.saved_tokens,
        )

    def add(self, outcome: Answer | LineError) -> None:
        """One more is done."""
        if isinstance(outcome, LineError) or not outcome.is_good:
            self.failed += 1
            return
        self.completed += 1
        if (usage := _usage_in(outcome.body)) is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.output_tokens += usage.completion_tokens
            if (details := usage.prompt_tokens_details) is not None:
                self.saved_tokens += details.cached_tokens


class _Details(msgspec.Struct):
    cached_tokens: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answered(msgspec.Struct):
    usage: _Usage | None = None


_answered = msgspec.json.Decoder(_Answered)


def _usage_in(body: bytes) -> _Usage | None:
    """None for an answer without one like ours."""
    try:
        return _answered.decode(body).usage
    except msgspec.ValidationError:
        return None
