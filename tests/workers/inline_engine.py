"""The engine's scheduler over a pipeline, without processes: whole generations, any way."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch

from engine_core.loop.jobs import Job
from engine_core.loop.outbox import Outbox
from engine_core.messages import GenerateJob, SamplingParams
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.request import Request, Status
from engine_core.tokenization.tokenized import Tokenized
from engine_core.workflows.generate import DecoderProcessor
from engine_core.workflows.tokenizer_threads import JobInputs
from tests.engine_core.configs import execution_config
from tests.engine_core.driver import hope
from tests.workers.checkpoints import with_execution, worker_config
from tests.workers.inline_pipeline import Fault, InlinePipeline
from workers.contract.config import Device, Dtype, WorkerConfig
from workers.contract.messages import DecodeStep, GenerateOutput, Logprobs


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to run a model; its text must not depend on it.

    `depth` is the most steps in flight, where the scheduler allows so many: with more than `stages`
    and a step ahead, a step is launched before the result of the one before is read, and takes its
    tokens from the slots. `arrivals` requests come a turn. Too few `num_blocks` for all that run
    mean preemption.
    """

    stages: int = 1
    device: Device = "cpu"
    dtype: Dtype = "float32"
    kv_cache_dtype: Literal["auto", "fp8_e4m3"] = "auto"
    backend: str = "auto"
    graphs: bool = False
    depth: int = 1
    steps_ahead: int = 1
    block_size: int = 16
    num_blocks: int = 1600
    max_running: int = 64
    max_step_tokens: int = 512
    arrivals: int = 1000


class Sampled(NamedTuple):
    """A sampled token: the `index`-th of the prompt's, with the log-probabilities reported.

    ids int32[width + 1] and logprobs float32[width + 1]: the token itself, then the best.
    """

    prompt: int
    index: int
    token: int
    ids: np.ndarray
    logprobs: np.ndarray


Judge = Callable[[Sampled], int]
"""Sees every sampled token and says which one the request goes on with."""

Mutation = Callable[[DecodeStep], DecodeStep]


def unchanged(message: DecodeStep) -> DecodeStep:
    return message


class InlineEngine:
    """A decoder.

    `graph_steps` counts those of its `steps` that were replayed from CUDA graphs; at most `deepest`
    were in flight. `scored` holds what was reported of each prompt's own tokens, in pieces.
    """

    def __init__(
        self,
        folder: Path,
        way: Way,
        mutate: Mutation = unchanged,
        fault: Fault | None = None,
    ) -> None:
        configs = [stage_config(folder, way, stage) for stage in range(way.stages)]
        config = configs[0]
        self.way, self.steps = way, 0
        self.scored: dict[int, list[Logprobs]] = {}
        self._pipeline = InlinePipeline(configs, way.num_blocks, fault)
        if way.graphs:
            with torch.inference_mode():
                self._pipeline.warm_up()
        engine = execution_config(
            num_stages=way.stages,
            model=config.execution.model,
            max_model_len=config.execution.max_model_len,
            max_running=way.max_running,
            max_step_tokens=way.max_step_tokens,
            block_size=way.block_size,
            steps_ahead=way.steps_ahead,
        )
        self.deepest = 0
        self.scheduler = DecoderScheduler(engine, way.num_blocks)
        hope(self.scheduler)
        self._processor = DecoderProcessor(engine, way.num_blocks)
        self._mutate = mutate
        self._open_jobs = 0
        self._outbox = Outbox(self._job_ended)

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        judge: Judge,
        *,
        batch: bool = False,
    ) -> None:
        """Bring every prompt to its end, in the batch band or not. `judge` may change tokens at
        depth 1 only."""
        waiting = deque(enumerate(prompts))
        in_flight: deque[DecodeBatch] = deque()
        while waiting or self._open_jobs:
            for _ in range(min(self.way.arrivals, len(waiting))):
                self._admit(*waiting.popleft(), params, batch=batch)
            while len(in_flight) < min(self.way.depth, self.scheduler.depth()):
                step = self.scheduler.schedule(in_flight[0] if in_flight else None)
                if step is None:
                    break
                self._pipeline.launch(self._mutate(self.scheduler.build(step)))
                self.steps += 1
                in_flight.append(step)
            self.deepest = max(self.deepest, len(in_flight))
            self._finish(in_flight.popleft(), judge)
        for wasted in in_flight:
            self._finish(wasted, judge)

    def _admit(
        self, number: int, prompt: Sequence[int], params: SamplingParams, *, batch: bool
    ) -> None:
        message = GenerateJob(number, params=params, batch=batch)
        job = Job(b"test", message, num_rows=1, cost=0)
        inputs = JobInputs(job, [Tokenized(array("i", prompt).tobytes())])
        requests = self._processor.prepare(inputs).rows
        self._open_jobs += 1
        self.scheduler.add(job, requests)

    def _job_ended(self, job: Job) -> None:
        del job
        self._open_jobs -= 1

    @property
    def graph_steps(self) -> int:
        return self._pipeline.graph_steps

    def _finish(self, batch: DecodeBatch, judge: Judge) -> None:
        result = self._pipeline.result(batch.step)
        if result.copied is not None:
            result.copied.synchronize()
        output = result.result.to_output(batch.step)
        assert isinstance(output, GenerateOutput)
        rows = zip(batch.requests, batch.samples, strict=True)
        requests = [request for request, samples in rows if samples]
        if requests:
            own = np.frombuffer(output.tokens, np.int32)
            tokens = [
                # A wasted row, whose text had ended, is nobody's.
                sampled.token if request.status is Status.ENDED else judge(sampled)
                for request, sampled in zip(requests, _sampled(requests, output), strict=True)
            ]
            output = msgspec.structs.replace(output, tokens=np.array(tokens, np.int32).tobytes())
            if tokens != own.tolist():
                self._go_on_with(requests, tokens)
        self.scheduler.update(batch, output, self._outbox)
        for _, outputs in self._outbox.take():
            for row in outputs.rows:
                if row.scored is not None:
                    self.scored.setdefault(row.job, []).append(row.scored)

    def _go_on_with(self, requests: Sequence[Request], tokens: Sequence[int]) -> None:
        assert self.way.depth == 1, "the next step has been launched with the sampled tokens"
        slots = np.array([request.slot for request in requests], np.int32)
        self._pipeline.store_last_tokens(slots, np.array(tokens, np.int32))


