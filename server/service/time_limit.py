"""How long a request may take (`--max-request-seconds`): its time begins when its body has come."""

import asyncio
import time
from collections.abc import Awaitable
from typing import TypeVar

from engine_core.refusal import RefusalError
from server.metrics.request_record import RequestRecord
from server.settings.limits import Limits

Result = TypeVar("Result")


def time_left(limits: Limits, record: RequestRecord) -> float | None:
    """In seconds, below 0 if there is none left; None without a limit."""
    if not limits.max_request_seconds:
        return None
    begun = record.started if record.begun is None else record.begun
    return begun + limits.max_request_seconds - time.perf_counter()


async def within_limit(limits: Limits, record: RequestRecord, work: Awaitable[Result]) -> Result:
    """What `work` returns; it is cancelled when the request's time is over.

    Raises RefusalError `request_timeout`, or what `work` raises.
    """
    seconds = time_left(limits, record)
    if seconds is None:
        return await work
    limit = asyncio.timeout(max(seconds, 0.0))
    try:
        async with limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        message = f"no request may take longer than {limits.max_request_seconds:g} s here"
        raise RefusalError("request_timeout", message) from None
