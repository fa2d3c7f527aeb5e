"""`/tokenizer_info`: the configuration beside a model's tokenizer, with its chat template."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.chat_templates import LLAMA3
from tests.server.conftest import Deployment, own_builder
from tests.server.support import server_config

CONFIG = {
    "tokenizer_class": "LlamaTokenizerFast",
    "model_max_length": 10**30,
    "added_tokens_decoder": {"0": {"content": "<s>", "special": True}},
    "bos_token": "<s>",
    "chat_template": LLAMA3,
    "vocab_file": "/home/ada/vocab.json",
}


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Deployment]:
    """Two models of one folder."""
    with own_builder(tokenizer) as builder:
        models = [builder.model("writer", "generate"), builder.model("embedder", "embed")]
        (Path(models[0].path) / "tokenizer_config.json").write_text(json.dumps(CONFIG))
        yield builder.open(server_config(*models))


def info(deployment: Deployment, **query: str) -> dict:
    answer = deployment.http.get("/tokenizer_info", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("model", ["writer", "embedder"])
def test_it_is_the_configuration_but_for_files(served: Deployment, model: str) -> None:
    expected = {key: value for key, value in CONFIG.items() if key != "vocab_file"}
    assert info(served, model=model) == expected


def test_a_template_in_a_file_of_its_own_is_there(chats: Deployment) -> None:
    found = info(chats, model="writer")
    assert found["chat_template"] == LLAMA3
    assert found["tokenizer_class"]


def test_a_model_without_template_or_configuration(deployment: Deployment) -> None:
    assert info(deployment, model="embedder") == {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [({}, 400, "model_required"), ({"model": "nobody"}, 404, "model_not_found")],
)
def test_whose_it_is_must_be_known(served: Deployment, query, status, code) -> None:
    answer = served.http.get("/tokenizer_info", params=query)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, "model")
