import msgspec
import numpy as np
import pytest

from server.api.classify import label_scores, probabilities
from tests.server.support import served_model

LOGITS = np.array([[0.0, 1.0, -2.0], [1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], np.float32)


def expit(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -700, 700)))


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64))
    return odds / odds.sum(axis=1, keepdims=True)


def config(tmp_path, labels: int, *, sigmoid: bool):
    names = tuple(map(str, range(labels)))
    served = served_model("m", "classify", tmp_path, "ipc://m", vocab_size=9, labels=names)
    return msgspec.structs.replace(served.execution.model, sigmoid_scores=sigmoid)


def test_several_labels_share_a_probability_of_one(tmp_path):
    found = label_scores(LOGITS, config(tmp_path, 3, sigmoid=False))
    np.testing.assert_allclose(found, softmax(LOGITS), atol=1e-6)
    assert found.dtype == np.float32


def test_labels_that_do_not_exclude_each_other_have_one_each(tmp_path):
    found = label_scores(LOGITS, config(tmp_path, 3, sigmoid=True))
    np.testing.assert_allclose(found, expit(LOGITS), atol=1e-6)
    assert found.dtype == np.float32


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("sigmoid", [True, False])
def test_one_label_is_what_its_checkpoint_says(tmp_path, sigmoid):
    logits = LOGITS.reshape(-1, 1)
    one = config(tmp_path, 1, sigmoid=sigmoid)
    expected = expit(logits) if sigmoid else logits
    np.testing.assert_allclose(label_scores(logits, one), expected, atol=1e-6)
    np.testing.assert_allclose(probabilities(logits, one), expit(logits), atol=1e-6)
