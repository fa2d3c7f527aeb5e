import numpy as np
import pytest

from engine_core.messages import Tokenization
from server.api.classify import label_scores, probabilities
from tests.server.api.conftest import LABELS
from tests.server.conftest import Deployment
from tests.server.fake_engine import logits_of
from tests.server.support import served_model, with_model

TEXTS = ["a b", "a b c d", "e"]
LOGITS = np.array([[0.0, 1.0, -2.0], [1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], np.float32)


def classify(encoders: Deployment, path: str = "/v1/classify", **fields) -> dict:
    return encoders.ask(path, **{"model": "sorter"} | fields)


def softmax(logits: np.ndarray) -> np.ndarray:
    odds = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64))
    return odds / odds.sum(axis=1, keepdims=True)


def test_each_text_gets_the_probabilities_of_all_labels(encoders):
    body = classify(encoders, input=TEXTS)
    expected = softmax(np.stack([logits_of(None, text, len(LABELS)) for text in TEXTS]))
    assert body["id"].startswith("classify-")
    assert (body["object"], body["model"]) == ("list", "sorter")
    told = [(entry["index"], entry["label"], entry["num_classes"]) for entry in body["data"]]
    assert told == [(index, LABELS[best], 3) for index, best in enumerate(expected.argmax(1))]
    np.testing.assert_allclose([e["probs"] for e in body["data"]], expected, atol=1e-6)
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 3
    assert classify(encoders, "/classify", input=TEXTS)["data"] == body["data"]


def test_one_text_and_its_logits(encoders):
    body = classify(encoders, input="a b", use_activation=False)
    expected = logits_of(None, "a b", len(LABELS))
    np.testing.assert_allclose(body["data"][0]["probs"], expected, atol=1e-6)


def test_a_reranker_has_one_label(deployment):
    (entry,) = classify(deployment, model="ranker", input="a b")["data"]
    assert entry == {"index": 0, "label": "relevant", "probs": [2.0], "num_classes": 1}


def test_a_salt_parts_cached_prefixes(encoders):
    """A causal model classifies with the prefix cache."""
    for fields in ({}, {"cache_salt": "mine"}, {"cache_salt": "other"}):
        classify(encoders, input="a b", **fields)
    assert len({job.cache_salt for job in encoders.engines["sorter"].received}) == 3


@pytest.mark.parametrize(("asked", "limit"), [(None, None), (-1, 2048), (7, 7)])
def test_texts_are_cut_if_asked_for(encoders, asked, limit):
    classify(encoders, input=[[5, 6]], truncate_prompt_tokens=asked, priority=-1)
    job = encoders.job("sorter")
    assert job.tokenization == Tokenization(truncate_to=limit)
    assert (job.priority, job.query, len(job.ids)) == (-1, None, 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("sigmoid", [True, False])
def test_scores_are_what_the_checkpoint_says(tmp_path, labels, sigmoid):
    """One label without a sigmoid is its logit, though its probability is one all the same."""
    names = tuple(map(str, range(labels)))
    served = served_model("m", "classify", tmp_path, "ipc://m", vocab_size=9, labels=names)
    config = with_model(served, sigmoid_scores=sigmoid).execution.model
    logits = LOGITS.reshape(-1, labels)
    each = 1 / (1 + np.exp(-np.clip(logits.astype(np.float64), -700, 700)))
    likely = each if sigmoid or labels == 1 else softmax(logits)
    found = label_scores(logits, config)
    expected = logits if labels == 1 and not sigmoid else likely
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32
    np.testing.assert_allclose(probabilities(logits, config), likely, atol=1e-6)
