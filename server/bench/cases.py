"""What a headline workload is, and what its figures are measured against."""

import math
from typing import Literal, Self

import msgspec

Shape = Literal["llama8b", "bge-base", "xlmr-large"]
Figures = dict[str, float]

_GPUS = (1, 2, 4)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What one figure of a case is compared with: our goal, vLLM's figure, the hardware's floor.

    Each holds values for 1, 2 and 4 GPUs, one to a pipeline stage, as far as they are known.
    """

    figure: str
    unit: str
    goal: tuple[float, ...]
    vllm: tuple[float, ...] = ()
    floor: tuple[float, ...] = ()
    at_least: bool = True

    def is_met(self, value: float, goal: float) -> bool:
        """Whether `value` is as good as `goal`."""
        return value >= goal if self.at_least else value <= goal


def for_gpus(values: tuple[float, ...], gpus: int) -> float | None:
    """Of a target's values, that for so many GPUs; None where it is not known."""
    return next((value for known, value in zip(_GPUS, values, strict=False) if known == gpus), None)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A workload: `count` of something, on a model of `shape`."""

    name: str
    count: int
    targets: tuple[Target, ...]
    shape: Shape

    @property
    def what(self) -> str:
        """The workload in words."""
        raise AssertionError("a case is one of the kinds below")

    def scaled(self, scale: float) -> Self:
        """The same with that fraction of its count, at least 1."""
        return msgspec.structs.replace(self, count=max(1, math.ceil(self.count * scale)))


class GenerationCase(Case, frozen=True, kw_only=True):
    """Offline generation: `count` groups of `members` prompts of `prefix` shared and `own` tokens,
    each continued by exactly `outputs`; in the order of the groups, or `shuffled`."""

    members: int = 1
    prefix: int = 0
    own: int
    outputs: int
    shuffled: bool = False
    shape: Shape = "llama8b"

    @property
    def prompt_tokens(self) -> int:
        """Of one prompt."""
        return self.prefix + self.own

    @property
    def what(self) -> str:
        if not self.prefix:
            return f"{self.count} x ({self.own} in, {self.outputs} out)"
        order = "shuffled" if self.shuffled else "group after group"
        prompts = f"{self.count} groups x {self.members}: {self.prefix} shared + {self.own} own in"
        return f"{prompts}, {self.outputs} out, {order}"


class EncodeCase(Case, frozen=True, kw_only=True):
    """Offline prefill: `count` sequences of `prompt_tokens` ids, each to a vector or a score."""

    prompt_tokens: int

    @property
    def what(self) -> str:
        return f"{self.count} x {self.prompt_tokens} tokens"


class HTTPGenerationCase(Case, frozen=True, kw_only=True):
    """Streaming completions: `count` texts of `prompt_tokens`, each continued by `outputs`.

    `in_flight` at once, each followed by the next when it has ended (None: all at once); or, with
    a `rate`, so many a second at even intervals.
    """

    prompt_tokens: int
    outputs: int
    in_flight: int | None = None
    rate: float | None = None
    shape: Shape = "llama8b"

    @property
    def what(self) -> str:
        load = f"{self.count} x ({self.prompt_tokens} in, {self.outputs} out)"
        if self.rate is not None:
            return f"{load}, {self.rate:g} a second"
        return f"{load}, " + (
            "all at once" if not self.in_flight else f"{self.in_flight} in flight"
        )


class HTTPEmbeddingCase(Case, frozen=True, kw_only=True):
    """Embeddings: `count` requests of `texts` texts of `tokens` (special tokens come on top),
    `in_flight` at once; vectors come back in base64 or as JSON numbers."""

    texts: int
    tokens: int
    in_flight: int
    base64: bool
    shape: Shape = "bge-base"

    @property
    def what(self) -> str:
        form = "base64" if self.base64 else "JSON numbers"
        each = f"{self.count} x ({self.texts} x {self.tokens} tokens)"
        return f"{each}, {self.in_flight} in flight, {form}"


OfflineCase = GenerationCase | EncodeCase
HTTPCase = HTTPGenerationCase | HTTPEmbeddingCase
