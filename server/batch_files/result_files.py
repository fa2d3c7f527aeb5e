"""The results of a job in the order of its lines, in the files that people read."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from server.batch_files.batch_lines import Answer, read_output
from server.batch_files.result_log import ResultLog, explained
from server.sync_folder import draft_of, sync_folder

_BUFFER = 1 << 20


def write_results(
    log: ResultLog,
    output: Path,
    errors: Path | None,
    missing: Callable[[int], bytes | None],
) -> None:
    """Every result of `log` to `output`, or with `errors` those that failed there; `missing` makes
    one for a request without, or leaves it out.

    The files get their names when all is written. Raises JobFileError.
    """
    paths = [output] if errors is None else [output, errors]
    drafts = [draft_of(path) for path in paths]
    try:
        with explained(drafts[0], log.num_bytes), ExitStack() as opened:
            files = [opened.enter_context(draft.open("wb", _BUFFER)) for draft in drafts]
            for index, logged in log.results():
                result = missing(index) if logged is None else logged
                if result is not None:
                    file = files[0] if errors is None or _is_good(result) else files[1]
                    file.write(result + b"\n")
            for file in files:
                _sync(file)
        for draft, path in zip(drafts, paths, strict=True):
            draft.replace(path)
        sync_folder(output.parent)
    finally:
        for draft in drafts:
            draft.unlink(missing_ok=True)


def _is_good(result: bytes) -> bool:
    outcome = read_output(result)
    return isinstance(outcome, Answer) and outcome.is_good


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
