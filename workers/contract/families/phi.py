"""Phi-3 (Abdin et al. 2024, arXiv:2404.14219) and Phi-4 (arXiv:2412.08905, arXiv:2503.01743): a
Llama whose checkpoints have fused products, and which may rotate a part of each head."""

from workers.contract.attention_kind import AttentionKind
from workers.contract.config_keys.keys import ConfigKeys
from workers.contract.config_keys.rope import read_scaling, rope_keys
from workers.contract.config_keys.sizes import read_activation, read_sizes
from workers.contract.config_keys.windows import narrowed, read_window
from workers.contract.families.base import decoder, shape_of
from workers.contract.model_shape import DecoderConfig, ModelShape
from workers.contract.rope_config import RopeConfig

_EARLIER_NAMES = {"su": "longrope", "yarn": "longrope"}
"""What configurations of this family called a type of scaling before it had a name."""


def read_phi3(keys: ConfigKeys) -> ModelShape:
    """As `Phi3Config` of transformers. Raises ModelConfigError."""
    keys.neutral(
        {
            "attention_bias": (False, None),
            "full_attn_mod": (1, None),
            "interpolate_factor": (1, None),
            "lm_head_bias": (False, None),
            "mlp_bias": (False, None),
        }
    )
    sizes = read_sizes(keys)
    rope = _read_rope(keys, sizes.max_position)
    everything = AttentionKind(causal=True, scale=sizes.head_dim**-0.5, rope=rope)
    narrow = narrowed(everything, read_window(keys, None), sizes.max_position)
    family = DecoderConfig(
        hidden_act=read_activation(keys, "hidden_act"),
        norm_eps=keys.read("rms_norm_eps", float, 1e-5),
        fused_projections=True,
    )
    return shape_of(keys, sizes, [narrow] * sizes.num_layers, family, tied=False)


def _read_rope(keys: ConfigKeys, max_position: int) -> RopeConfig:
    theta = keys.read("rope_theta", float, 10_000.0)
    fraction = keys.read("partial_rotary_factor", float, 1.0)
    original = keys.optional_size("original_max_position_embeddings") or 4096
    inner = rope_keys(keys)
    kind = inner.read("rope_type", str, inner.read("type", str, "default"))
    kind = _EARLIER_NAMES.get(kind, kind)
    if kind not in ("default", "longrope"):
        raise keys.error(f"rope type {kind!r} is not supported for this family (longrope)")
    return RopeConfig(
        theta=inner.read("rope_theta", float, theta),
        fraction=inner.read("partial_rotary_factor", float, fraction),
        scaling=read_scaling(inner, kind, original, max_position),
    )


PHI3 = decoder("Phi3", read_phi3)
