"""The forms of a vector and the similarities of two, as sentence-transformers has them."""

from functools import partial

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sentence_transformers.util import SimilarityFunction, quantize_embeddings

from server.api.embeddings import cosine_similarity, in_lists, quantize, shorten, similarity
from tests.engine_core.configs import MODEL
from workers.contract.model_config import EmbeddingConfig, NormalizeConfig


@pytest.fixture(params=[8, 20, 384])
def vectors(request) -> np.ndarray:
    numbers = np.random.default_rng(3).standard_normal((17, request.param)).astype(np.float32)
    return numbers / np.linalg.norm(numbers, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "binary", "ubinary"])
def test_what_sentence_transformers_defines_is_the_same(vectors: np.ndarray, dtype) -> None:
    vectors[2, 1] = 0.0  # neither above 0 nor below
    expected = np.asarray(quantize_embeddings(vectors, dtype))
    ours = quantize(vectors, dtype)
    assert ours.dtype == expected.dtype
    assert np.array_equal(ours, expected)


def test_bits_say_which_numbers_are_above_0() -> None:
    row = np.array([[1, -1, 0, 2, -3, -4, -5, 6, 7, -8]], np.float32)
    assert quantize(row, "ubinary").tolist() == [[0b10010001, 0b10000000]]
    assert quantize(row, "binary").tolist() == [[0b10010001 - 128, 0]]


def test_int8_keeps_the_direction(vectors: np.ndarray) -> None:
    whole = quantize(vectors, "int8")
    assert whole.dtype == np.int8
    assert (np.abs(whole.astype(int)).max(axis=1) == 127).all()
    back = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    assert (back * vectors).sum(axis=1).min() > 0.999
    scale = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert np.abs(whole * scale - vectors).max() <= scale.max() * 0.501


@pytest.mark.parametrize(
    "form", [partial(quantize, dtype="int8"), lambda own: shorten(own, len(own[0]), normalize=True)]
)
def test_a_vector_becomes_the_same_in_any_batch_and_at_any_length(vectors, form) -> None:
    together = form(vectors)
    for row, vector in zip(together, vectors, strict=True):
        assert np.array_equal(form(vector[None])[0], row)
    assert np.array_equal(form(vectors * 4), together)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_in_json_are_those_of_their_type(dtype: type[np.floating]) -> None:
    """Any finite ones, and of rows that are not side by side in memory."""
    bits = np.random.default_rng(5).integers(0, 256, 400_000, np.uint8)
    numbers = np.concatenate([bits.view(dtype), np.array([0, -0.0, 1, 1e-7, 65504], dtype)])
    rows = np.stack([numbers[np.isfinite(numbers)]] * 2, axis=1)
    for row in rows.T:
        found = np.array(msgspec.json.decode(in_lists(row)), dtype)
        assert found.tobytes() == row.tobytes()


def test_float16_is_rounded_and_stays_finite() -> None:
    row = np.array([[0.1, -1e6, 1e6, 65_519.0]], np.float32)
    half = quantize(row, "float16")
    assert half.dtype == np.float16
    assert half.tolist() == [[float(np.float16(0.1)), -65_504, 65_504, 65_504]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "binary", "ubinary"])
def test_no_direction_is_no_fault(dtype) -> None:
    with np.errstate(all="raise"):
        assert np.isfinite(quantize(np.zeros((1, 8), np.float32), dtype)).all()
        assert not shorten(np.array([[0, 0, 1]], np.float32), 2, normalize=True).any()


@pytest.mark.parametrize("size", [5, 8])
def test_a_shorter_vector_has_length_1_if_that_is_asked_for(vectors: np.ndarray, size) -> None:
    short = shorten(3 * vectors, size, normalize=True)
    assert short.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    ratio = short / vectors[:, :size]
    np.testing.assert_allclose(ratio, ratio[:, :1].repeat(size, axis=1), rtol=1e-5)
    assert np.array_equal(shorten(vectors, size, normalize=False), vectors[:, :size])


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("queries", [1, 5])
def test_similarities_are_the_librarys(kind, normalize: bool, queries: int) -> None:
    size, draw = 4, np.random.default_rng(3)
    first = draw.normal(size=(queries, size)).astype(np.float32)
    second = draw.normal(size=(5, size)).astype(np.float32)
    config = msgspec.structs.replace(
        MODEL,
        hidden_size=size,
        modules=(NormalizeConfig(),) * normalize,
        embedding=EmbeddingConfig(similarity=kind),
    )
    pairwise = SimilarityFunction.to_similarity_pairwise_fn(kind)
    own = [
        shorten(pooled, size, normalize=normalize)
        for pooled in (first.repeat(5 // queries, 0), second)
    ]
    ours = similarity(first, second, config)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, pairwise(*own), rtol=1e-5, atol=1e-6)


@given(vectors=hnp.arrays(np.float32, (4, 5), elements=st.floats(-(2.0**20), 2.0**20, width=32)))
def test_cosine_similarity_stays_in_its_range(vectors):
    scores = cosine_similarity(vectors[:1], vectors[1:])
    assert scores.dtype == np.float32
    assert np.all(np.abs(scores) <= 1)
    assert np.all(np.isfinite(scores))


def test_cosine_similarity_of_what_is_equal_opposite_square_and_nothing():
    others = np.array([[2, 0], [-3, 0], [0, 1], [0, 0]], np.float32)
    scores = cosine_similarity(np.array([[5, 0]], np.float32), others)
    assert scores.tolist() == [1, -1, 0, 0]
