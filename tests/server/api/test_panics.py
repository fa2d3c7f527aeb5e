"""Texts at which the tokenizer's library panics in an API process: refused, one by one."""

import pytest
from tokenizers import Tokenizer

from tests.engine_core.panicking import BAD, make_panicking
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config

QUERY = {"query": BAD, "documents": ["a"], "max_tokens_per_doc": 5}


@pytest.fixture(scope="module")
def panicking(module_builder: DeploymentBuilder) -> Deployment:
    models = module_builder.models()
    file = f"{models[0].path}/tokenizer.json"
    raw = Tokenizer.from_file(file)
    make_panicking(raw)
    raw.save(file)
    return module_builder.open(server_config(*models))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/tokenize", {"model": "writer", "prompt": BAD}, 400),
        ("/tokenize", {"model": "writer", "inputs": ["a", BAD]}, 422),
        ("/v1/completions", {"model": "writer", "prompt": "a", "bad_words": [BAD]}, 400),
        ("/v1/rerank", {"model": "ranker", **QUERY}, 400),
    ],
    ids=["tokenize", "tei", "bad words", "query"],
)
def test_a_request_is_refused(panicking: Deployment, path, body, status) -> None:
    for _ in range(2):
        answer = panicking.post(path, body)
        assert answer.status_code == status, answer.text
        assert "cannot be tokenized: Onig" in answer.text
    good = panicking.post("/tokenize", {"model": "writer", "prompt": "a good text"})
    assert good.status_code == 200
