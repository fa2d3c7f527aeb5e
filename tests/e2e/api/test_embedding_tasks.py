"""Small tasks whose scores are those of sentence-transformers' vectors.

Their data is what gensim ships for its own tests: pairs of words, and pairs of 50 news texts, with
the similarity that people have seen in each.
"""

from importlib.metadata import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score

from server.demo import EMBEDDER_NAME, demo_models
from tests.e2e.daemon import Daemon

CLOSE = 1e-3


class Vectors(NamedTuple):
    """The unit vectors of texts as rows, by the daemon's embedder and by the library's."""

    own: np.ndarray
    library: np.ndarray


class News(NamedTuple):
    """The first sentence of each text, the rest of it, and how similar people find two texts."""

    heads: Vectors
    rests: Vectors
    seen: np.ndarray


@pytest.fixture(scope="module")
def library() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(demo_models()[EMBEDDER_NAME]), device="cpu")


@pytest.fixture(scope="module")
def news(demo: Daemon, library: Any) -> News:
    split = [text.partition(". ") for text in shipped("lee.cor")]
    half = np.array([line.split() for line in shipped("similarities0-1.txt")], float)
    heads = encode(demo, library, [head for head, _, _ in split])
    rests = encode(demo, library, [rest or head for head, _, rest in split])
    return News(heads, rests, np.maximum(half, half.T))


def shipped(name: str) -> list[str]:
    """The lines of a file of gensim's test data."""
    (file,) = (each for each in files("gensim") or [] if each.name == name)
    return Path(file.locate()).read_text(encoding="latin-1").splitlines()


def encode(daemon: Daemon, library: Any, texts: list[str]) -> Vectors:
    """Cut after as many tokens as the model reads."""
    fields = {"model": EMBEDDER_NAME, "input": texts, "truncate_prompt_tokens": -1}
    entries = daemon.ask("/v1/embeddings", **fields)["data"]
    return Vectors(np.array([entry["embedding"] for entry in entries]), library.encode(texts))


def check(own: Any, expected: Any, least: float) -> None:
    """A score that is bad for both would say little."""
    assert expected > least
    assert own == pytest.approx(expected, abs=CLOSE)


def test_similarity_of_words(demo: Daemon, library: Any) -> None:
    """Spearman's correlation with WordSim-353."""
    rows = [line.split("\t") for line in shipped("wordsim353.tsv")[2:]]
    seen = [float(similarity) for _, _, similarity in rows]
    words = [word for first, second, _ in rows for word in (first, second)]
    own, expected = (
        spearmanr((each[::2] * each[1::2]).sum(1), seen)[0] for each in encode(demo, library, words)
    )
    check(own, expected, least=0.7)


def test_similarity_of_news(news: News) -> None:
    """Spearman's correlation over all pairs of two."""
    pairs = np.triu_indices(len(news.seen), 1)
    own, expected = (spearmanr((each @ each.T)[pairs], news.seen[pairs])[0] for each in news.rests)
    check(own, expected, least=0.4)


def test_retrieval_of_news_by_a_first_sentence(news: News) -> None:
    """The nDCG@10, with the text itself as the best answer, and similar ones behind it."""
    own, expected = (
        ndcg_score(news.seen, queries @ texts.T, k=10)
        for queries, texts in zip(news.heads, news.rests, strict=True)
    )
    check(own, expected, least=0.8)
