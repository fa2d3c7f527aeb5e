"""A reranker loads those rows of its LM head that its answers need."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from tests.workers.checkpoints import (
    LLAMA,
    load_share,
    save_llama,
    worker_config,
)
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import WorkerConfig
from workers.contract.reranking import RerankConfig
from workers.weights.checkpoint import CheckpointError

ANSWERS = (17, 3)
WORDS, SIZE = LLAMA["vocab_size"], LLAMA["hidden_size"]


def reranker(folder: Path, *, stage: int, num_stages: int, vocab_size: int = WORDS) -> WorkerConfig:
    model = msgspec.structs.replace(
        read_model_config(folder),
        reranking=RerankConfig(token_ids=ANSWERS),
        vocab_size=vocab_size,
    )
    return worker_config(folder, task="rerank", model=model, stage=stage, num_stages=num_stages)


def saved(folder: Path, *, tied: bool, pickled: bool = False) -> torch.Tensor:
    """The LM head's weight, of a Llama whose files are in `folder`."""
    model = save_llama(folder, tie_word_embeddings=tied)
    if pickled:
        file = folder / "model.safetensors"
        torch.save(load_file(file), folder / "pytorch_model.bin")
        file.unlink()
    return model.lm_head.weight.detach()


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("pickled", [False, True])
def test_no_other_row_is_loaded(
    tmp_path: Path, *, tied: bool, pickled: bool, num_stages: int
) -> None:
    head = saved(tmp_path, tied=tied, pickled=pickled)
    last = reranker(tmp_path, stage=num_stages - 1, num_stages=num_stages)
    loaded = load_share(last)
    states = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    expected = states @ head[list(ANSWERS)].T
    torch.testing.assert_close(loaded.model.compute_logits(states), expected)
    generator = load_share(worker_config(tmp_path, stage=num_stages - 1, num_stages=num_stages))
    shared = tied and num_stages == 1
    saved_bytes = (WORDS - len(ANSWERS)) * SIZE * 4
    assert generator.weight_bytes - loaded.weight_bytes == (0 if shared else saved_bytes)


def test_a_vocabulary_of_another_size(tmp_path: Path) -> None:
    saved(tmp_path, tied=False)
    with pytest.raises(CheckpointError) as error:
        load_share(reranker(tmp_path, stage=1, num_stages=2, vocab_size=WORDS + 1))
    assert str(error.value) == (
        f"lm_head.weight in {tmp_path / 'model.safetensors'} has shape [{WORDS}, {SIZE}], the "
        f"model needs [{WORDS + 1}, {SIZE}]"
    )
