"""Waiting for what happens in another thread or process.

A passing test ends with the event, so that all may be as patient as the busiest machine asks for.
"""

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which nothing will come."""


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Poll until `condition` holds. Raises TimeoutError.

    Pauses grow: a poll takes time from what it waits for.
    """
    deadline = time.monotonic() + seconds
    pause = 0.005
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
