"""`/embed_sparse` of a real daemon, in two stages, beside sentence-transformers, in float32."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import with_tokenizer
from tests.workers.checkpoints import save_masked_lm

VOCABULARY = 30_522
TEXTS = ["The cat sat on the mat.", "A kitten rests on a rug.", "Water."]
LONG = " ".join(f"{number} sheep sleep under the old oak tree," for number in range(30))
PROMPT = "Represent this question: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model, and what sentence-transformers saves beside it."""
    from sentence_transformers import SparseEncoder

    folder: Path = tmp_path_factory.mktemp("models")
    bare, saved = folder / "bare", folder / "splade"
    save_masked_lm(bare, bias=-2.0, vocab_size=VOCABULARY, num_hidden_layers=2)
    encoder = SparseEncoder(
        str(with_tokenizer(bare)), device="cpu", prompts={"query": PROMPT, "document": ""}
    )
    encoder.save(str(saved))
    return saved


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Generator[Daemon]:
    with running(str(folder), "--threads", "1", "--pipeline-stages", "2") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(folder), device="cpu")


def sparse(daemon: Daemon, inputs: Any, **fields: Any) -> np.ndarray:
    """float32[N, V] of an answer whose indices ascend and which holds no zeros."""
    found = daemon.ask("/embed_sparse", inputs=inputs, **fields)
    vectors = np.zeros((len(found), VOCABULARY), np.float32)
    for vector, entries in zip(vectors, found, strict=True):
        indices = [entry["index"] for entry in entries]
        assert indices == sorted(set(indices))
        vector[indices] = [entry["value"] for entry in entries]
        assert np.count_nonzero(vector) == len(entries)
    return vectors


def test_vectors(daemon, reference) -> None:
    for fields, prompt_name in (({}, None), ({"prompt_name": "query"}, "query")):
        expected = reference.encode(
            TEXTS, prompt_name=prompt_name, convert_to_sparse_tensor=False
        ).numpy()
        assert 0.5 < (expected == 0).mean() < 1
        np.testing.assert_allclose(sparse(daemon, TEXTS, **fields), expected, atol=1e-5)


@pytest.mark.parametrize("side", ["right", "left"])
def test_truncation(daemon, reference, side) -> None:
    reference.tokenizer.truncation_side = side
    expected = reference.encode([LONG], convert_to_sparse_tensor=False).numpy()
    found = sparse(daemon, [LONG], truncate=True, truncation_direction=side)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_ready_message_says_how_to_try_it(daemon) -> None:
    assert f"{daemon.url}/embed_sparse" in "".join(daemon.log)
