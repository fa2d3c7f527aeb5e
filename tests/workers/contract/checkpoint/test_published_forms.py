"""config.json as published checkpoints have it and as transformers 5 writes it are one record."""

import math
import re
from pathlib import Path

import msgspec
import pytest
from transformers import AutoConfig

from tests.workers.contract.checkpoint.config_files import PUBLISHED, WITH_OWN_CODE, read
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import (
    AttentionKind,
    DecoderConfig,
    DisentangledBias,
    EncoderConfig,
    LinearBias,
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
    shared = told["sentence-transformers/paraphrase-albert-small-v2"].family
    assert isinstance(shared, EncoderConfig)
    assert (shared.embedding_size, shared.shared_layers, shared.hidden_act) == (128, True, "gelu")
    electra = told["cross-encoder/ms-marco-electra-base"]
    assert isinstance(electra.family, EncoderConfig)
    assert (electra.family.embedding_size, electra.family.pooler_act) == (None, "gelu")
    european = told["EuroBERT/EuroBERT-210m"]
    assert (european.has_kv_cache, european.classifier_pooling) == (False, "mean")
    assert european.attention[0].rope == RopeConfig(theta=250_000.0)
    disentangled = told["mixedbread-ai/mxbai-rerank-base-v1"]
    assert disentangled.attention[0].position_bias == DisentangledBias(span=256, max_distance=512)
    assert disentangled.attention[0].scale == pytest.approx(192**-0.5)
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


@pytest.mark.parametrize(
    ("name", "architecture", "rope", "segments", "length"),
    [
        ("Alibaba-NLP/gte-base-en-v1.5", "NewModel", (1e6, 2.0), 0, 8192),
        (
            "Alibaba-NLP/gte-multilingual-reranker-base",
            "NewForSequenceClassification",
            (160_000.0, 8.0),
            1,
            8192,
        ),
        ("Snowflake/snowflake-arctic-embed-m-v2.0", "GteModel", (160_000.0, None), 1, 8192),
        ("jinaai/jina-embeddings-v2-base-en", "JinaBertForMaskedLM", None, 2, 8192),
        ("jinaai/jina-reranker-v1-turbo-en", "JinaBertForSequenceClassification", None, 2, 8192),
        ("Snowflake/snowflake-arctic-embed-m-long", "NomicBertModel", (1000.0, None), 2, 8192),
    ],
)
def test_what_code_of_their_own_reads(
    tmp_path: Path,
    name: str,
    architecture: str,
    rope: tuple[float, float | None] | None,
    segments: int,
    length: int,
) -> None:
    """`rope` is the base and the factor of NTK scaling, with which frequencies are divided too."""
    told = read(tmp_path, WITH_OWN_CODE[name])
    assert (told.architecture, told.max_model_len, told.gated) == (architecture, length, True)
    assert isinstance(told.family, EncoderConfig)
    assert (told.family.type_vocab_size, told.family.positions) == (segments, False)
    (kind,) = told.attention
    assert not kind.causal
    assert (kind.position_bias == LinearBias()) == (rope is None)
    if rope is not None:
        theta, factor = rope
        scaling = None if factor is None else LinearScaling(factor=factor ** (1 / 32))
        assert kind.rope == RopeConfig(theta=theta, scaling=scaling)


def test_what_the_records_say_of_later_decoders(tmp_path: Path) -> None:
    told = {name: read(tmp_path, published) for name, published in PUBLISHED.items()}
    smol = told["HuggingFaceTB/SmolLM3-3B"]
    assert [kind.rope and kind.rope.theta for kind in smol.attention] == [5e6, None]
    assert smol.layer_kinds == (0, 0, 0, 1) * 9
    granite = told["ibm-granite/granite-3.3-8b-instruct"]
    assert granite.attention[0].scale == 1 / 128
    assert isinstance(granite.family, DecoderConfig)
    assert granite.family.logit_scale == 1 / 16
    within, everywhere = told["LGAI-EXAONE/EXAONE-4.0-32B"].attention
    assert (within.window, everywhere.window, everywhere.rope) == (4096, None, None)
    within, everywhere = told["allenai/Olmo-3-1025-7B"].attention
    assert (within.window, within.rope) == (4096, RopeConfig(theta=5e5))
    assert everywhere.rope is not None
    assert everywhere.rope.attention_factor == 1.2079441541679836
    hunyuan = told["tencent/Hunyuan-7B-Instruct"]
    assert hunyuan.attention[0].rope == RopeConfig(theta=1e4 * 1000 ** (128 / 126))
    glm = told["zai-org/GLM-4-9B-0414"]
    assert isinstance(glm.family, DecoderConfig)
    assert (glm.attention[0].rope, glm.family.interleaved_dims) == (RopeConfig(fraction=0.5), 64)
    command = told["CohereLabs/c4ai-command-r7b-12-2024"]
    within, everywhere = command.attention
    assert (within.window, everywhere.window, everywhere.rope) == (4096, None, None)
    assert command.layer_kinds == (0, 0, 0, 1) * 8
    pythia = told["EleutherAI/pythia-160m"].attention[0].rope
    assert pythia == RopeConfig(fraction=0.25)
    gpt2 = told["openai-community/gpt2"]
    assert (gpt2.intermediate_size, gpt2.max_model_len, gpt2.attention[0].rope) == (
        3072,
        1024,
        None,
    )


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


def test_what_the_records_of_gemma_4_say(tmp_path: Path) -> None:
    names = [f"google/gemma-4-{size}-it" for size in ("31B", "12B", "E2B")]
    gemmas = [read(tmp_path, PUBLISHED[name]) for name in names]
    assert {model.wrapped for model in gemmas} == {True}
    assert [model.heads_of(0) for model in gemmas] == [(32, 16, 256), (16, 8, 256), (8, 1, 256)]
    assert [model.heads_of(model.num_layers - 1) for model in gemmas] == [
        (32, 4, 512),
        (16, 1, 512),
        (8, 1, 512),
    ]
    assert [model.keys_are_values(11) for model in gemmas] == [True, True, False]
    assert [model.layers_together for model in gemmas] == [1, 1, 22]
    small = gemmas[2]
    assert [small.kv_layer(layer) for layer in (13, 14, 15, 19, 34)] == [13, 14, 13, 14, 14]
    assert [small.inner_size(layer) for layer in (14, 15)] == [6144, 12_288]
    assert small.state_size == 1536 + 35 * 256
