"""Needles: a model that finds a key in a long context and says which token followed it.

An induction head of two layers (Olsson et al. 2022, arXiv:2209.11895), made by hand. In the first
each token attends to the one before it; in the second a token attends to those whose predecessor it
is, and their embeddings are its logits. A needle gets about 5 % of the attention, whatever the
length; the rest is spread over all other tokens.
"""

import math
import random
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine_core.messages import SamplingParams
from tests.workers.inline_engine import InlineEngine, Sampled, Way
from workers.contract.token_sampling import GREEDY

NEEDLES = 64
VOCAB, FIRST_KEY = 1024, 900
SIZE, HEAD, TURNING = 62, 128, 33
"""Numbers of an embedding and of an attention head, and its pairs that a position turns: the others
turn by less than a sixth of a radian in 131,072 tokens."""

THETA = 1e12


def save_induction_llama(folder: Path, length: int) -> None:
    """Hidden states are (embedding, embedding of the token before, what is found, a constant 1)."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=192,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HEAD,
        max_position_embeddings=length + 2 * NEEDLES,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    own, before, found = (slice(at * SIZE, (at + 1) * SIZE) for at in range(3))
    embeddings = torch.nn.functional.normalize(torch.randn(VOCAB, SIZE), dim=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.zero_()
        model.model.embed_tokens.weight[:, own] = embeddings
        model.model.embed_tokens.weight[:, -1] = 1
        model.lm_head.weight[:, found] = embeddings
        layers: list[Any] = [*model.model.layers]
        first, second = (layer.self_attn for layer in layers)
        # The score of a key d tokens before the query is the sum of cos((d - 1) * frequency).
        frequencies = THETA ** (-torch.arange(TURNING) / (HEAD // 2))
        first.k_proj.weight[:TURNING, -1] = 1
        first.q_proj.weight[:TURNING, -1] = 5 * frequencies.cos()
        first.q_proj.weight[HEAD // 2 : HEAD // 2 + TURNING, -1] = -5 * frequencies.sin()
        # Norms multiply by sqrt(192 / 2) there, and by sqrt(192 / 3) here.
        still = torch.cat((torch.arange(TURNING, 64), torch.arange(64 + TURNING, 128)))
        sharpness = (math.log(length) - 2.4) * math.sqrt(HEAD) / (192 / 3)
        second.q_proj.weight[still, own] = sharpness * torch.eye(SIZE)
        second.k_proj.weight[still, before] = torch.eye(SIZE)
        for layer, target in ((first, before), (second, found)):
            layer.v_proj.weight[:SIZE, own] = torch.eye(SIZE)
            layer.o_proj.weight[target, :SIZE] = torch.eye(SIZE) / (192 / 2) ** 0.5
    model.save_pretrained(folder)


def found(folder: Path, way: Way, length: int, seed: int = 0) -> float:
    """The share of the needles that is found in a random context of `length` tokens: each key is
    asked for by a decode step of its own."""
    draw = random.Random(seed)
    context = draw.choices(range(3, FIRST_KEY), k=length)
    keys = range(FIRST_KEY, FIRST_KEY + NEEDLES)
    values = draw.choices(range(3, FIRST_KEY), k=NEEDLES)
    for key, value, pair in zip(
        keys, values, draw.sample(range(length // 2), NEEDLES), strict=True
    ):
        context[2 * pair : 2 * pair + 2] = key, value
    hits: list[bool] = []

    def judge(sampled: Sampled) -> int:
        hits.append(sampled.token == values[sampled.index])
        return keys[(sampled.index + 1) % NEEDLES]

    params = SamplingParams(sampling=GREEDY, max_tokens=NEEDLES, ignore_eos=True, logprobs=0)
    InlineEngine(folder, way).generate([[*context, keys[0]]], params, judge)
    return sum(hits) / NEEDLES
