"""The number of a pipeline's micro-batches, the rows of the next one, the steps in flight."""

from collections import Counter
from itertools import accumulate
from operator import attrgetter

from engine_core.schedulers.prompt_budget import StepTime
from engine_core.schedulers.request import UNSHARED, Request
from engine_core.schedulers.shared_prefixes import SharedPrefixes
from workers.contract.config import ExecutionConfig, max_micro_batches

_UNEVEN = 0.02
"""Leave micro-batches of one size as they are if their times differ by less."""

_UNEVEN_GROUPS = 0.05
"""Change of a micro-batch's size so that rows which share a prefix are in one."""

_age = attrgetter("last_step", "shared_block")


class MicroBatches:
    """Generating requests are divided evenly over M micro-batches.

    M is P, the number of stages, while reading the weights takes most of a step. Where prompts wait
    for whole rounds of steps, arithmetic does. Then M is up to P + 2: no stage runs dry behind a
    long step. Rows that share a prefix, which each step attends once, are in one micro-batch.
    """

    def __init__(
        self, config: ExecutionConfig, step_time: StepTime, shared: SharedPrefixes
    ) -> None:
        self._shared = shared
        self._stages = config.num_stages
        self._most = max_micro_batches(config.num_stages)
        self._ahead = config.steps_ahead
        self._step_time = step_time
        self.count = config.num_stages
        self._generating = 0

    @property
    def depth(self) -> int:
        """The most steps in flight: one a micro-batch, and those ahead."""
        return self.count + self._ahead

    def decide(self, generating: int, prompt_tokens: int) -> None:
        """Choose M for the next step, while `prompt_tokens` could be computed."""
        self._generating = generating
        work = self._step_time.cost_model.coefficients.token * prompt_tokens if generating else 0.0
        rounds = work / (self._step_time.of(work) * self._stages)
        self.count = min(self._stages + int(rounds), self._most)

    def share(self, ready: list[Request], contexts: int, step: int) -> list[Request]:
        """The next micro-batch, as step number `step`: the `ready` requests that waited longest.

        It takes an even share of the time of all generating requests, of `contexts` positions: the
        slowest micro-batch sets the pace."""
        if self._stages == 1 or not ready:
            return ready
        _, token, _, context = self._step_time.cost_model.coefficients
        share = (token * self._generating + context * contexts) / self.count
        even = -(-self._generating // self.count)
        ready = self._without_strays(ready, even, step)
        if len(ready) > even:
            ready = sorted(ready, key=_age)
        times = [token + context * request.submitted for request in ready]
        cut = even
        if len(ready) < even or abs(sum(times[:even]) / share - 1) >= _UNEVEN:
            # A row belongs to the share in which more than half of it lies.
            middles = (end - time / 2 for end, time in zip(accumulate(times), times, strict=True))
            cut = max(1, sum(middle <= share for middle in middles))
        return ready[: _beside_groups(ready, cut)]

    def _without_strays(self, ready: list[Request], even: int, step: int) -> list[Request]:
        """Leave out a few rows for a step at most: half of their prefix's rows are in flight."""
        if not self._shared:
            return ready
        room, strays = int(even * _UNEVEN_GROUPS), set[int]()
        for block, count in Counter(row.shared_block for row in ready).items():
            if block != UNSHARED and count <= room and 2 * count <= self._shared.members(block):
                strays.add(block)
                room -= count
        kept = [
            request
            for request in ready
            if request.shared_block not in strays or step - request.last_step > self.count
        ]
        return kept or ready


def _beside_groups(rows: list[Request], cut: int) -> int:
    """How many of the first `rows` make a micro-batch of about `cut` that ends between groups."""
    for distance in range(int(cut * _UNEVEN_GROUPS) + 1):
        for near in (cut - distance, cut + distance):
            if 0 < near <= len(rows) and not _is_within_a_group(rows, near):
                return near
    return cut


def _is_within_a_group(rows: list[Request], cut: int) -> bool:
    return cut < len(rows) and UNSHARED != rows[cut - 1].shared_block == rows[cut].shared_block
