"""How much a job asks for, before its texts are tokenized."""

from typing import NamedTuple

from engine_core.messages import EncodeJob, GenerateJob


class JobSize(NamedTuple):
    """Rows of a job, the tokens `sent` and the `tokens` of all rows.

    Both are from above: a token has at least one byte, an id has four."""

    rows: int
    sent: int
    tokens: int


def job_size(message: GenerateJob | EncodeJob) -> JobSize:
    """Count a job as engines admit it, and as their clients keep room for it."""
    text_bytes = sum(len(text.encode()) for text in message.texts)
    sent = text_bytes + sum(len(ids) // 4 for ids in message.ids)
    items = len(message.texts) + len(message.ids)
    if isinstance(message, GenerateJob):
        return JobSize(items * message.n, sent, sent * message.n)
    return JobSize(items, sent, sent + _query_bytes(message.query, items))


def _query_bytes(query: str | list[str] | None, items: int) -> int:
    """A query counts once for every pair that it is part of."""
    if query is None:
        return 0
    if isinstance(query, str):
        return len(query.encode()) * items
    return sum(len(text.encode()) for text in query)
