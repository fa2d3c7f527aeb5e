"""Token ids in, vectors or scores out, through the engine client."""

from collections.abc import Coroutine, Iterator, Sequence

import numpy as np

from engine_core.client.engine_client import EngineClient
from engine_core.messages import JobOptions
from server.bench.results.measurement import BenchError, Figures

_ID_BYTES = 4


class Sequences:
    """Sequences of one case, in jobs of many."""

    unit = "sequences"

    def __init__(
        self,
        client: EngineClient,
        sequences: Sequence[bytes],
        *,
        rows_a_job: int,
        salted: bool,
    ) -> None:
        """If `salted`, each is a job with a cache salt of its own."""
        self._rows_a_job, self._salted = 1 if salted else rows_a_job, salted
        self.total = len(sequences)
        self._client, self._sequences = client, sequences

    def done(self) -> int:
        """According to the engine's last heartbeat; they come once a second."""
        beat = self._client.beat
        left = beat.usage.waiting + beat.usage.running if beat is not None else 0
        return self.total - left if left else 0

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        """One for every few neighbouring sequences."""
        return map(self._encode, range(0, self.total, self._rows_a_job))

    async def _encode(self, start: int) -> None:
        ids = list(self._sequences[start : start + self._rows_a_job])
        options = JobOptions(cache_salt=f"{start}" if self._salted else "")
        numbers = (await self._client.encode(ids=ids, options=options)).values
        if len(numbers) != len(ids) or not np.isfinite(numbers).all():
            raise BenchError(f"{len(ids)} sequences gave {len(numbers)} results")

    def figures(self, started: float, seconds: float) -> Figures:
        """Rates."""
        tokens = sum(map(len, self._sequences)) // _ID_BYTES
        return {
            "sequences": self.total,
            "prompt_tokens": tokens,
            "sequences_per_s": self.total / seconds,
            "prompt_tokens_per_s": tokens / seconds,
        }
