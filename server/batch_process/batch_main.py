"""The batch process: `python -P -m server.batch_process.batch_main CONFIG.json`.

CONFIG.json holds the ServerConfig of the API processes. There is one batch process, whatever their
number. SIGTERM ends it; what it was doing goes on at the next start.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import uvloop

from engine_core.refusal import RefusalError
from server.batch_process.batch_health import BatchHealth
from server.batch_process.batch_runner import RETRY_S, BatchRunner
from server.batches.engine_backend import engine_backend
from server.batches.results import JobStoppedError
from server.keys.client_keys import ClientKeys
from server.lasting_task import lasting_task
from server.loop_heartbeat import keep_beating
from server.settings.server_config import ServerConfig
from server.state.database_file import StateFolderError
from server.state.state_folder import StateFolder
from workers.contract.process import exit_with_parent, open_log

_SHARE = 0.5
"""The part of what an engine takes at once that is for batches: others find room beside them."""


async def run_batches(config: ServerConfig) -> None:
    """Until SIGTERM, which also comes when an engine is lost."""
    running = asyncio.current_task()
    assert running is not None, "a task runs this"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    assert config.state.folder is not None, "only then is there a batch process"
    beating = lasting_task(keep_beating(), "heartbeat")
    health = BatchHealth(Path(config.batch_file) if config.batch_file is not None else None)
    state = await _opened(Path(config.state.folder), config.state.token, health)
    # Lines are checked and counted where they were uploaded: here nobody asks for a key, and
    # metrics, logs and traces of requests are not those of the API processes.
    own = ServerConfig(
        strict_fields=config.strict_fields,
        log_level=config.log_level,
        limits=config.limits,
        models=config.models,
    )
    try:
        async with engine_backend(own, _SHARE) as backend:
            keys = ClientKeys(config.api_keys, config.cache_secret, config.share_prefixes)
            await BatchRunner(
                state,
                backend,
                config.limits.max_body_size,
                on_owner=lambda owner: backend.act_for(keys.of_owner(owner)),
                health=health,
            ).run()
    except (RefusalError, JobStoppedError):
        await asyncio.get_running_loop().create_future()  # the supervisor says what is lost
    finally:
        beating.cancel()
        state.close()


async def _opened(folder: Path, token: int, health: BatchHealth) -> StateFolder:
    """The state folder, as soon as it can be used."""
    while True:
        try:
            return StateFolder(folder, token)
        except StateFolderError as error:
            health.wait(error)
        await asyncio.sleep(RETRY_S)


def main() -> None:
    """The process."""
    os.umask(0o077)
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    exit_with_parent()
    config = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ServerConfig)
    open_log("batches", config.log_level)
    with suppress(asyncio.CancelledError):
        uvloop.run(run_batches(config))


if __name__ == "__main__":
    main()
