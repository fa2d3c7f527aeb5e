"""What attention computes, by kind of layer: a model may alternate between two kinds (no torch)."""

import msgspec

from workers.contract.rope_config import RopeConfig


class PositionBias(msgspec.Struct, frozen=True, kw_only=True):
    """A learned number added to each score, by attention head and by the distance between the two
    tokens, which is rounded to one of `num_buckets` buckets (Raffel et al. 2019, arXiv:1910.10683).

    Distances of `max_distance` tokens and more share a bucket.
    """

    num_buckets: int
    max_distance: int


class AttentionKind(msgspec.Struct, frozen=True, kw_only=True):
    """What attention computes in one kind of layer.

    causal         a token sees itself and those before it; otherwise all of its text
    window         of those, a token sees the ones less than `window` tokens away; None for any
    scale          a score is the product of a query and a key times this
    softcap        a score then becomes softcap * tanh(score / softcap)
    position_bias  added to the scores
    rope           rotates queries and keys; None without rotary embedding
    """

    causal: bool
    window: int | None = None
    scale: float
    softcap: float | None = None
    position_bias: PositionBias | None = None
    rope: RopeConfig | None = None
