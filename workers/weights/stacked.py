"""A layer's experts that a checkpoint has in one tensor, cut into those that the model has."""

import re
from dataclasses import dataclass

import torch

from workers.contract.experts import ExpertsConfig, Stacking

_KINDS = {
    "": "weight",
    ".weight": "weight",
    "_scale_inv": "weight_scale_inv",
    "_activation_scale": "activation_scale",
    "_bias": "bias",
    "_blocks": "weight_blocks",
    "_scales": "weight_scales",
}
_STACK = re.compile(rf"(.*\.experts)\.(gate_up|down)_proj({'|'.join(map(re.escape, _KINDS))})")
_PACKED, _BLOCK_BYTES = ("_blocks", "_scales"), 16
"""Kinds of MXFP4, which are by outputs, and the bytes of a block's numbers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One expert's part of a tensor [count, ...] of this `kind`. `half` is which half of its
    outputs, those of gate or up; None for all."""

    expert: int
    count: int
    half: int | None
    kind: str
    stacking: Stacking

    def whole(self, part: torch.Size, stored: torch.Size) -> list[int]:
        """The shape that the tensor of shape `stored` needs, by that of the part."""
        shape = [*part]
        if shape and self.half is not None:
            shape[0] *= 2
        if self.kind == "_blocks":
            shape[-1:] = [shape[-1] // _BLOCK_BYTES, _BLOCK_BYTES]
        return [self.count, *(shape if self._by_outputs(part, stored) else shape[::-1])]

    def of(self, whole: torch.Tensor, part: torch.Size) -> torch.Tensor:
        """The part, of this shape."""
        own = whole[self.expert]
        if len(part) > 1:
            own = own.flatten(1) if self._by_outputs(part, whole.shape) else own.t()
        if self.half is None or not part:  # gate and up may have one scale
            return own
        return own[self.half :: 2] if self.stacking == "pairs" else own.chunk(2)[self.half]

    def _by_outputs(self, part: torch.Size, stored: torch.Size) -> bool:
        """As transformers sees it, where the shape decides."""
        if len(part) < 2 or self.kind in _PACKED or self.stacking != "either":
            return self.kind in _PACKED or self.stacking == "outputs"
        return stored[1:2] == (part[0] * (1 if self.half is None else 2),)


def cuts(name: str, config: ExpertsConfig) -> dict[str, Cut]:
    """The model's tensors by name that the tensor of canonical `name` has. Empty if it is no stack
    of experts."""
    if (found := _STACK.fullmatch(name)) is None:
        return {}
    experts, part, kind = found.groups()
    parts = {"gate": 0, "up": 1} if part == "gate_up" else {"down": None}
    return {
        f"{experts}.{expert}.{own}_proj.{_KINDS[kind]}": Cut(
            expert, config.count, half, kind, config.stacking
        )
        for expert in range(config.count)
        for own, half in parts.items()
    }
