"""Whether batches are answered now: once in the log, and always for `/status` and the metrics."""

import logging
from pathlib import Path

from server.observe.processes import BatchState

_log = logging.getLogger("penstock")


class BatchHealth:
    """Batches wait until they are said to run. The log has why they wait, if there is a reason."""

    def __init__(self, file: Path | None = None) -> None:
        """`file` is that of `BatchState`. Raises OSError."""
        self._state = None if file is None else BatchState(file)
        self._reason = ""
        self.runs = False

    def wait(self, reason: object) -> None:
        """Note that batches wait, for this reason. The first one is logged."""
        if not self._reason:
            self._reason = str(reason)
            _log.warning("files and batches wait (--state-dir): %s", reason)
        self._set(runs=False)

    def run(self) -> None:
        """Note that batches run."""
        if self._reason:
            self._reason = ""
            _log.info("files and batches go on")
        self._set(runs=True)

    def _set(self, *, runs: bool) -> None:
        self.runs = runs
        if self._state is not None:
            self._state.set(runs=runs)
