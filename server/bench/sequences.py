"""Token ids in, vectors or scores out, through the engine client."""

from collections.abc import Sequence

import numpy as np

from engine_core.client.engine_client import EngineClient
from engine_core.messages import JobOptions
from server.bench.results.measurement import BenchError, Figures
from server.bench.together import together

_ID_BYTES = 4


class Sequences:
    """Sequences of one case, in jobs of many."""

    unit = "sequences"

    def __init__(
        self,
        client: EngineClient,
        sequences: Sequence[bytes],
        *,
        rows_a_job: int = 1024,
        prefix_caching: bool = True,
    ) -> None:
        """Without `prefix_caching`, jobs have cache salts of their own."""
        self._rows_a_job, self._caching = rows_a_job, prefix_caching
        self.total = len(sequences)
        self._client, self._sequences = client, sequences

    def done(self) -> int:
        """According to the engine's last heartbeat; they come once a second."""
        beat = self._client.beat
        left = beat.usage.waiting + beat.usage.running if beat is not None else 0
        return self.total - left if left else 0

    async def run(self) -> None:
        """Submit all sequences and wait for every row."""
        starts = range(0, self.total, self._rows_a_job)
        await together([self._encode(start) for start in starts])

    async def _encode(self, start: int) -> None:
        ids = list(self._sequences[start : start + self._rows_a_job])
        options = JobOptions(cache_salt="" if self._caching else f"{start}")
        numbers = (await self._client.encode(ids=ids, options=options)).values
        if len(numbers) != len(ids) or not np.isfinite(numbers).all():
            raise BenchError(f"{len(ids)} sequences gave {len(numbers)} results")

    def figures(self, seconds: float) -> Figures:
        """Rates."""
        tokens = sum(map(len, self._sequences)) // _ID_BYTES
        return {
            "sequences": self.total,
            "prompt_tokens": tokens,
            "sequences_per_s": self.total / seconds,
            "prompt_tokens_per_s": tokens / seconds,
        }
