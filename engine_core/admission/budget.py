"""The bound on work in flight: rows and tokens of all jobs that are admitted and not finished."""

from engine_core.job import Job, PrefixGroup, RefusalError
from engine_core.messages import EncodeJob, GenerateJob


class Budget:
    """Rows and tokens in flight. Text counts its bytes until it has been tokenized."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._rows = self._tokens = 0

    def admit(
        self, client: bytes, message: GenerateJob | EncodeJob, group: PrefixGroup | None = None
    ) -> Job:
        """Admit a whole job. Raises RefusalError: `too_large` if it could never fit, `overloaded`
        if it does not fit now."""
        rows, cost = _size(message)
        if rows < 1:
            raise RefusalError("invalid_request", "the request has no items")
        if rows > self._max_rows or cost > self._max_tokens:
            raise RefusalError(
                "too_large",
                f"the request has {rows} rows and up to {cost} tokens; this server takes at most "
                f"{self._max_rows} rows and {self._max_tokens} tokens at once",
            )
        if self._rows + rows > self._max_rows or self._tokens + cost > self._max_tokens:
            raise RefusalError("overloaded", "the server is at capacity; try again later")
        self._rows += rows
        self._tokens += cost
        return Job(client, message, rows, cost, group)

    def correct(self, job: Job, tokens: int) -> None:
        """Replace the estimate of a job's tokens by their count."""
        self._tokens += tokens - job.cost
        job.cost = tokens

    def release(self, job: Job) -> None:
        """The job has ended: give back its rows and tokens."""
        self._rows -= job.num_rows
        self._tokens -= job.cost


def _size(message: GenerateJob | EncodeJob) -> tuple[int, int]:
    """(rows, upper bound of tokens): a token has at least one byte, an id has four."""
    text_bytes = sum(len(text.encode()) for text in message.texts)
    tokens = text_bytes + sum(len(ids) // 4 for ids in message.ids)
    items = len(message.texts) + len(message.ids)
    if isinstance(message, GenerateJob):
        return items * message.n, tokens * message.n
    return items, tokens + _query_bytes(message.query, items)


def _query_bytes(query: str | list[str] | None, items: int) -> int:
    """A query counts once for every pair that it is part of."""
    if query is None:
        return 0
    if isinstance(query, str):
        return len(query.encode()) * items
    return sum(len(text.encode()) for text in query)
