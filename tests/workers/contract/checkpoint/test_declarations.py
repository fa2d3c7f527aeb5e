"""Declarations of an embedder's folder, and of a classifier's labels and scores."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.config_files import SIZES, read, written
from workers.contract.model_config import EmbeddingConfig, ModelConfigError

CONFIG = SIZES | {"architectures": ["BertModel"], "hidden_size": 16}


def read_embedding(folder: Path, settings: Any = None, **config: Any) -> EmbeddingConfig:
    if settings is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return read(folder, CONFIG | config).embedding


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert read_embedding(tmp_path) == EmbeddingConfig()
    assert read_embedding(tmp_path, {"__version__": {}}) == EmbeddingConfig()
    empty = {"prompts": None, "default_prompt_name": None}
    nothing = {"matryoshka_dimensions": None, "is_matryoshka": None}
    assert read_embedding(tmp_path, empty, **nothing) == EmbeddingConfig()


def test_prompts(tmp_path: Path) -> None:
    prompts = {"query": "query: ", "document": "", "none": None}
    read_back = read_embedding(tmp_path, {"prompts": prompts, "default_prompt_name": "query"})
    assert read_back.prompts == {"query": "query: ", "document": "", "none": ""}
    assert read_back.default_prompt_name == "query"


def test_dimensions(tmp_path: Path) -> None:
    listed = read_embedding(tmp_path, matryoshka_dimensions=[8, 4, 16, 4])
    assert (listed.is_matryoshka, listed.matryoshka_dimensions) == (True, (4, 8, 16))
    any_size = read_embedding(tmp_path, is_matryoshka=True)
    assert (any_size.is_matryoshka, any_size.matryoshka_dimensions) == (True, ())
    assert not read_embedding(tmp_path, is_matryoshka=False).is_matryoshka


@pytest.mark.parametrize(
    ("settings", "config", "named"),
    [
        ({"prompts": ["query"]}, {}, "prompts"),
        ({"prompts": {"query": 3}}, {}, "prompts"),
        ({"prompts": {}, "default_prompt_name": "query"}, {}, "'query' is none of its prompts"),
        ([], {}, "config_sentence_transformers.json"),
        (None, {"matryoshka_dimensions": "8"}, "matryoshka_dimensions"),
        (None, {"matryoshka_dimensions": [8, 0]}, "matryoshka_dimensions"),
        (None, {"matryoshka_dimensions": [8, 17]}, "17 is more than 16"),
        (None, {"matryoshka_dimensions": [8.5]}, "matryoshka_dimensions"),
        (None, {"is_matryoshka": "yes"}, "is_matryoshka"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, settings, config, named) -> None:
    with pytest.raises(ModelConfigError, match=named):
        read_embedding(tmp_path, settings, **config)


CLASSIFIER = {
    key: value
    for key, value in written("BertForSequenceClassification").items()
    if key not in ("id2label", "label2id", "num_labels")
}


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, ("LABEL_0", "LABEL_1")),
        ({"num_labels": 1}, ("LABEL_0",)),
        ({"id2label": {"1": "bad", "0": "good"}}, ("good", "bad")),
        ({"id2label": {"0": "good", "7": "bad"}}, ("good", "LABEL_1")),
        ({"id2label": None, "num_labels": 3}, ("LABEL_0", "LABEL_1", "LABEL_2")),
    ],
)
def test_labels_are_in_the_order_of_their_numbers(
    tmp_path: Path, changes: dict[str, Any], labels: tuple[str, ...]
) -> None:
    config = read(tmp_path, CLASSIFIER | changes)
    assert config.labels == labels
    assert config.num_labels == len(labels)


IDENTITY = "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("changes", "sigmoid"),
    [
        ({"num_labels": 1}, True),
        ({"num_labels": 1, "sbert_ce_default_activation_function": IDENTITY}, False),
        ({"num_labels": 1, "sentence_transformers": {"activation_fn": IDENTITY}}, False),
        ({"num_labels": 2}, False),
        ({"num_labels": 2, "problem_type": "single_label_classification"}, False),
        ({"num_labels": 2, "problem_type": "multi_label_classification"}, True),
    ],
)
def test_which_scores_are_probabilities_of_their_own(
    tmp_path: Path, changes: dict[str, Any], sigmoid: bool
) -> None:
    assert read(tmp_path, CLASSIFIER | changes).sigmoid_scores is sigmoid
