"""A tiny model of the decoders with mixtures of experts, and what spoils each."""

from typing import Any

import torch

from tests.workers.checkpoints import LLAMA
from tests.workers.contract.checkpoint.config_files import YARN
from tests.workers.models.decoders import LIMIT, WINDOW
from tests.workers.models.tiny_models import Spoilt, TinyModel, keys, weights

_YARN = YARN | {"rope_theta": 10_000.0, "original_max_position_embeddings": 16, "truncate": False}
_HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_PHI_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 3.5],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 12.0, 15.0],
    "short_mscale": 1.2,
    "long_mscale": 1.2,
    "original_max_position_embeddings": LIMIT,
}
_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0],
}
_SIZES = LLAMA | {"max_position_embeddings": LIMIT, "pad_token_id": 0}


def _next(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, dims=0)


def _tiny(
    architecture: str,
    experts: dict[str, Any],
    spoilt: dict[str, Spoilt] | None = None,
    *,
    edge: int = 0,
    since: str = TinyModel.since,
    **changes: Any,
) -> TinyModel:
    return TinyModel(
        architecture=f"{architecture}ForCausalLM",
        config=_SIZES | experts | changes,
        edges=(edge,) if edge else (),
        spoilt={"router": weights(r"\.(gate|router)(\.layer)?\.weight", _next)} | (spoilt or {}),
        since=since,
    )


def _experts(count: int, active: int, size: int = 24, name: str = "num_experts") -> dict[str, Any]:
    return {name: count, "num_experts_per_tok": active, "moe_intermediate_size": size}


def _local(count: int, active: int, name: str = "num_local_experts") -> dict[str, Any]:
    """Experts of the size of a dense model's network."""
    own = _experts(count, active, name=name)
    del own["moe_intermediate_size"]
    return own | {"intermediate_size": 24}


EXPERT_DECODERS: dict[str, TinyModel] = {
    "qwen2_moe": _tiny(
        "Qwen2Moe",
        _experts(6, 2) | {"shared_expert_intermediate_size": 40},
        {
            "shared_gate": weights("shared_expert_gate", 0.0),
            "shared": weights(r"shared_expert\.down", 0.0),
            "dense_layers": keys(norm_topk_prob=True),
        },
        mlp_only_layers=[2],
    ),
    "qwen3_moe": _tiny(
        "Qwen3Moe",
        _experts(8, 3),
        {"normalised": keys(norm_topk_prob=False)},
        norm_topk_prob=True,
        head_dim=24,
    ),
    "qwen3_moe_sparse_step": _tiny("Qwen3Moe", _experts(8, 3), decoder_sparse_step=2, head_dim=24),
    "qwen3_vl_moe": TinyModel(
        architecture="Qwen3VLMoeForConditionalGeneration",
        config={
            "text_config": _SIZES
            | _experts(4, 2)
            | {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10_000.0,
                    "mrope_section": [3, 3, 2],
                    "mrope_interleaved": True,
                }
            },
            "vision_config": _VISION,
            "tie_word_embeddings": False,
        },
        spoilt={"router": weights(r"\.gate\.weight", _next)},
    ),
    "mixtral": _tiny(
        "Mixtral",
        _local(4, 2),
        {"window": keys(sliding_window=WINDOW + 1)},
        edge=WINDOW,
        sliding_window=WINDOW,
    ),
    "olmoe": _tiny(
        "Olmoe",
        _local(8, 3, "num_experts"),
        {"key_norm": weights("k_norm", lambda own: own * torch.linspace(0.5, 2.0, len(own)))},
    ),
    "phimoe": _tiny(
        "Phimoe",
        _local(4, 2),
        {"jitter": keys(router_jitter_noise=0.001), "norm_bias": weights("layernorm.bias", 0.0)},
        router_jitter_noise=0.2,
        attention_bias=True,
        lm_head_bias=True,
    ),
    "phimoe_longrope": _tiny(
        "Phimoe",
        _local(4, 2),
        {"mscale": keys(rope_parameters=_PHI_LONGROPE | {"short_mscale": 1.0, "long_mscale": 1.0})},
        rope_parameters=_PHI_LONGROPE,
        original_max_position_embeddings=LIMIT,
    ),
    "granite_moe": _tiny(
        "GraniteMoe",
        _local(6, 2),
        {"residual": keys(residual_multiplier=1.0)},
        attention_multiplier=0.1,
        embedding_multiplier=3.0,
        logits_scaling=0.5,
        residual_multiplier=0.4,
    ),
    "granite_moe_shared": _tiny(
        "GraniteMoeShared",
        _local(6, 2),
        {"shared": weights("shared_mlp.output", 0.0)},
        shared_intermediate_size=40,
        attention_multiplier=0.2,
    ),
    "glm4_moe": _tiny(
        "Glm4Moe",
        _experts(8, 3, name="n_routed_experts"),
        {
            "correction": weights("e_score_correction_bias", 0.0),
            "scale": keys(routed_scaling_factor=1.0),
            "groups": keys(n_group=1, topk_group=1),
            "dense": keys(norm_topk_prob=False),
        },
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        first_k_dense_replace=2,
        use_qk_norm=True,
        attention_bias=True,
        head_dim=24,
        rope_parameters=_HALF,
    ),
    "ernie_moe": _tiny(
        "Ernie4_5_Moe",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24},
        {
            "correction": weights("e_score_correction_bias", 0.0),
            "shared": weights(r"shared_experts\.down", 0.0),
        },
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_interval=1,
        head_dim=24,
        use_bias=False,
    ),
    "minimax_m2": _tiny(
        "MiniMaxM2",
        _local(8, 3),
        {
            "correction": weights("e_score_correction_bias", 0.0),
            "rope": keys(rope_parameters=_HALF | {"partial_rotary_factor": 1.0}),
        },
        head_dim=24,
        rotary_dim=12,
        rope_parameters=_HALF,
    ),
    "gpt_oss": _tiny(
        "GptOss",
        _local(6, 2),
        {
            "sinks": weights("sinks", -100.0),
            "router_bias": weights(r"router\.bias", 0.0),
            "expert_bias": weights("gate_up_proj_bias", 0.0),
            "down_bias": weights("down_proj_bias", 0.0),
            "window": keys(sliding_window=WINDOW + 1),
            "clamp": keys(swiglu_limit=100.0),
        },
        edge=WINDOW,
        since="5.23",
        head_dim=24,
        sliding_window=WINDOW,
        swiglu_limit=0.5,
        rope_parameters=_YARN,
    ),
}
