"""Prompts that are continued through the engine client."""

import time
from collections.abc import Coroutine, Iterator, Sequence
from itertools import groupby

import numpy as np

from engine_core.client.engine_client import EngineClient
from engine_core.messages import JobOptions, RowOutput, SamplingParams
from server.bench.cases.random_prompts import output_lengths
from server.bench.cases.workloads import GenerationCase
from server.bench.results.measurement import BenchError, Figures, milliseconds

_PROMPTS_A_JOB = 64
_ID_BYTES = 4
_STOP_TOKEN = 1
_CERTAIN = 1e4  # a bias that leaves no other token a chance


def sampling_params(case: GenerationCase, outputs: int) -> SamplingParams:
    """How a prompt is sampled that is continued by so many tokens.

    With `case.most_outputs` a row ends by a token that is certain as soon as it may come, so that
    the engine does not know before how long the row becomes.
    """
    if not case.most_outputs:
        return SamplingParams(sampling=case.sampling, max_tokens=outputs, ignore_eos=True)
    return SamplingParams(
        sampling=case.sampling,
        seed=0,
        max_tokens=case.most_outputs,
        min_tokens=outputs - 1,
        stop_token_ids=frozenset({_STOP_TOKEN}),
        logit_bias={_STOP_TOKEN: _CERTAIN},
    )


class Continuations:
    """The prompts of a case (int32 ids each) in order, continued in jobs of neighbours."""

    unit = "tokens"

    def __init__(
        self,
        client: EngineClient,
        case: GenerationCase,
        prompts: Sequence[bytes],
        *,
        most_outputs: int | None = None,
        salted: bool = False,
    ) -> None:
        """Each prompt is followed by at most `most_outputs` tokens, if that is given. If `salted`,
        each is a job with a cache salt of its own: none finds what another has computed."""
        self._client, self._case, self._prompts = client, case, prompts
        self._most_prompts, self._salted = 1 if salted else _PROMPTS_A_JOB, salted
        lengths = output_lengths(case, len(prompts))
        self._outputs = np.minimum(lengths, most_outputs or max(lengths))
        self.total = int(self._outputs.sum())
        self._tokens = 0
        self._first = np.zeros(len(prompts))
        self._last = np.zeros(len(prompts))

    def done(self) -> int:
        """Output tokens so far."""
        return self._tokens

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        """One for every few neighbouring prompts with the same number of outputs."""
        for outputs, alike in groupby(range(len(self._prompts)), self._outputs.item):
            numbers = list(alike)
            for start in range(0, len(numbers), self._most_prompts):
                yield self._job(numbers[start : start + self._most_prompts], outputs)

    async def _job(self, numbers: Sequence[int], outputs: int) -> None:
        """Continue the prompts of these numbers, and count what comes for them."""
        stream = await self._client.generate(
            sampling_params(self._case, outputs),
            ids=[self._prompts[number] for number in numbers],
            options=JobOptions(cache_salt=f"{numbers[0]}" if self._salted else ""),
        )
        counts = [0] * len(numbers)
        with stream:
            while updates := await stream.next():
                now = time.perf_counter()
                for output in updates:
                    number = numbers[output.row]
                    if output.token >= 0:
                        counts[output.row] += 1
                        if counts[output.row] == 1:
                            self._first[number] = now
                    if output.finish is not None:
                        self._check(output, counts[output.row], outputs)
                        self._last[number] = now
                self._tokens += len(updates)

    def _check(self, output: RowOutput, count: int, outputs: int) -> None:
        expected = "stop" if self._case.most_outputs else "length"
        if output.finish != expected or count != outputs:
            raise BenchError(f"a row ended ({output.finish}) after {count} of {outputs} tokens")

    def figures(self, started: float, seconds: float) -> Figures:
        """Rates; times to the first token (from `started`, queueing included) and of each token
        after it."""
        requests = len(self._prompts)
        rates = {
            "requests": requests,
            "prompt_tokens": sum(map(len, self._prompts)) // _ID_BYTES,
            "output_tokens": self.total,
            "requests_per_s": requests / seconds,
            "output_tokens_per_s": self.total / seconds,
        }
        rates |= milliseconds("ttft", self._first - started)
        several = self._outputs > 1
        decoding = (self._last - self._first)[several]
        return rates | milliseconds("tpot", decoding / (self._outputs[several] - 1))
