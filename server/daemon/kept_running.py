"""A process that the daemon can do without for a while: it is started again whenever it ends."""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from server.daemon.child_commands import Part
from server.daemon.running_part import RunningPart
from server.lasting_task import lasting_task

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_GRACE_S = 1.0
"""From SIGTERM to SIGKILL."""

_log = logging.getLogger("penstock")


class KeptRunning:
    """The process of `part`. One that keeps ending is started less and less often."""

    def __init__(self, part: Part, on_restart: Callable[[], None]) -> None:
        """Start it. `on_restart` is called when it has been started again. Raises OSError."""
        self._part = part
        self._on_restart = on_restart
        self._child = RunningPart(part)
        self._keeping = lasting_task(self._keep(), f"{part.title} kept running")

    @property
    def child(self) -> RunningPart:
        """The one that runs, or ran last."""
        return self._child

    async def stop(self) -> None:
        """End it: what it was doing goes on at the next start. Idempotent."""
        self._keeping.cancel()
        self._child.signal(signal.SIGTERM)
        await asyncio.wait([self._child.exit], timeout=_GRACE_S)
        self._child.signal(signal.SIGKILL)
        await asyncio.wait([self._child.exit])

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            await asyncio.wait([self._child.exit])
            if time.monotonic() - started > _LONGEST_PAUSE_S:
                pause = _FIRST_PAUSE_S
            end = self._child.end()
            _log.warning("the %s %s; starting it again in %g s", self._part.title, end, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            with suppress(OSError):  # no memory, for one: tried again after the next pause
                self._child = RunningPart(self._part)
                self._on_restart()
