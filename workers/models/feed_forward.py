"""The feed-forward network of a decoder's layer: one for all tokens, or a mixture of experts."""

from typing import Protocol

import torch

from workers.contract.experts import ExpertsConfig
from workers.contract.model_config import DecoderConfig, ModelConfig
from workers.layers.activations import ACTIVATIONS, Gate
from workers.layers.experts import Experts, Router
from workers.layers.layer import Layer, Placement
from workers.layers.linear import Linear
from workers.layers.norm import RMSNorm


class FeedForward(Protocol):
    """Rows [N, hidden_size] to rows of that shape. `norm` is applied to the rows first."""

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor: ...

    def add_to(
        self, residual: torch.Tensor, rows: torch.Tensor, norm: RMSNorm | None = None
    ) -> torch.Tensor:
        """`residual`, which may be overwritten and may be the rows, plus the output."""
        ...


def feed_forward(
    config: ModelConfig, family: DecoderConfig, layer: int, placement: Placement
) -> FeedForward:
    """The network of layer number `layer`."""
    name, experts = f"model.layers.{layer}.mlp", family.experts
    if experts is None or layer in experts.dense_layers:
        size = config.inner_size(layer)
        return DenseFeedForward(config.hidden_size, size, family, name, placement)
    return MixedFeedForward(config.hidden_size, experts, family, name, placement)


class DenseFeedForward(Layer):
    """Two products about an activation, or three, one of which is its gate's."""

    def __init__(
        self, size: int, inner: int, family: DecoderConfig, name: str, placement: Placement
    ) -> None:
        """Of rows of `size` numbers, and `inner` ones between."""
        function, bias = ACTIVATIONS[family.hidden_act], family.mlp_bias
        members = {f"{name}.{part}_proj": inner for part in ("gate", "up")}
        if family.fused_gate_up:
            members = {f"{name}.gate_up_proj": 2 * inner}
        if not family.gated:
            members = {f"{name}.up_proj": inner}
        gate, after = (function, None) if family.gated else (None, function)
        self._up = Linear(size, members, placement, bias=bias, gate=gate, function=after)
        self._down = Linear(inner, {f"{name}.down_proj": size}, placement, bias=bias)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self._down(self._up(rows, norm))

    def add_to(
        self, residual: torch.Tensor, rows: torch.Tensor, norm: RMSNorm | None = None
    ) -> torch.Tensor:
        return self._down.add_to(residual, self._up(rows, norm))


class MixedFeedForward(Layer):
    """Experts, and perhaps a network beside them for all tokens, whose output may have a gate."""

    def __init__(
        self,
        size: int,
        experts: ExpertsConfig,
        family: DecoderConfig,
        name: str,
        placement: Placement,
    ) -> None:
        gate: Gate = experts.clamp or ACTIVATIONS[family.hidden_act]
        self._router = Router(size, experts, f"{name}.gate", placement)
        self._experts = Experts(size, experts, gate, f"{name}.experts", placement)
        self._shared = self._shared_gate = None
        if experts.shared_size:
            shared = f"{name}.shared_expert"
            self._shared = DenseFeedForward(size, experts.shared_size, family, shared, placement)
        if experts.shared_gate:
            members = {f"{name}.shared_expert_gate": 1}
            self._shared_gate = Linear(size, members, placement, bias=False)

    def __call__(self, rows: torch.Tensor, norm: RMSNorm | None = None) -> torch.Tensor:
        return self.add_to(torch.zeros_like(rows), rows, norm)

    def add_to(
        self, residual: torch.Tensor, rows: torch.Tensor, norm: RMSNorm | None = None
    ) -> torch.Tensor:
        # The sum may be written where the rows are, which the shared network needs.
        rows = norm(rows) if norm is not None else rows.clone() if rows is residual else rows
        total = self._experts.add_to(residual, rows, self._router(rows))
        if self._shared is None:
            return total
        if self._shared_gate is None:
            return self._shared.add_to(total, rows)
        return total.addcmul_(self._shared(rows), self._shared_gate(rows).sigmoid())
