"""The requests of a case, all there at the start."""

from collections.abc import Iterator
from typing import NamedTuple

LOADS = {
    "rand": "2,048 prompts of 512 tokens, 256 out",
    "dec": "256 prompts of 128 tokens, 512 out",
    "long32k": "one prompt of 32,000 tokens, 1 out",
    "skew": "1,024 prompts of 256 tokens, every 64th of 16,000, 128 out",
}


class Load(NamedTuple):
    """One request: tokens of its prompt, tokens that it generates."""

    prompt: int
    output: int


def load(name: str, scale: float = 1.0) -> list[Load]:
    """The requests of the case `name`, or a part of them; at least one."""
    requests = list(_requests(name))
    return requests[: max(1, round(scale * len(requests)))]


def _requests(name: str) -> Iterator[Load]:
    match name:
        case "rand":
            yield from [Load(512, 256)] * 2048
        case "dec":
            yield from [Load(128, 512)] * 256
        case "long32k":
            yield Load(32_000, 1)
        case "skew":
            yield from ([Load(16_000, 128)] + [Load(256, 128)] * 63) * 16
        case _:
            raise ValueError(f"no case is called {name}")
