"""How long the outputs of the batch band are expected to be."""

from engine_core.schedulers.requests.request import Request


class OutputLengths:
    """The mean of what has finished, at most a request's own bound; that bound before."""

    def __init__(self) -> None:
        self._finished = self._tokens = 0

    @property
    def mean(self) -> float | None:
        """Output tokens a finished request; None if none has finished."""
        return self._tokens / self._finished if self._finished else None

    def finish(self, request: Request) -> None:
        """Count a request that has come to its own end."""
        self._finished += 1
        self._tokens += len(request.tokens) - request.prompt_len

    def expected(self, request: Request) -> float:
        """Tokens, at least one."""
        most = request.max_len - request.prompt_len
        return max(1.0, most if self.mean is None else min(self.mean, most))
