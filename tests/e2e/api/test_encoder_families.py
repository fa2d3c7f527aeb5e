"""Encoders of other families over HTTP, against the libraries: XLM-RoBERTa as multilingual-e5 and
bge-reranker have it, MPNet as all-mpnet-base-v2, NomicBERT as nomic-embed-text; and LaBSE's modules
(cls, Dense with tanh, Normalize) with a prompt that is not pooled."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import modules as library
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace, Sequence, WhitespaceSplit
from tokenizers.trainers import UnigramTrainer
from transformers import MPNetTokenizer, XLMRobertaTokenizer

from tests.e2e.daemon import Daemon, running
from tests.workers.checkpoints import save_bert
from tests.workers.contract.checkpoint.library_folders import (
    change,
    saved,
    transformer,
    write_tokenizer,
)
from tests.workers.models.encoders import ENCODERS, LIMIT

TEXTS = [
    "Where does the water fall?",
    "Où tombe l'eau de la montagne ?",
    "Wo fällt das Wasser, <mask> oder 🌊?",
    "水はどこに落ちますか",
    "Вода  падает\tвниз </s> течёт",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


class Served(NamedTuple):
    """A daemon, and the libraries' own models by served name."""

    daemon: Daemon
    embedders: dict[str, SentenceTransformer]
    reranker: CrossEncoder

    def vectors(self, model: str, **fields: Any) -> np.ndarray:
        answer = self.daemon.ask("/v1/embeddings", model=model, input=TEXTS, **fields)
        return np.array([entry["embedding"] for entry in answer["data"]])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    root = tmp_path_factory.mktemp("families")
    e5 = write_embedder(root / "e5", "xlm_roberta", pieces(), {"query": "query: "})
    mpnet = write_embedder(root / "mpnet", "mpnet", words(), {})
    change(root / "mpnet" / "config.json", architectures=["MPNetForMaskedLM"])
    nomic = write_embedder(root / "nomic", "nomicbert", words(), {"search_query": "the water "})
    change(root / "nomic" / "config.json", matryoshka_dimensions=[16, 64])
    ENCODERS["xlm_roberta_label"].save(root / "reranker")
    pieces().save_pretrained(root / "reranker")
    reranker = CrossEncoder(str(root / "reranker"), device="cpu")
    names = ("e5", "mpnet", "nomic", "reranker")
    options = [word for name in names for word in ("--served-model-name", name)]
    folders = [str(root / name) for name in names]
    with running(*folders, *options, "--threads", "1") as daemon:
        yield Served(daemon, {"e5": e5, "mpnet": mpnet, "nomic": nomic}, reranker)


def pieces() -> XLMRobertaTokenizer:
    """Pieces of `TEXTS` by likelihood; a pair is `<s> A </s></s> B </s>`."""
    raw = Tokenizer(Unigram())
    raw.pre_tokenizer = Sequence([WhitespaceSplit(), Metaspace()])
    trainer = UnigramTrainer(
        vocab_size=120, show_progress=False, special_tokens=SPECIAL, unk_token="<unk>"
    )
    raw.train_from_iterator(TEXTS[:4], trainer)
    trained = json.loads(raw.to_str())["model"]["vocab"]
    return XLMRobertaTokenizer(vocab=[*map(tuple, trained), ("<mask>", 0.0)])


def words() -> MPNetTokenizer:
    """Letters of `TEXTS` in lower case, and a few words."""
    letters = sorted({letter for text in TEXTS for letter in text.lower() if letter.isalnum()})
    entries = [*SPECIAL, "[UNK]", "water", "the", *letters, *(f"##{own}" for own in letters)]
    return MPNetTokenizer(vocab={entry: index for index, entry in enumerate([*entries, "<mask>"])})


def write_embedder(
    folder: Path, family: str, tokenizer: Any, prompts: dict[str, str]
) -> SentenceTransformer:
    own = folder.with_suffix(".own")
    size = ENCODERS[family].save(own).config.hidden_size
    tokenizer.save_pretrained(own)
    modules = transformer(own), library.Pooling(size, "mean"), library.Normalize()
    return saved(folder, *modules, prompts=prompts)


@pytest.mark.parametrize(
    ("name", "prompt"),
    [("e5", None), ("e5", "query"), ("mpnet", None), ("nomic", None), ("nomic", "search_query")],
)
def test_vectors_are_those_of_the_library(served: Served, name: str, prompt: str | None) -> None:
    vectors = served.vectors(name, prompt_name=prompt)
    expected = served.embedders[name].encode(TEXTS, prompt_name=prompt)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert np.abs(expected - expected.mean(0)).max() > 0.01


def test_scores_are_those_of_the_library(served: Served) -> None:
    query, documents = TEXTS[0], TEXTS[1:]
    answer = served.daemon.ask("/v1/rerank", model="reranker", query=query, documents=documents)
    expected = served.reranker.predict([(query, document) for document in documents])
    pair = served.reranker.tokenizer.decode(served.reranker.tokenizer("fall", "the").input_ids)
    assert pair == "<s> fall</s></s> the</s>"
    scores = {result["index"]: result["relevance_score"] for result in answer["results"]}
    ours = [scores[index] for index in range(len(documents))]
    np.testing.assert_allclose(ours, expected, atol=1e-5)
    assert np.ptp(expected) > 0.001


@pytest.mark.parametrize("name", ["e5", "mpnet", "nomic"])
def test_tokens_are_those_of_transformers(served: Served, name: str) -> None:
    tokenizer = served.embedders[name].tokenizer
    for text in TEXTS:
        for special in (True, False):
            answer = served.daemon.ask(
                "/tokenize", model=name, prompt=text, add_special_tokens=special
            )
            assert answer["tokens"] == tokenizer(text, add_special_tokens=special)["input_ids"]
            assert answer["max_model_len"] == LIMIT


SIZE, SHORT = 64, 48
WATER = ["water falls", "falls Water water falls water", "Water"]


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.long), 2])
def test_vectors_of_modules_are_those_of_the_library(tmp_path: Path, stages: int) -> None:
    own, folder = tmp_path / "own", tmp_path / "labse"
    save_bert(own)
    write_tokenizer(own)
    pooling = library.Pooling(SIZE, "cls", include_prompt=False)
    dense = library.Dense(SIZE, SHORT, activation_function=torch.nn.Tanh())
    modules = (transformer(own), pooling, dense, library.Normalize())
    reference = saved(folder, *modules, prompts={"query": "falls water "})
    with running(str(folder), "--threads", "1", "--pipeline-stages", str(stages)) as daemon:
        for name in (None, "query"):
            answer = daemon.ask("/v1/embeddings", input=WATER, prompt_name=name)
            vectors = np.array([entry["embedding"] for entry in answer["data"]])
            expected = reference.encode(WATER, prompt_name=name)
            assert vectors.shape == (len(WATER), SHORT)
            np.testing.assert_allclose(vectors, expected, atol=1e-5)
        states = daemon.ask("/embed_all", inputs=WATER)
        assert {len(state) for text in states for state in text} == {SIZE}
