"""The progress of long work during start-up."""

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

ItemT = TypeVar("ItemT")

_LOG_SECONDS = 5.0

_logger = logging.getLogger(__name__)


def progress(what: str, items: Sequence[ItemT]) -> Iterator[ItemT]:
    """The items, with a bar on standard error if that is a terminal, else a log line every few
    seconds."""
    logged, terminal = time.monotonic(), sys.stderr.isatty()
    for done, item in enumerate(tqdm(items, what, disable=not terminal)):
        if not terminal and time.monotonic() - logged > _LOG_SECONDS:
            logged = time.monotonic()
            _logger.info("%s: %d of %d", what, done, len(items))
        yield item
