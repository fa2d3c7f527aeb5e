"""Texts at which the tokenizer's library panics in an API process: refused, one by one."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine_core.tokenization.tokenizer import Tokenizer
from tests.engine_core.panicking import BAD, make_panicking
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import server_config, write_tokenizer

QUERY = {"query": BAD, "documents": ["a"], "max_tokens_per_doc": 5}


@pytest.fixture(scope="module")
def panicking() -> Iterator[Deployment]:
    with TemporaryDirectory(prefix="penstock-") as name:
        file = Path(name) / "tokenizer.json"
        write_tokenizer(Path(name))
        sane = Tokenizer.load(file.parent, file.name)
        raw = RawTokenizer.from_file(str(file))
        make_panicking(raw)
        raw.save(str(file))
        builder = DeploymentBuilder(Path(name), sane)
        models = builder.model("writer", "generate"), builder.model("ranker", "classify")
        yield builder.open(server_config(*models))
        builder.close()


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
def test_a_request_is_refused(
    panicking: Deployment, path: str, body: dict[str, Any], status: int
) -> None:
    for _ in range(2):
        answer = panicking.post(path, body)
        assert answer.status_code == status, answer.text
        assert "cannot be tokenized: Onig" in answer.text
    good = panicking.post("/tokenize", {"model": "writer", "prompt": "a good text"})
    assert good.status_code == 200
