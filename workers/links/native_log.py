"""What C++ libraries write to standard error, as lines of the log."""

import logging
import os
import re
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager

_STDERR = 2

_GLOO = re.compile(r"\[.*?:\d+\] (?P<level>DEBUG|INFO|WARN|ERROR) (?P<text>.*)")
"""A line of gloo's: `[FILE:LINE] LEVEL TEXT`."""


@contextmanager
def native_lines_logged(logger: logging.Logger) -> Generator[None]:
    """Afterwards, log what was written to the process's standard error meanwhile.

    For libraries that cannot be given a place to write to, as gloo. Whatever else is logged
    meanwhile would be logged as theirs.
    """
    sys.stderr.flush()
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
    """At the level that the line names; a library that names none has something to complain of."""
    found = _GLOO.fullmatch(line)
    if found is None:
        logger.warning("%s", line)
    else:
        level = logging.getLevelNamesMapping()[found["level"]]
        logger.log(level, "gloo: %s", found["text"])
