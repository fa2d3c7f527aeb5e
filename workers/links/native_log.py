"""Logs the lines that C++ libraries write to standard error."""

import logging
import os
import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

_STDERR = 2

_GLOO = re.compile(r"\[.*?:\d+\] (?P<level>DEBUG|INFO|WARN|ERROR) (?P<text>.*)")
"""Gloo's format: `[FILE:LINE] LEVEL TEXT`."""


@contextmanager
def native_lines_logged(logger: logging.Logger) -> Generator[None]:
    """Capture the process's standard error, and log its lines at the end.

    For libraries such as gloo whose output cannot be redirected. The log itself has a descriptor of
    its own (`contract/process.py`).
    """
    own = os.dup(_STDERR)
    with tempfile.TemporaryFile("w+", errors="replace") as written:
        os.dup2(written.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(own, _STDERR)
            os.close(own)
            written.seek(0)
            for line in written:
                _log(logger, line.strip())


def _log(logger: logging.Logger, line: str) -> None:
    """Log a line at the level that it names; a line without one is a warning."""
    found = _GLOO.fullmatch(line)
    if found is None:
        logger.warning("%s", line)
    else:
        level = logging.getLevelNamesMapping()[found["level"]]
        logger.log(level, "gloo: %s", found["text"])
