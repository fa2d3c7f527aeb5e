"""A mixture of experts: the router, and feed-forward networks of which each token gets some."""

from dataclasses import replace
from typing import NamedTuple

import torch

from workers.contract.experts import ExpertsConfig
from workers.layers.activations import Gate
from workers.layers.layer import Layer, Placement, Vector
from workers.layers.linear import ExpertLinear, Linear
from workers.layers.linear_method import Groups

CORRECTION = ".e_score_correction_bias"
"""The end of the name of what corrects scores, which has another dimension in some checkpoints."""


class Choice(NamedTuple):
    """The K experts of each token, integers [N, K], and the weights of their outputs, [N, K]."""

    experts: torch.Tensor
    weights: torch.Tensor


class Router(Layer):
    """Chooses experts for rows. Of equal scores that one is taken which `torch.topk` takes, on CUDA
    the first."""

    def __init__(
        self, in_features: int, config: ExpertsConfig, name: str, placement: Placement
    ) -> None:
        own = replace(placement, quantization=None)
        if config.wide_router:
            own = replace(own, dtype=torch.float32)
        self._config, self._dtype, self._kernels = config, own.dtype, placement.expert_kernels
        members = {name: config.count}
        self._product = Linear(in_features, members, own, bias=config.router_bias)
        self._correction = None
        if config.correction:
            self._correction = Vector(name + CORRECTION, config.count, own)

    def __call__(self, rows: torch.Tensor) -> Choice:
        """Rows [N, in_features]."""
        correction = None if self._correction is None else self._correction.values
        given = self._product(rows.to(self._dtype)), self._config, correction
        if self._kernels is not None and self._kernels.routing.chooses(self._config):
            return Choice(*self._kernels.routing.choose(*given))
        return choose(*given)


def choose(logits: torch.Tensor, config: ExpertsConfig, correction: torch.Tensor | None) -> Choice:
    """The experts of tokens with logits [N, E], in torch's operations. A `correction` is
    float32[E]."""
    logits, count = logits.float(), config.active
    if config.scoring == "sparsemixer":
        return _sparsely_mixed(logits, config)
    if config.scoring == "chosen":
        best, experts = logits.topk(count, dim=-1)
        return Choice(experts, best.softmax(dim=-1))
    scores = logits.sigmoid() if config.scoring == "sigmoid" else logits.softmax(dim=-1)
    ranked = scores if correction is None else scores + correction
    if config.groups > 1:
        grouped = ranked.view(len(ranked), config.groups, -1)
        best_groups = grouped.topk(2, dim=-1).values.sum(-1).topk(config.active_groups, dim=-1)
        left_out = torch.ones_like(grouped[..., 0]).scatter_(-1, best_groups.indices, 0.0).bool()
        ranked = grouped.masked_fill(left_out.unsqueeze(-1), -torch.inf).flatten(1)
    experts = ranked.topk(count, dim=-1).indices
    weights = scores.gather(-1, experts)
    if config.normalised:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=config.least_sum)
    return Choice(experts, weights * config.scale)


def _sparsely_mixed(logits: torch.Tensor, config: ExpertsConfig) -> Choice:
    """Each expert is the best of those that are left. Its weight is its part of a softmax over
    logits not far below it."""
    left, chosen = logits, list[Choice]()
    for _ in range(config.active):
        best, expert = left.max(dim=-1, keepdim=True)
        far = (best - logits) / logits.abs().clamp(min=best) > 2 * config.jitter
        weights = left.masked_fill(far, -torch.inf).softmax(dim=-1)
        chosen.append(Choice(expert, weights.gather(-1, expert)))
        left = left.scatter(-1, expert, -torch.inf)
    return Choice(*(torch.cat(parts, dim=-1) for parts in zip(*chosen, strict=True)))


class Experts(Layer):
    """The networks of experts `name`, and the sum of their outputs."""

    def __init__(
        self, in_features: int, config: ExpertsConfig, gate: Gate, name: str, placement: Placement
    ) -> None:
        self._count, self._kernels, bias = config.count, placement.expert_kernels, config.bias
        names = [f"{name}.{expert}" for expert in range(config.count)]
        inner, size = config.size, in_features
        ups = [{f"{own}.gate_proj": inner, f"{own}.up_proj": inner} for own in names]
        downs = [{f"{own}.down_proj": size} for own in names]
        self._up = ExpertLinear(size, ups, placement, bias=bias, gate=gate)
        self._down = ExpertLinear(inner, downs, placement, bias=bias)

    def add_to(self, residual: torch.Tensor, rows: torch.Tensor, choice: Choice) -> torch.Tensor:
        """`residual` [N, in_features], which may be overwritten, plus the outputs for the rows."""
        groups, kernels = self._grouped(choice), self._kernels
        outputs = self._down.of_pairs(self._up.of_tokens(rows, groups), groups)
        if kernels is not None:
            return kernels.routing.combine(residual, outputs, choice.weights)
        by_token = outputs.view(*choice.experts.shape, -1)
        total, weights = residual.float(), choice.weights.unsqueeze(-1)
        for place in range(groups.active):
            total = total.addcmul(by_token[:, place].float(), weights[:, place])
        return total.to(residual.dtype)

    def _grouped(self, choice: Choice) -> Groups:
        active = choice.experts.shape[1]
        if self._kernels is not None:
            order, ends = self._kernels.routing.group(choice.experts, self._count)
            return Groups(order, ends, active)
        pairs, order = choice.experts.flatten().sort(stable=True)
        experts = torch.arange(self._count, device=pairs.device)
        ends = torch.searchsorted(pairs, experts, right=True, out_int32=True)
        return Groups(order, ends, active)
