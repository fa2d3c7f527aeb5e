"""The requests of a case: all there at the start, or at a rate."""

import math
import random
from typing import NamedTuple

from server.bench.workloads import GENERATION, GenerationCase

CASES = {case.name: case for case in GENERATION if case.members == 1}
"""Cases without shared prefixes: measured times do not say what sharing saves."""


class Load(NamedTuple):
    """One request: tokens of its prompt, tokens that it generates, the second of its arrival."""

    prompt: int
    output: int
    arrival: float = 0.0


def load(case: GenerationCase, scale: float = 1.0, rate: float = math.inf) -> list[Load]:
    """The requests of a case, or a part of them. `rate` arrive a second, by a Poisson process."""
    part, drawn, now = case.scaled(scale), random.Random(0), 0.0
    requests: list[Load] = []
    for number in range(part.count):
        now += drawn.expovariate(1.0) / rate
        requests.append(Load(part.own_of(number), part.outputs, now))
    return requests
