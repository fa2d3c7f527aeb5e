"""The requests of a case, all there at the start."""

from typing import NamedTuple

from server.bench.workloads import GENERATION, GenerationCase

CASES = {case.name: case for case in GENERATION if case.members == 1}
"""Cases without shared prefixes: measured times do not say what sharing saves."""


class Load(NamedTuple):
    """One request: tokens of its prompt, tokens that it generates."""

    prompt: int
    output: int


def load(case: GenerationCase, scale: float = 1.0) -> list[Load]:
    """The requests of a case, or a part of them."""
    part = case.scaled(scale)
    return [Load(part.own_of(number), part.outputs) for number in range(part.count)]
