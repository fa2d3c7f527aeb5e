"""config.json as published checkpoints have it and as transformers 5 writes it are one record."""

import math
import re
from pathlib import Path

import msgspec
import pytest
from transformers import AutoConfig

from tests.workers.contract.checkpoint.config_files import PUBLISHED, read
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import (
    AttentionKind,
    DecoderConfig,
    LinearScaling,
    Llama3Scaling,
    PositionBias,
    QueryGrowth,
    RopeConfig,
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_both_forms_are_one_record(tmp_path: Path, name: str) -> None:
    published, rewritten = tmp_path / "published", tmp_path / "rewritten"
    published.mkdir()
    ours = read(published, PUBLISHED[name])
    AutoConfig.from_pretrained(published).save_pretrained(rewritten)
    assert msgspec.structs.replace(read_model_config(rewritten), path=ours.path) == ours


def test_what_the_records_say(tmp_path: Path) -> None:
    """Numbers that no key states as they are."""
    told = {name: read(tmp_path, published) for name, published in PUBLISHED.items()}
    reranker = told["BAAI/bge-reranker-v2-m3"]
    assert (reranker.max_model_len, reranker.num_labels, reranker.sigmoid_scores) == (8192, 1, True)
    assert told["xlm-roberta-base"].max_model_len == 512
    mpnet = told["sentence-transformers/all-mpnet-base-v2"]
    assert mpnet.max_model_len == 512
    assert mpnet.attention[0].position_bias == PositionBias(num_buckets=32, max_distance=128)
    for name in ("BAAI/bge-reranker-v2-gemma", "google/codegemma-2b"):
        family = told[name].family
        assert isinstance(family, DecoderConfig)
        assert family.hidden_act == "gelu_pytorch_tanh"  # they say "gelu"
    small = told["google/gemma-3-4b-it"]
    assert (small.num_heads, small.num_kv_heads, small.head_dim) == (8, 4, 256)
    assert (small.vocab_size, small.max_model_len) == (262_208, 131_072)
    within, everywhere = small.attention
    assert (within.window, within.rope) == (1024, RopeConfig(theta=1e4))
    assert (everywhere.window, everywhere.rope) == (
        None, RopeConfig(theta=1e6, scaling=LinearScaling(factor=8.0))
    )  # fmt: skip
    assert small.layer_kinds == ((0,) * 5 + (1,)) * 5 + (0,) * 4
    embedder = told["google/embeddinggemma-300m"]
    assert [kind.window for kind in embedder.attention] == [257, None]
    assert not embedder.has_kv_cache
    llama = told["meta-llama/Llama-3.2-1B-Instruct"]
    assert llama.has_kv_cache
    llama3 = Llama3Scaling(
        factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )
    assert llama.attention[0].rope == RopeConfig(theta=5e5, scaling=llama3)


def test_what_the_records_of_wrappers_say(tmp_path: Path) -> None:
    names = [name for name in PUBLISHED if re.search("VL|olmOCR|Devstral|Mistral-Small", name)]
    told = {name: read(tmp_path, PUBLISHED[name]) for name in names}
    devstral = told["mistralai/Devstral-Small-2-24B-Instruct-2512"].attention[0].rope
    assert devstral is not None
    assert devstral.attention_factor == 1.0
    assert devstral.query_growth == QueryGrowth(beta=0.1, period=8192)
    large = told["mistralai/Devstral-2-123B-Instruct-2512"].attention[0].rope
    assert large is not None
    assert large.attention_factor == 0.1 * math.log(64) + 1
    assert large.query_growth is None
    for name in ("Qwen/Qwen2.5-VL-7B-Instruct", "allenai/olmOCR-2-7B-1025"):
        assert told[name].wrapped
        assert told[name].attention == (
            AttentionKind(causal=True, scale=128**-0.5, rope=RopeConfig(theta=1e6)),
        )
    assert told["Qwen/Qwen3-VL-4B-Instruct"].tie_word_embeddings
    assert {each.checkpoint_dtype for each in told.values()} == {"bfloat16"}
    assert not told["mistralai/Mistral-Small-3.1-24B-Instruct-2503"].tie_word_embeddings
