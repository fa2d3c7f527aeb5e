"""The end of a process with one of its threads, whose work nobody would do otherwise."""

import logging
import os
import threading
from collections.abc import Callable
from typing import NoReturn

from workers.contract.process.standard_error import finish_standard_error

_log = logging.getLogger(__name__)

LastWords = Callable[[str, BaseException], object]
"""Called with what has ended, such as "thread heartbeat", and with its exception."""


def _log_end(what: str, error: BaseException) -> None:
    _log.critical("%s has ended by an exception", what, exc_info=error)


def end_process(what: str, error: BaseException, last_words: LastWords = _log_end) -> NoReturn:
    """End this process at once, with status 1, because `what` has ended by `error`.

    What waits to be written is written for a second at most, then the last words, directly.
    """
    try:
        finish_standard_error()
        last_words(what, error)
    finally:
        os._exit(1)


def end_with_threads(last_words: LastWords = _log_end) -> None:
    """Have an exception that ends any thread, but for the main one, end this process."""

    def end(ended: threading.ExceptHookArgs) -> None:
        name = "a thread" if ended.thread is None else f"thread {ended.thread.name}"
        end_process(name, ended.exc_value or ended.exc_type(), last_words)

    threading.excepthook = end
