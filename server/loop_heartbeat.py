"""Shows the supervisor that an event loop makes progress."""

import asyncio

from workers.contract.process import BEAT_SECONDS, Heartbeat


async def keep_beating() -> None:
    """Send a heartbeat every BEAT_SECONDS, until cancelled."""
    heartbeat = Heartbeat()
    while True:
        heartbeat.beat()
        await asyncio.sleep(BEAT_SECONDS)
