"""What the daemon says when it is ready can be pasted into a shell."""

import json
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from server.daemon.welcome import describe, welcome
from server.settings.settings import ServerConfig
from tests.server.chat_templates import write_template
from tests.server.checkpoint_folders import BERT, LLAMA, WRAPPED, write_checkpoint
from tests.server.support import set_up


def config_of(folder: Path, **models: dict[str, Any]) -> ServerConfig:
    folders = {name: write_checkpoint(folder / name, config) for name, config in models.items()}
    served = (set_up(own, name, threads=2, pipeline_stages=2) for name, own in folders.items())
    return ServerConfig(models=tuple(served))


def commands(message: str) -> list[list[str]]:
    """The shell commands of a ready message, split as a shell does."""
    _, *blocks = message.strip().split("\n\n")
    return [shlex.split(block.replace("\\\n", "")) for block in blocks]


def bodies(message: str) -> dict[str, Any]:
    """Address → body of each command."""
    return {words[2]: json.loads(words[words.index("-d") + 1]) for words in commands(message)}


def test_one_command_for_each_endpoint_that_is_served(tmp_path: Path) -> None:
    message = welcome(config_of(tmp_path, writer=LLAMA, embedder=BERT), 2.34)
    assert "ready on http://127.0.0.1:8000 after 2.3 s" in message
    assert "http://127.0.0.1:8000/docs" in message
    tried = bodies(message)
    assert {url: body["model"] for url, body in tried.items()} == {
        "http://127.0.0.1:8000/v1/completions": "writer",
        "http://127.0.0.1:8000/v1/embeddings": "embedder",
        "http://127.0.0.1:8000/v1/rerank": "embedder",
    }


def test_a_chat_is_tried_where_the_model_has_a_template(tmp_path: Path) -> None:
    config = config_of(tmp_path, writer=LLAMA)
    write_template(tmp_path / "writer", "{{ messages[0].content }}")
    chat = bodies(welcome(config, 1.0))["http://127.0.0.1:8000/v1/chat/completions"]
    assert chat["model"] == "writer"
    assert chat["messages"][0]["role"] == "user"


def test_a_reranker_alone(tmp_path: Path) -> None:
    reranker = BERT | {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    (url,) = bodies(welcome(config_of(tmp_path, ranker=reranker), 1.0))
    assert url == "http://127.0.0.1:8000/v1/rerank"


def test_the_api_key_is_asked_for_and_not_shown(tmp_path: Path) -> None:
    config = config_of(tmp_path, writer=LLAMA)
    message = welcome(msgspec.structs.replace(config, api_keys=("5ec2e7",), host="::1"), 1.0)
    (words,) = commands(message)
    assert words[2] == "http://[::1]:8000/v1/completions"
    assert "Authorization: Bearer $PENSTOCK_API_KEY" in words
    assert "5ec2e7" not in message
    assert "/docs" not in message, "a browser could not open it"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LLAMA, "LlamaForCausalLM, float32 on cpu, 2 stages of 2 threads, up to 128 tokens"),
        (WRAPPED, "Gemma3ForConditionalGeneration (its language model: text only), float32 on cpu"),
    ],
)
def test_a_model_is_described_in_one_line(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    (model,) = config_of(tmp_path, writer=config).models
    assert describe(model).startswith(f"writer: {said}")


@pytest.mark.parametrize(
    ("gpus", "stage_layers", "said"),
    [
        (1, (), "on cuda:1, 1 stage of 2 threads, up to"),
        (2, (), "on cuda:1 and cuda:2, 2 stages of 2 threads, up to"),
        (4, (9, 8, 8, 7), "on cuda:1 to cuda:4, 4 stages of 2 threads with 9,8,8,7 layers, up to"),
    ],
)
def test_a_description_names_the_gpus_of_the_stages(
    tmp_path: Path, gpus: int, stage_layers: tuple[int, ...], said: str
) -> None:
    (model,) = config_of(tmp_path, writer=LLAMA).models
    devices = tuple(f"cuda:{number}" for number in range(1, 1 + gpus))
    execution = msgspec.structs.replace(model.execution, devices=devices, stage_layers=stage_layers)
    engine = msgspec.structs.replace(model.engine, execution=execution)
    assert said in describe(msgspec.structs.replace(model, engine=engine))


def test_a_description_tells_of_an_fp8_cache(tmp_path: Path) -> None:
    (model,) = config_of(tmp_path, writer=LLAMA).models
    execution = msgspec.structs.replace(model.execution, kv_cache_dtype="fp8_e4m3")
    engine = msgspec.structs.replace(model.engine, execution=execution)
    said = describe(msgspec.structs.replace(model, engine=engine))
    assert "float32 with keys and values in FP8 on cpu" in said
