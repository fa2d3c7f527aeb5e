"""A causal model that embeds gives sentence-transformers' vectors, whatever is cached, in any
steps."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from engine_core.messages import Abort, EncodeJob, Tokenization
from server.api.embeddings import shorten
from tests.engine_core.test_core import A, idle
from tests.workers.inline_engine import shifted_position
from tests.workers.stage.embedding_llama import random_texts, save_embedding_llama
from tests.workers.stage.encoding_engine import answers, cached_tokens, refusal, start_engine
from tests.workers.stages import Stages

TOLERANCE = 1e-5
TEXTS = [*random_texts(14, 60), "w5", "w5 w6", " ".join(["w7"] * 255)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embedder")


@pytest.fixture(scope="module")
def reference(folder: Path) -> SentenceTransformer:
    return save_embedding_llama(folder)


@pytest.fixture(scope="module")
def stages(folder: Path, reference: SentenceTransformer) -> Stages:
    return Stages(folder, task="embed")


@pytest.fixture(scope="module")
def expected(reference: SentenceTransformer) -> np.ndarray:
    return reference.encode(TEXTS)


def off_by(vectors: np.ndarray, expected: np.ndarray) -> float:
    """The largest deviation of the vectors, scaled as the server scales them."""
    scaled = shorten(vectors, vectors.shape[1], normalize=True)
    return float(np.abs(scaled - expected).max())


@pytest.mark.parametrize("max_step_tokens", [13, 256])
def test_vectors_are_those_of_sentence_transformers(
    folder: Path, stages: Stages, expected: np.ndarray, max_step_tokens: int
) -> None:
    engine = start_engine(folder, stages, max_step_tokens=max_step_tokens)
    (vectors,) = answers(engine, [EncodeJob(1, texts=TEXTS)]).values()
    assert off_by(vectors, expected) < TOLERANCE
    assert engine.core._scheduler.usage().generated_tokens == 0


def test_cached_beginnings_change_nothing_and_a_salt_hides_them(
    folder: Path, stages: Stages, expected: np.ndarray
) -> None:
    engine = start_engine(folder, stages)
    texts, cached = TEXTS[:6], list[int]()
    for number, salt in enumerate(("", "", "mine")):
        (found,) = answers(engine, [EncodeJob(number, texts=texts, cache_salt=salt)]).values()
        assert off_by(found, expected[:6]) < TOLERANCE
        cached.append(cached_tokens(engine))
    first, again, salted = cached
    assert again - first > 4 * len(texts)
    assert salted == again


def test_an_fp8_cache_changes_vectors_little_and_cached_ones_not_at_all(
    folder: Path, expected: np.ndarray
) -> None:
    stages = Stages(folder, task="embed", backend="naive", kv_cache_dtype="fp8_e4m3")
    engine = start_engine(folder, stages)
    jobs = [EncodeJob(number, texts=TEXTS[:6]) for number in (1, 2)]
    cold, cached = (answers(engine, [job])[job.id] for job in jobs)
    assert np.array_equal(cold, cached)
    assert cached_tokens(engine) > 4 * 6
    assert TOLERANCE < off_by(cold, expected[:6]) < 0.1


@pytest.mark.parametrize("num_stages", [1, 2])
def test_items_of_a_grouped_job_share_to_the_token(
    folder: Path, reference: SentenceTransformer, num_stages: int
) -> None:
    stages = Stages(folder, task="embed", num_stages=num_stages)
    engine = start_engine(folder, stages, max_step_tokens=64)
    shared = " ".join(f"w{number}" for number in range(5, 43))
    texts = [f"{shared} w{number} w3" for number in range(50, 60)] + ["w5", "w6 w7"]
    before = cached_tokens(engine)
    (vectors,) = answers(engine, [EncodeJob(1, texts=texts, batch=True)]).values()
    assert off_by(vectors, reference.encode(texts)) < TOLERANCE
    assert cached_tokens(engine) - before == 9 * 38
    assert idle(engine)


def test_jobs_beside_strangers_and_in_two_stages(
    folder: Path, reference: SentenceTransformer, expected: np.ndarray
) -> None:
    engine = start_engine(folder, Stages(folder, task="embed", num_stages=2), max_step_tokens=40)
    jobs = [EncodeJob(row, texts=[text]) for row, text in enumerate(TEXTS)]
    found = answers(engine, jobs)
    vectors = np.concatenate([found[row] for row in range(len(TEXTS))])
    assert off_by(vectors, expected) < TOLERANCE


def test_a_wrong_position_would_be_seen(folder: Path, stages: Stages, expected: np.ndarray) -> None:
    wrong = shifted_position(at=2)
    engine = start_engine(folder, stages, wrong, max_step_tokens=13)
    (vectors,) = answers(engine, [EncodeJob(1, texts=TEXTS)]).values()
    assert off_by(vectors, expected) > 100 * TOLERANCE


def test_truncation_keeps_the_end_token(
    folder: Path, stages: Stages, reference: SentenceTransformer
) -> None:
    engine = start_engine(folder, stages)
    cut = Tokenization(truncate_to=5)
    (vectors,) = answers(engine, [EncodeJob(1, texts=["w9 " * 20], tokenization=cut)]).values()
    assert off_by(vectors, reference.encode(["w9 " * 4])) < TOLERANCE


def test_an_aborted_job_leaves_nothing(folder: Path, stages: Stages) -> None:
    engine = start_engine(folder, stages, max_step_tokens=8)
    engine.clients.put(A, EncodeJob(1, texts=TEXTS[:4]))
    engine.iterate_until(lambda: engine.core._scheduler.usage().running > 0)
    engine.clients.put(A, Abort([1]))
    engine.iterate_until(lambda: idle(engine))
    assert not any(outputs.encoded for outputs in engine.clients.outputs(A))
    usage = engine.core._scheduler.usage()
    assert (usage.running, usage.waiting, usage.kv_blocks_used) == (0, 0, 0)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (EncodeJob(1, texts=["w1 " * 300]), "input has 301 tokens; this model takes at most 256"),
        (
            EncodeJob(1, texts=["w1"], outputs=("states",)),
            "this model does not return token states",
        ),
        (EncodeJob(1, texts=["w1"], query="w2"), "this model does not score pairs"),
    ],
)
def test_jobs_that_are_refused(folder: Path, stages: Stages, job: EncodeJob, message: str) -> None:
    assert message in refusal(start_engine(folder, stages), job)
