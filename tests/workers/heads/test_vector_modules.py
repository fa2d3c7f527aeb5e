"""Pooling and what follows it, against sentence-transformers in float32: one tiny BERT, with other
modules behind it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library

from tests.workers.checkpoints import BERT, load_share, save_bert, worker_config
from tests.workers.contract.checkpoint.library_folders import (
    change,
    saved,
    transformer,
    write_tokenizer,
)
from tests.workers.models.encoders import ENCODERS
from tests.workers.stages import EncoderStages, vectors_of
from tests.workers.step_maker import encoder_step, int32
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfigError

SIZE = BERT["hidden_size"]
WORDS = tuple(f"w{number}" for number in range(BERT["vocab_size"] - 5))
LENS = (9, 1, 30, 4, 17)
TEXTS = [
    " ".join(WORDS[(7 * row + 13 * place) % 190] for place in range(length))
    for row, length in enumerate(LENS)
]
PROMPT, PROMPT_TOKENS = "w3 w1 w4 ", 4  # with [CLS]
MODES: tuple[Any, ...] = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

Modules = list[torch.nn.Module]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> library.Transformer:
    folder = tmp_path_factory.mktemp("bert")
    save_bert(folder, num_hidden_layers=2)
    write_tokenizer(folder, WORDS)
    return transformer(folder)


def pool(*modes: Any, size: int = SIZE, **options: Any) -> library.Pooling:
    return library.Pooling(size, modes or "mean", **options)


def dense(inputs: int, outputs: int, *, activation: Any = None, **options: Any) -> library.Dense:
    """With weights wide enough for an activation to matter."""
    module = library.Dense(
        inputs, outputs, activation_function=activation or torch.nn.Tanh(), **options
    )
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(outputs))
    return module


def norm(size: int) -> library.LayerNorm:
    module = library.LayerNorm(size)
    for weight in module.parameters():
        torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(3))
    return module


def compare(
    folder: Path, *, prompt: str = "", num_stages: int = 1, ours: Path | None = None
) -> None:
    """Ours are the library's vectors before a last Normalize, which is the server's. They may be of
    another folder, `ours`."""
    ours = ours or folder
    whole, config = SentenceTransformer(str(folder), device="cpu"), read_model_config(ours)
    *others, last = whole
    assert config.normalized == isinstance(last, library.Normalize)
    reference = SentenceTransformer(modules=others, device="cpu") if config.normalized else whole
    expected = reference.encode(TEXTS, prompt=prompt)
    step = encoder_step([reference.tokenizer(prompt + text)["input_ids"] for text in TEXTS])
    if not config.pooling.include_prompt:
        step = msgspec.structs.replace(step, unpooled_lens=int32([PROMPT_TOKENS] * len(TEXTS)))
    output = EncoderStages(ours, task="embed", num_stages=num_stages).run(step)
    vectors = vectors_of(output, len(TEXTS))
    assert vectors.shape == expected.shape == (len(TEXTS), config.vector_size)
    assert np.ptp(expected, axis=0).mean() > 0.1
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize(
    "modes", [*[(mode,) for mode in MODES], ("cls", "mean"), ("lasttoken", "max", "cls"), MODES]
)
def test_every_pooling(tmp_path: Path, bert: Any, modes: Any, include_prompt: bool) -> None:
    saved(tmp_path, bert, pool(*modes, include_prompt=include_prompt))
    compare(tmp_path, prompt=PROMPT)


CHAINS: dict[str, Callable[..., Modules]] = {
    "labse": lambda: [pool("cls"), dense(SIZE, SIZE), library.Normalize()],
    "two_dense": lambda size=SIZE: [
        pool("mean", size=size),
        dense(size, 96, bias=False, activation=torch.nn.Identity()),
        dense(96, 32, bias=False, activation=torch.nn.Identity()),
        library.Normalize(),
    ],
    "concatenation": lambda: [pool("mean", "max"), dense(2 * SIZE, 16), library.Dropout(0.5)],
    "normalized_before": lambda: [pool("mean"), library.Normalize(), dense(SIZE, 16)],
    "layer_norm": lambda: [pool("mean"), norm(SIZE), dense(SIZE, 16), library.Normalize()],
    "plain": lambda size=SIZE: [pool("weightedmean", size=size)],
    "normalized": lambda size=SIZE: [pool("mean", size=size), library.Normalize()],
}


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("chain", CHAINS)
def test_modules_run_in_their_order(tmp_path: Path, bert: Any, chain: str, num_stages: int) -> None:
    saved(tmp_path, bert, *CHAINS[chain]())
    compare(tmp_path, num_stages=num_stages)


@pytest.mark.parametrize(
    ("name", "chain"),
    [("embedding_gemma", "two_dense"), ("modernbert", "plain"), ("nomicbert", "normalized")],
)
def test_encoders_with_rotary_positions(tmp_path: Path, name: str, chain: str) -> None:
    own, tiny = tmp_path / "own", ENCODERS[name]
    tiny.save(own)
    write_tokenizer(own, WORDS)
    saved(tmp_path, transformer(own), *CHAINS[chain](tiny.config["hidden_size"]))
    compare(tmp_path, prompt=PROMPT, num_stages=2)


@pytest.mark.parametrize("name", ["Identity", "Tanh", "ReLU", "GELU", "SiLU", "Sigmoid"])
def test_every_activation(tmp_path: Path, bert: Any, name: str) -> None:
    activation = getattr(torch.nn, name)()
    saved(tmp_path, bert, pool("cls"), dense(SIZE, 16, activation=activation))
    compare(tmp_path)


@pytest.mark.parametrize("chain", ["labse", "concatenation"])
def test_files_of_before_version_5_4(tmp_path: Path, bert: Any, chain: str) -> None:
    """One key a mode, other names of classes, and nothing that only later versions say."""
    saved(tmp_path, bert, *CHAINS[chain]())
    chosen = read_model_config(tmp_path).pooling.modes
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    modes = {f"pooling_mode_{flag}": mode in chosen for mode, flag in flags.items()}
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"word_embedding_dimension": SIZE, **modes}))
    file = tmp_path / "2_Dense" / "config.json"
    own, keys = json.loads(file.read_text()), ("in_features", "out_features", "bias")
    own = {key: own[key] for key in (*keys, "activation_function")}
    file.write_text(json.dumps(own))
    listed = json.loads((tmp_path / "modules.json").read_text())
    for module in listed:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "config_sentence_transformers.json").unlink()
    compare(tmp_path)
    assert read_model_config(tmp_path).pooling.modes == tuple(sorted(chosen))


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_neither_batches_nor_stages_change_a_bit(
    tmp_path: Path, bert: Any, num_stages: int
) -> None:
    save_bert(tmp_path / "own", num_hidden_layers=3)
    write_tokenizer(tmp_path / "own", WORDS)
    model = saved(tmp_path, transformer(tmp_path / "own"), *CHAINS["layer_norm"]())
    ids = [model.tokenizer(text)["input_ids"] for text in TEXTS]
    one = EncoderStages(tmp_path, task="embed", backend="naive")
    alone = [vectors_of(one.run(encoder_step([text])), 1)[0] for text in ids]
    stages = EncoderStages(tmp_path, task="embed", num_stages=num_stages, backend="naive")
    np.testing.assert_array_equal(vectors_of(stages.run(encoder_step(ids)), len(ids)), alone)


def test_the_last_stage_counts_and_holds_the_weights(tmp_path: Path, bert: Any) -> None:
    def weight_bytes(*behind: torch.nn.Module) -> list[int]:
        saved(tmp_path, bert, pool("cls"), *behind)
        configs = [worker_config(tmp_path, task="embed", stage=s, num_stages=2) for s in (0, 1)]
        return [load_share(config).weight_bytes for config in configs]

    (first, last), bare = weight_bytes(dense(SIZE, 48), norm(48)), weight_bytes()
    assert (first, last) == (bare[0], bare[1] + 4 * (SIZE * 48 + 3 * 48))


def test_random_weights_need_no_files(tmp_path: Path, bert: Any) -> None:
    saved(tmp_path, bert, *CHAINS["two_dense"]())
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    model = load_share(worker_config(tmp_path, task="embed", load_format="dummy")).model
    with torch.inference_mode():
        (vector,) = model.compute_logits(torch.ones(1, SIZE))
    assert vector.shape == (32,)
    assert 0.1 < vector.std() < 100


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"out_features": 48},
            r"linear\.weight in .*2_Dense/model\.safetensors has .*64.*48",
        ),
        ({"bias": False}, r"2_Dense holds linear\.bias, which"),
        (None, r"model\.safetensors is missing from .*2_Dense"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, bert: Any, changes: Any, named: str
) -> None:
    saved(tmp_path, bert, pool("cls"), dense(SIZE, SIZE))
    folder = tmp_path / "2_Dense"
    if changes is None:
        (folder / "model.safetensors").unlink()
    else:
        change(folder / "config.json", **changes)
    with pytest.raises(ModelConfigError, match=named):
        load_share(worker_config(tmp_path, task="embed"))


MISREAD: list[tuple[Callable[[], Modules], str, dict[str, Any]]] = [
    (lambda: [pool("weightedmean")], "1_Pooling", {"pooling_mode": "mean"}),
    (lambda: [pool("mean", include_prompt=False)], "1_Pooling", {"include_prompt": True}),
    (lambda: [pool("mean", "max")], "1_Pooling", {"pooling_mode": ["max", "mean"]}),
    (
        lambda: [pool("cls"), dense(SIZE, 16)],
        "2_Dense",
        {"activation_function": "torch.nn.modules.linear.Identity"},
    ),
]


@pytest.mark.parametrize(("modules", "module", "changes"), MISREAD)
def test_the_comparison_notices(
    tmp_path: Path, bert: Any, modules: Callable[[], Modules], module: str, changes: dict[str, Any]
) -> None:
    """A folder of which ours says otherwise than the library's."""
    ours = tmp_path / "ours"
    saved(tmp_path / "theirs", bert, *modules())
    shutil.copytree(tmp_path / "theirs", ours)
    change(ours / module / "config.json", **changes)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        compare(tmp_path / "theirs", prompt=PROMPT, ours=ours)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("mode", ["mean", "lasttoken"])
def test_a_decoder_that_attends_both_ways(tmp_path: Path, mode: str, num_stages: int) -> None:
    """With the modules of Stella, and of gte-Qwen2."""
    bare, whole, ours = (tmp_path / name for name in ("bare", "whole", "ours"))
    ENCODERS["llama"].save(bare)
    write_tokenizer(bare, WORDS)
    saved(whole, transformer(bare), pool(mode), dense(SIZE, 24, activation=torch.nn.Identity()))
    shutil.copytree(whole, ours)
    change(ours / "config.json", architectures=["LlamaForCausalLM"])
    compare(whole, ours=ours, num_stages=num_stages)
