"""A classifier's labels and the meaning of their scores, by its `config.json`."""

from pathlib import Path
from typing import Any

import pytest

from tests.workers.contract.checkpoint.config_files import read, written

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
