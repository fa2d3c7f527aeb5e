"""A model's engines, which are copies of each other, and the choice of one for each job."""

from collections.abc import Iterable
from typing import Self

from engine_core.client.engine_client import EngineClient
from engine_core.config import EngineConfig
from engine_core.messages import JobOptions
from workers.contract.process import BEAT_SECONDS

_NO_OPTIONS = JobOptions()


class Engines(list[EngineClient]):
    """The clients of all engines of one model, of which there is at least one."""

    @classmethod
    def of(cls, engines: Iterable[EngineConfig]) -> Self:
        """Clients of engines that are started again if they may be."""
        return cls(
            EngineClient(engine.client_endpoint, returns=engine.max_restarts > 0)
            for engine in engines
        )

    def start(self) -> None:
        """Connect to all of them, which need not be up yet."""
        for engine in self:
            engine.start()

    async def wait_ready(self) -> None:
        """Wait until all of them serve. Raises RefusalError if one dies first."""
        for engine in self:
            await engine.wait_ready()

    def close(self) -> None:
        """Disconnect from all of them. Running jobs fail here, and are aborted there."""
        for engine in self:
            engine.close()

    @property
    def are_dead(self) -> bool:
        """Whether all of them are gone for good."""
        return all(engine.dead for engine in self)

    @property
    def are_loading(self) -> bool:
        """Whether none of them has told of its model yet."""
        return all(engine.info is None for engine in self)

    @property
    def is_ready(self) -> bool:
        """Whether one of them is there, and has all its stages."""
        return any(engine.is_ready for engine in self)

    def choose(self, options: JobOptions = _NO_OPTIONS) -> EngineClient:
        """The engine to which a job of these options is to be sent at once.

        That is one that is ready, has not just refused such a job, and has the least expected wait.
        Of equal ones that with the fewest rows of this client, or else that which has waited
        longest for a job.
        """

        def order(engine: EngineClient) -> tuple[float, ...]:
            # A wait is up to a heartbeat old, in which many jobs come. An engine that is passed
            # over for so long has work until then if it is longer; shorter ones are equal.
            wait = 0.0 if engine.beat is None else engine.beat.expected_wait_s // BEAT_SECONDS
            refuses = engine.breakers[options.key.number].refuses(options.priority)
            gone = engine.dead or engine.info is None
            return gone, not engine.is_ready, refuses, wait, engine.rows, engine.sent_at

        return min(self, key=order)
