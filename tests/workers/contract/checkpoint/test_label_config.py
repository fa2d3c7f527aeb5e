"""What a classifier's `config.json` says of its labels and of what their scores mean."""

import json
from pathlib import Path

import pytest

from tests.workers.checkpoints import save_bert
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.model_config import ModelConfig


@pytest.fixture
def configured(tmp_path: Path):
    save_bert(tmp_path, labels=2)
    file = tmp_path / "config.json"
    raw = json.loads(file.read_text())
    for key in ("id2label", "label2id", "num_labels"):
        raw.pop(key, None)

    def read(**changes: object) -> ModelConfig:
        file.write_text(json.dumps(raw | changes))
        return read_model_config(tmp_path)

    return read


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
def test_labels_are_in_the_order_of_their_numbers(configured, changes, labels):
    config = configured(**changes)
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
def test_which_scores_are_probabilities_of_their_own(configured, changes, sigmoid):
    assert configured(**changes).sigmoid_scores is sigmoid
