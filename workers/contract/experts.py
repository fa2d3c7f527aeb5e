"""The mixture of experts in a decoder's layers (no torch)."""

from typing import Literal

import msgspec

Scoring = Literal["softmax", "sigmoid", "chosen", "sparsemixer"]
"""How a router's logits become scores: over all experts, each alone, over those that are chosen
by their logits, or one after the other (Liu et al. 2024, arXiv:2409.12136)."""

Stacking = Literal["outputs", "either", "pairs"]
"""A layer's experts in one tensor of a checkpoint: by outputs as in a linear layer, by outputs or
by inputs as its shape says, or by inputs with outputs of gate and up by turns."""


class Clamp(msgspec.Struct, frozen=True, kw_only=True):
    """The gate of gpt-oss: (u + 1) * g * sigmoid(`alpha` * g) of g and u.

    Before, g is bounded by `limit` from above, and u on both sides."""

    alpha: float = 1.702
    limit: float = 7.0


class ExpertsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Feed-forward networks of which a router gives each token some (Shazeer et al. 2017,
    arXiv:1701.06538), and sums their outputs by its scores.

    count, active  a layer's experts, and how many of them a token gets
    size           inner features of an expert
    dense_layers   layers with one feed-forward network for all tokens instead
    normalised     scores of a token's experts are divided by their sum, at least `least_sum`
    correction     experts are chosen by their scores plus a stored number each
    groups         of them the `active_groups` with the best sum of two scores are chosen from
    scale          of the scores
    jitter         the sparsemixer's bound on the scores that compete, half of it
    wide_router    the router computes in float32
    bias           of the experts' products, `router_bias` of the router's
    shared_size    inner features of a network beside the experts, which every token gets. Its
                   output may have a gate of its own, the sigmoid of one product
    clamp          the experts' gate, if not the usual one
    stacking       of the experts in checkpoints that have them in one tensor
    """

    count: int
    active: int
    size: int
    dense_layers: tuple[int, ...] = ()
    scoring: Scoring = "softmax"
    normalised: bool = True
    least_sum: float = 0.0
    correction: bool = False
    groups: int = 1
    active_groups: int = 1
    scale: float = 1.0
    jitter: float = 0.0
    wide_router: bool = False
    router_bias: bool = False
    bias: bool = False
    shared_size: int = 0
    shared_gate: bool = False
    clamp: Clamp | None = None
    stacking: Stacking = "outputs"
