"""A decoder whose keys and values are cached in FP8: close to one that rounds nothing, and the same
whatever the steps."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from tests.workers.checkpoints import LLAMA, save_llama
from tests.workers.stages import NUM_BLOCKS, Stages, distributions
from tests.workers.step_maker import StepMaker

VOCAB = LLAMA["vocab_size"]
PROMPTS = [[3 + (7 * row + 5 * place) % 200 for place in range(70)] for row in range(4)]


def log_probabilities(
    folder: Path, kv_cache_dtype: str, chunks: list[int], backend: str = "naive", stages: int = 1
) -> torch.Tensor:
    """Of every token of the prompts, in steps of so many tokens of each: [4, 69, V]."""
    runners = Stages(folder, num_stages=stages, backend=backend, kv_cache_dtype=kv_cache_dtype)
    maker = StepMaker(runners.block_size, NUM_BLOCKS)
    rows = [maker.admit(prompt, prompt_logprobs=VOCAB) for prompt in PROMPTS]
    found: list[np.ndarray] = []
    for chunk in chunks:
        output = runners.run(maker.step([(row, chunk) for row in rows], score=True))
        found.append(distributions(output.scored).reshape(len(rows), -1, VOCAB))
    return torch.from_numpy(np.concatenate(found, axis=1))


def kl(exact: torch.Tensor, other: torch.Tensor) -> float:
    """The mean divergence of a token."""
    return float((exact.exp() * (exact - other)).sum(2).mean())


CHUNKS = [69], [33, 20, *[1] * 16], [1] * 69


@pytest.mark.parametrize("backend", ["naive", "sdpa"])
def test_close_to_a_cache_that_rounds_nothing(llama: Path, backend: str) -> None:
    exact = log_probabilities(llama, "auto", [69])
    rounded = log_probabilities(llama, "fp8_e4m3", CHUNKS[1], backend)
    assert 1e-6 < kl(exact, rounded) < 0.05


def test_the_same_in_any_steps_and_stages(llama: Path) -> None:
    whole, *others = (log_probabilities(llama, "fp8_e4m3", chunks) for chunks in CHUNKS)
    others.append(log_probabilities(llama, "fp8_e4m3", CHUNKS[1], stages=3))
    for other in others:
        assert torch.equal(other, whole)


def test_a_channel_that_is_100_times_the_others(tmp_path: Path) -> None:
    """The same model but for a channel of its keys, and its queries' in return. A rotation mixes
    it with its partner."""
    model = save_llama(tmp_path / "plain")
    plain = log_probabilities(tmp_path / "plain", "auto", [69])
    usual = kl(plain, log_probabilities(tmp_path / "plain", "fp8_e4m3", [69]))
    save_heavy_tailed(model, tmp_path / "heavy")
    heavy = log_probabilities(tmp_path / "heavy", "auto", [69])
    torch.testing.assert_close(heavy, plain, rtol=0, atol=1e-3)
    assert kl(plain, log_probabilities(tmp_path / "heavy", "fp8_e4m3", [69])) < 1.5 * usual


def save_heavy_tailed(model: LlamaForCausalLM, folder: Path) -> None:
    size = LLAMA["hidden_size"] // LLAMA["num_attention_heads"]
    factors = {"k_proj.weight": 100.0, "q_proj.weight": 0.01}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if factor := factors.get(".".join(name.split(".")[-2:])):
                heads = weight.view(-1, size, weight.shape[1])
                heads[:, [3, 3 + size // 2]] *= factor
    model.save_pretrained(folder)


def test_heads_without_a_number_are_zero(llama: Path) -> None:
    """Blocks that nothing was written to hold 0, and so do padding rows."""
    runner = Stages(llama, kv_cache_dtype="fp8_e4m3").runners[0]
    for layer in runner.kv_cache.layers.values():
        everything = torch.arange(NUM_BLOCKS * runner.config.block_size)
        assert not torch.stack(layer.read(everything, torch.float32)).any()
