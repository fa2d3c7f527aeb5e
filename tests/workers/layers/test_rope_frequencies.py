"""Frequencies and attention factors of rotary embeddings are those of transformers."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.workers.contract.checkpoint import config_files
from workers.contract.checkpoint.shape_keys import ShapeKeys
from workers.contract.model_config import RopeConfig
from workers.layers.rotary import rope_frequencies

POSITIONS, HEAD_DIM = 1024, 32
SHORT = [1.0 + pair / 10 for pair in range(HEAD_DIM // 2)]
LONG = [2.0 + pair for pair in range(HEAD_DIM // 2)]
ORIGINAL = {"original_max_position_embeddings": 256}
YARN = config_files.YARN | ORIGINAL
LONGROPE = config_files.LONGROPE | ORIGINAL | {"short_factor": SHORT, "long_factor": LONG}
SCALED = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "llama3": config_files.LLAMA3 | ORIGINAL,
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": YARN,
    "yarn_of_the_whole_length": {"rope_type": "yarn", "factor": 4.0},
    "yarn_not_truncated": YARN | {"truncate": False},
    "yarn_betas": YARN | {"beta_fast": 8.0, "beta_slow": 2.0},
    "yarn_one_beta": YARN | {"beta_fast": 3.0, "beta_slow": 3.0},
    "yarn_attention_factor": YARN | {"attention_factor": 0.7},
    "yarn_mscale": YARN | {"mscale": 0.9, "mscale_all_dim": 0.4},
    "yarn_mscale_alone": YARN | {"mscale": 0.9},
    "yarn_factor_below_1": YARN | {"factor": 0.5},
    "longrope": LONGROPE,
    "longrope_factor": LONGROPE | {"factor": 32.0},
    "longrope_attention_factor": LONGROPE | {"attention_factor": 1.3},
    "longrope_not_longer": LONGROPE | {"original_max_position_embeddings": POSITIONS},
}


@pytest.mark.parametrize("length", [200, 256, 257, POSITIONS])
@pytest.mark.parametrize("name", SCALED)
def test_frequencies(name: str, length: int) -> None:
    scaling = SCALED[name]
    theirs = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_theta": 5000.0} | scaling,
    )
    initial = ROPE_INIT_FUNCTIONS[scaling["rope_type"]]
    expected, factor = initial(theirs, torch.device("cpu"), seq_len=length)
    values = {"rope_theta": 5000.0, "rope_scaling": scaling}
    rope = ShapeKeys(Path("config.json"), values).read_rope(POSITIONS)
    torch.testing.assert_close(
        rope_frequencies(rope, HEAD_DIM, length), expected, rtol=1e-6, atol=0.0
    )
    assert rope.attention_factor == pytest.approx(factor, rel=1e-12)


def test_a_part_of_each_head() -> None:
    rope = RopeConfig(theta=5000.0, fraction=0.75)
    frequencies = rope_frequencies(rope, HEAD_DIM, POSITIONS)
    expected = 5000.0 ** -(torch.arange(0, 24, 2) / 24)
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0.0)