def _sampled(requests: Sequence[Request], output: GenerateOutput) -> list[Sampled]:
    reported = output.sampled
    assert reported is not None, "every request asks for log-probabilities"
    tokens = np.frombuffer(output.tokens, np.int32)
    shape = (len(requests), reported.width)
    ids = np.frombuffer(reported.top_ids, np.int32).reshape(shape)
    best = np.frombuffer(reported.top, np.float32).reshape(shape)
    chosen = np.frombuffer(reported.chosen, np.float32)
    return [
        Sampled(
            request.job.message.id,
            len(request.tokens) - request.prompt_len,
            int(tokens[row]),
            np.append(tokens[row], ids[row]),
            np.append(chosen[row], best[row]),
        )
        for row, request in enumerate(requests)
    ]


def stage_config(folder: Path, way: Way, stage: int = 0) -> WorkerConfig:
    return with_execution(
        worker_config(
            folder, stage=stage, num_stages=way.stages, device=way.device, dtype=way.dtype
        ),
        attention_backend=way.backend,
        kv_cache_dtype=way.kv_cache_dtype,
        max_running=way.max_running,
        max_step_tokens=way.max_step_tokens,
        block_size=way.block_size,
    )


def swapped_blocks(at: int) -> Mutation:
    """Step `at` tells two rows that the other's first block is theirs.

    Between two rows: within one, attention would not notice, keys know their positions.
    """
    firsts: dict[int, int] = {}

    def mutate(message: DecodeStep) -> DecodeStep:
        updates = np.frombuffer(message.block_updates, np.int32).reshape(-1, 3)
        firsts.update((int(slot), int(block)) for slot, index, block in updates if index == 0)
        if message.step != at:
            return message
        one, other = np.frombuffer(message.slots, np.int32)[:2].tolist()
        swap = np.array([[one, 0, firsts[other]], [other, 0, firsts[one]]], np.int32)
        news = message.block_updates + swap.tobytes()
        return msgspec.structs.replace(message, block_updates=news)

    return mutate


def shifted_position(at: int) -> Mutation:

    def mutate(message: DecodeStep) -> DecodeStep:
        starts = np.frombuffer(message.starts, np.int32).copy()
        starts[0] += message.step == at
        return msgspec.structs.replace(message, starts=starts.tobytes())

    return mutate


MUTATIONS: dict[str, Callable[[int], Mutation]] = {
    "swapped_blocks": swapped_blocks,
    "shifted_position": shifted_position,
}
