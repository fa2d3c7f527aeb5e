"""An engine core whose worker runs by a simulated clock, as one on a GPU would."""

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from engine_core.messages import EncodeJob, GenerateJob, SamplingParams
from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.fake_transport import Engine, FakeExecutor, SimulatedEncoder
from tests.engine_core.simulated_model import SimulatedModel
from workers.contract.messages import StepInput, StepOutput, StepTimes

Seconds = Callable[[StepInput], float]

TICK = ARRIVAL = 25e-6
BLOCKS = 600


def always(seconds: float) -> Seconds:
    """Every step takes this long."""
    return lambda step: seconds


SHORT_LEAD = always(0.4e-3)


class TimedWorker(FakeExecutor):
    """Runs steps in order, each at the earliest its `lead` in seconds after its submission, and
    reports how long its device was idle before each."""

    def __init__(self, model: Any, seconds: Seconds, lead: Seconds):
        super().__init__(model)
        self.seconds, self.lead = seconds, lead
        self.now = 0.0
        self.submitted: list[StepInput] = []
        self.submit_times: list[float] = []
        self.idle: list[float] = []
        self.ends: list[float] = []
        self._queue: deque[StepOutput] = deque()

    def submit(self, step: StepInput) -> None:
        free = self.ends[-1] if self.ends else self.now
        begin = max(free, self.now + self.lead(step))
        self.submitted.append(step)
        self.submit_times.append(self.now)
        self.idle.append(begin - free)
        self.ends.append(begin + self.seconds(step))
        busy = round(self.seconds(step) * 1e6)
        times = StepTimes(idle_us=round(self.idle[-1] * 1e6), busy_us=busy)
        self._queue.append(msgspec.structs.replace(self._runner.run(step), times=times))

    def poll(self) -> StepOutput | None:
        if self._queue and self.ends[self._queue[0].step] <= self.now:
            return self._queue.popleft()
        return None


def _repeated(*tokens: int, length: int) -> bytes:
    return array("i", (tokens * length)[:length]).tobytes()


class TimedEngine:
    """A core over a `TimedWorker`, iterated every `tick` simulated seconds. Only arrivals
    take time."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        seconds: Seconds,
        lead: Seconds = SHORT_LEAD,
        *,
        tick: float = TICK,
        encodes: bool = False,
        blocks: int = BLOCKS,
        **changes,
    ) -> None:
        changes = {"max_running": 8, "max_step_tokens": 64} | changes
        generator = SimulatedModel(blocks, changes.get("block_size", 4), changes["max_running"])
        self.worker = TimedWorker(SimulatedEncoder() if encodes else generator, seconds, lead)
        self.engine = Engine(
            tokenizer,
            "BertModel" if encodes else "LlamaForCausalLM",
            0 if encodes else blocks,
            executor=self.worker,
            clock=lambda: self.worker.now,
            **changes,
        )
        self.tick = tick
        self._jobs = 0
        self._receive = self.engine.clients.receive
        self.engine.clients.receive = self._take_arrival

    def put(self, prompt_len: int, max_tokens: int, *, count: int = 1, priority: int = 0) -> int:
        """A job of prompts unlike any before arrives now. Returns its id."""
        self._jobs += 1
        names = [
            (self._jobs // 50 % 50, self._jobs % 50, row // 50, row % 50) for row in range(count)
        ]
        ids = [_repeated(*name, length=prompt_len) for name in names]
        params = SamplingParams(max_tokens=max_tokens)
        job = GenerateJob(self._jobs, params=params, ids=ids, priority=priority)
        self.engine.clients.put(b"client", job)
        return self._jobs

    def put_batch(self, prefix: int, own: int, max_tokens: int, count: int) -> None:
        """A job of the batch band arrives now, whose prompts share `prefix` tokens."""
        self._jobs += 1
        beginning = _repeated(self._jobs % 50, self._jobs // 50, length=prefix)
        params = SamplingParams(max_tokens=max_tokens)
        owns = [_repeated(row % 50, row // 50, length=own) for row in range(count)]
        ids = [beginning + each for each in owns]
        job = GenerateJob(1_000_000 + self._jobs, params=params, ids=ids, batch=True)
        self.engine.clients.put(b"batch", job)

    def put_texts(self, length: int, *, count: int = 1, priority: int = 0) -> int:
        """A job of texts to encode arrives now. Returns its id."""
        self._jobs += 1
        job = EncodeJob(self._jobs, ids=[_repeated(1, length=length)] * count, priority=priority)
        self.engine.clients.put(b"client", job)
        return self._jobs

    def iterate_until_step(self, number: int, fraction: float = 0.0) -> None:
        """Iterate until step `number` has been computed to this fraction."""
        worker = self.worker
        while len(worker.ends) <= number or worker.now < self._moment(number, fraction):
            self.iterate()

    def _take_arrival(self) -> tuple[bytes, bytes] | None:
        arrival = self._receive()
        self.worker.now += 0 if arrival is None else ARRIVAL
        return arrival

    def iterate(self) -> None:
        self.engine.core.iterate()
        self.worker.now += self.tick

    def _moment(self, number: int, fraction: float) -> float:
        seconds = self.worker.seconds(self.worker.submitted[number])
        return self.worker.ends[number] - (1 - fraction) * seconds
