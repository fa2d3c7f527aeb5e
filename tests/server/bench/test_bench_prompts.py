"""The workloads of `penstock bench`: exactly what each asks, drawn the same everywhere."""

import random
from array import array
from pathlib import Path

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.bench.dummy_models import (
    byte_level_bpe,
    parse_shape,
    shape_folder,
    shape_names,
    tokenizer_for,
    write_model,
)
from server.bench.words import single_token_words
from server.bench.workloads import (
    GENERATION,
    HTTP,
    PREFILL,
    offline_prompts,
    texts_of,
)
from server.demo import GENERATOR_NAME, demo_models
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.checkpoint.folder_files import read_json

CASES = {case.name: case for case in (*GENERATION, *PREFILL)}


def ids(prompt: bytes) -> list[int]:
    return array("i", prompt).tolist()


def test_plain_prompts_follow_each_other_in_the_stream_of_numbers() -> None:
    drawn = random.Random(123)
    prompts = offline_prompts(CASES["dec"])
    assert len(prompts) == 256
    assert ids(prompts[0])[:3] == [1716, 8772, 2857]
    for prompt in prompts:
        assert ids(prompt) == [drawn.randint(1, 20_000) for _ in range(128)]


def test_a_prefix_is_drawn_before_its_members() -> None:
    drawn = random.Random(123)
    prompts = [ids(prompt) for prompt in offline_prompts(CASES["b16s"].scaled(0.005))]
    assert len(prompts) == 2 * 16
    for group in (prompts[:16], prompts[16:]):
        prefix = [drawn.randint(1, 20_000) for _ in range(2000)]
        for prompt in group:
            assert prompt == prefix + [drawn.randint(1, 20_000) for _ in range(200)]


def test_shuffled_cases_hold_the_same_prompts_in_an_order_of_seed_7() -> None:
    part = CASES["b16"].scaled(0.005)
    expected = offline_prompts(CASES["b16s"].scaled(0.005))
    random.Random(7).shuffle(expected)
    assert offline_prompts(part) == expected


@pytest.mark.parametrize(
    ("name", "count", "length"),
    [("one", 1, 128), ("dec", 256, 128), ("long32k", 1, 32_000), ("emb32", 16_384, 32)],
)
def test_numbers_and_lengths(name: str, count: int, length: int) -> None:
    prompts = offline_prompts(CASES[name])
    assert (len(prompts), {len(prompt) // 4 for prompt in prompts}) == (count, {length})
    assert min(map(min, map(ids, prompts))) >= 1
    assert max(map(max, map(ids, prompts))) <= 20_000


def test_every_64th_prompt_of_skew_is_long() -> None:
    part = CASES["skew"].scaled(0.1)
    lengths = [len(prompt) // 4 for prompt in offline_prompts(part)]
    assert lengths == [16_000, *[256] * 63, 16_000, *[256] * 38]
    assert CASES["skew"].prompt_tokens == (16 * 16_000 + 1008 * 256) // 1024


def test_a_case_in_numbers_and_a_part_of_it() -> None:
    assert CASES["b16s"].what == "count=400 members=16 prefix=2000 own=200 outputs=100"
    assert CASES["skew"].what == "count=1024 own=256 long_every=64 long_own=16000 outputs=128"
    assert CASES["rand"].scaled(0.1).count == 205
    assert CASES["one"].scaled(0.1).count == 1
    assert CASES["rand"].scaled(1.0) == CASES["rand"]


def test_every_case_has_a_name_of_its_own_and_headlines() -> None:
    names = [case.name for case in (*GENERATION, *PREFILL, *HTTP)]
    assert len(set(names)) == len(names)
    assert all(case.headlines for case in (*GENERATION, *PREFILL, *HTTP))
    assert all((shape_folder(case.shape) / "config.json").exists() for case in (*GENERATION, *HTTP))
    for name in shape_names():
        assert read_model_config(parse_shape(name)).num_layers > 0


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer(byte_level_bpe())


@pytest.fixture(scope="module")
def generator() -> Tokenizer:
    return Tokenizer.load(demo_models()[GENERATOR_NAME])


@pytest.fixture(scope="module")
def embedder() -> Tokenizer:
    return tokenizer_for(HTTP[-1], None)


@pytest.mark.long
def test_the_bpe_has_32768_entries_and_is_the_same_every_time(bpe: Tokenizer) -> None:
    assert bpe.raw.get_vocab_size() == 32_768
    assert max(bpe.raw.get_vocab().values()) == 32_767
    assert byte_level_bpe().to_str() == bpe.raw.to_str()
    text = "größer 漢字\n\tdef f(x): return x"
    (encoded,) = bpe.encode([text])
    assert bpe.decode(ids(encoded)) == text


@pytest.mark.parametrize(
    "vocabulary", ["generator", "embedder", pytest.param("bpe", marks=pytest.mark.long)]
)
def test_texts_have_exactly_as_many_tokens(vocabulary: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(vocabulary)
    words = single_token_words(tokenizer)
    assert len(words) > 500
    assert all(word.isalpha() and word == word.lower() for word in words)
    texts = texts_of(words, 1100, 33)
    assert len(set(texts)) == 1100
    encoded = tokenizer.encode(texts, add_special_tokens=False)
    assert {len(ids(each)) for each in encoded} == {33}
    assert texts_of(words, 1100, 33) == texts
    assert texts_of(words, 1100, 33, seed=124) != texts


def test_a_model_folder(tmp_path: Path, generator: Tokenizer) -> None:
    write_model(tmp_path / "llama", shape_folder("llama8b"), generator)
    config = read_json(tmp_path / "llama", "config.json")
    assert (config["bos_token_id"], config["eos_token_id"]) == (0, 1)
    size = generator.raw.get_vocab_size()
    assert read_model_config(tmp_path / "llama").vocab_size == size
    assert Tokenizer.load(tmp_path / "llama").raw.get_vocab_size() == size
