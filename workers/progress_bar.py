"""The progress of long work during start-up."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

ItemT = TypeVar("ItemT")

_DELAY_SECONDS, _LOG_SECONDS = 1.0, 5.0

_logger = logging.getLogger(__name__)


def progress(what: str, items: Iterable[ItemT], total: int) -> Iterator[ItemT]:
    """The `total` items, after a while with a bar on standard error if that is a terminal, else
    with a log line every few seconds."""
    logged, terminal = time.monotonic(), sys.stderr.isatty()
    bar = tqdm(items, what, total, disable=not terminal, delay=_DELAY_SECONDS)
    for done, item in enumerate(bar):
        if not terminal and time.monotonic() - logged > _LOG_SECONDS:
            logged = time.monotonic()
            _logger.info("%s: %d of %d", what, done, total)
        yield item
