"""The bias of scores by distance, against MPNet's in transformers."""

import torch
from transformers import MPNetConfig
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from workers.contract.model_config import PositionBias
from workers.layers.layer import Placement
from workers.models.encoder import RelativePositionBias, buckets_by_distance

CPU = Placement(torch.device("cpu"), torch.float32)
BIAS = PositionBias(num_buckets=32, max_distance=128)


def test_buckets_are_those_of_transformers() -> None:
    """At every distance of 4,096 tokens. The last bucket begins before 128."""
    expected = MPNetEncoder.relative_position_bucket(torch.arange(-4095, 4096))
    assert torch.equal(buckets_by_distance(BIAS, 4096), expected)
    assert expected.unique().tolist() == [number for number in range(32) if number != 16]


def test_each_pair_of_tokens_has_its_distance_in_the_table() -> None:
    length = 200
    theirs = MPNetEncoder(
        MPNetConfig(hidden_size=8, num_attention_heads=4, num_hidden_layers=1)
    ).eval()
    layer = RelativePositionBias("bias", BIAS, 4, length, CPU)
    with torch.inference_mode():
        expected = theirs.compute_position_bias(torch.zeros(1, length, 8))[0]
        layer.weights()["bias.weight"].copy_(theirs.relative_attention_bias.weight)
        layer.pack()
    assert layer.table.shape == (4, 2 * length - 1)
    assert layer.table.is_contiguous()
    for query in range(length):
        row = layer.table[:, length - 1 - query : 2 * length - 1 - query]
        assert torch.equal(row, expected[:, query])
