"""Prompts that are continued through the engine client."""

import time
from collections.abc import Coroutine, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec
import numpy as np

from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import GenerateStream
from engine_core.messages import JobOptions, RowOutput, SamplingParams
from server.bench.cases.random_prompts import output_lengths
from server.bench.cases.workloads import GenerationCase
from server.bench.results.measurement import BenchError, Figures, milliseconds
from server.bench.together import together

_PROMPTS_A_JOB = 64
_ID_BYTES = 4
_STOP_TOKEN = 1
_CERTAIN = 1e4  # a bias that leaves no other token a chance


class Prompt(msgspec.Struct, frozen=True):
    """A prompt (int32 ids), how it is sampled, and how many tokens follow it."""

    ids: bytes
    params: SamplingParams
    outputs: int


def prompts_of(
    case: GenerationCase, ids: Sequence[bytes], most_outputs: int | None = None
) -> list[Prompt]:
    """The prompts of a case, in order; each is followed by at most `most_outputs` tokens, if that
    is given."""
    lengths = output_lengths(case, len(ids))
    if most_outputs is not None:
        lengths = [min(each, most_outputs) for each in lengths]
    params = {length: _params(case, length) for length in set(lengths)}
    return [Prompt(own, params[each], each) for own, each in zip(ids, lengths, strict=True)]


def _params(case: GenerationCase, outputs: int) -> SamplingParams:
    """With `case.most_outputs` a row ends by a token that is certain as soon as it may come, so
    that the engine does not know before how long the row becomes."""
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
    """Prompts in order."""

    unit = "tokens"

    def __init__(
        self, client: EngineClient, prompts: Sequence[Prompt], *, prefix_caching: bool
    ) -> None:
        """Without `prefix_caching`, jobs have cache salts of their own: none finds what another has
        computed."""
        self.total = sum(prompt.outputs for prompt in prompts)
        self.client, self.prompts = client, prompts
        self._caching = prefix_caching
        self._tokens = 0
        self._first = np.zeros(len(prompts))
        self._last = np.zeros(len(prompts))
        self._submitted = 0.0

    def done(self) -> int:
        """Output tokens so far."""
        return self._tokens

    async def run(self) -> None:
        """Submit all prompts and wait for every row."""
        self._submitted = time.perf_counter()
        await together(list(self.jobs()))

    def jobs(self) -> Iterator[Coroutine[object, object, None]]:
        """One for every few neighbouring prompts with the same parameters."""
        most = _PROMPTS_A_JOB if self._caching else 1
        for _, alike in groupby(range(len(self.prompts)), lambda i: self.prompts[i].params):
            numbers = list(alike)
            for start in range(0, len(numbers), most):
                yield self._job(numbers[start : start + most])

    def salt(self, number: int) -> str:
        """The cache salt of the job whose first prompt has this number."""
        return "" if self._caching else f"{number}"

    async def _job(self, numbers: Sequence[int]) -> None:
        prompts = [self.prompts[number] for number in numbers]
        ids, salt = [prompt.ids for prompt in prompts], self.salt(numbers[0])
        stream = await self.client.generate(
            prompts[0].params, ids=ids, options=JobOptions(cache_salt=salt)
        )
        await self.follow(stream, numbers)

    async def follow(self, stream: GenerateStream, numbers: Sequence[int]) -> None:
        """Count what comes for a job with the prompts of these numbers, until its end."""
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
                        _check(self.prompts[number], output, counts[output.row])
                        self._last[number] = now
                self._tokens += len(updates)

    def figures(self, seconds: float) -> Figures:
        """Rates; times to the first token (from the first submit, queueing included) and of each
        token after it."""
        requests = len(self.prompts)
        rates = {
            "requests": requests,
            "prompt_tokens": sum(len(prompt.ids) for prompt in self.prompts) // _ID_BYTES,
            "output_tokens": self.total,
            "requests_per_s": requests / seconds,
            "output_tokens_per_s": self.total / seconds,
        }
        rates |= milliseconds("ttft", self._first - self._submitted)
        outputs = np.array(list(map(attrgetter("outputs"), self.prompts)))
        several = outputs > 1
        decoding = (self._last - self._first)[several]
        return rates | milliseconds("tpot", decoding / (outputs[several] - 1))


def _check(prompt: Prompt, output: RowOutput, count: int) -> None:
    expected = "stop" if prompt.params.stop_token_ids else "length"
    if output.finish != expected or count != prompt.outputs:
        raise BenchError(f"a row ended ({output.finish}) after {count} of {prompt.outputs} tokens")
