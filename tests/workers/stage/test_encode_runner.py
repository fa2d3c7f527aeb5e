"""Encoders from step messages to vectors and scores, against the libraries that define them."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from tests.workers.checkpoints import random_texts, save_bert, save_masked_lm
from tests.workers.stages import EncoderStages, dense, vectors_of
from tests.workers.step_maker import encoder_step
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.messages import EmbedOutput
from workers.contract.model_config import PoolingConfig, PoolingMode

LENS = (9, 1, 30, 4, 17)
TEXTS = random_texts(*LENS)


@pytest.mark.parametrize(
    ("num_stages", "mode"), [(1, "mean"), (2, "mean"), (1, "cls"), (2, "cls"), (1, "lasttoken")]
)
def test_states_of_all_tokens_are_those_of_transformers(
    tmp_path: Path, num_stages: int, mode: PoolingMode
) -> None:
    """Beside rows that are pooled, which stay as they are, though the last layer of these alone
    may end with one token of each."""
    model = save_bert(tmp_path)
    pooling = PoolingConfig(modes=(mode,))
    own = msgspec.structs.replace(read_model_config(tmp_path), pooling=pooling)
    stages = EncoderStages(tmp_path, task="embed", num_stages=num_stages, model=own)
    states, alone = stages.compute(encoder_step(TEXTS))
    assert len(states) == (sum(LENS) if mode == "mean" else len(LENS))
    assert isinstance(alone, EmbedOutput)
    requested = [0, 1, 1, 0, 1]
    output = stages.run(
        msgspec.structs.replace(encoder_step(TEXTS), requested={"states": bytes(requested)})
    )
    assert isinstance(output, EmbedOutput)
    assert output.vectors == alone.vectors
    with torch.inference_mode():
        expected = np.concatenate(
            [
                model(torch.tensor([text])).last_hidden_state[0].numpy()
                for text, flag in zip(TEXTS, requested, strict=True)
                if flag
            ]
        )
    states = np.frombuffer(output.tokens["states"], np.float32).reshape(expected.shape)
    np.testing.assert_allclose(states, expected, atol=1e-5)


@pytest.mark.parametrize("num_stages", [1, 3])
def test_neither_other_rows_nor_stages_change_a_bit_of_sparse_vectors(
    tmp_path: Path, num_stages: int
) -> None:
    save_masked_lm(tmp_path)
    one, stages = (
        EncoderStages(tmp_path, task="embed_sparse", num_stages=count, backend="naive")
        for count in (1, num_stages)
    )
    alone = [dense(one.run(encoder_step([text])))[0] for text in TEXTS]
    np.testing.assert_array_equal(dense(stages.run(encoder_step(TEXTS))), np.stack(alone))


def test_nan_stays_in_its_row(tmp_path: Path) -> None:
    """Weights are finite, so only a row's own tokens can spoil it: a word with a NaN embedding."""
    model = save_bert(tmp_path)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[0] = torch.nan
    model.save_pretrained(tmp_path)
    stages = EncoderStages(tmp_path, task="embed")
    spoiled = random_texts(*LENS)
    spoiled[2][3] = 0
    clean = vectors_of(stages.run(encoder_step(TEXTS)), 5)
    vectors = vectors_of(stages.run(encoder_step(spoiled)), 5)
    assert np.isnan(vectors).any(axis=1).tolist() == [False, False, True, False, False]
    np.testing.assert_array_equal(np.delete(vectors, 2, 0), np.delete(clean, 2, 0))
