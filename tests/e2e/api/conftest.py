"""The daemon that the tests of every option and every field share."""

import json
import shutil
from collections.abc import Generator
from pathlib import Path, PurePath
from typing import Any

import pytest
import yaml

from server.batches.state.secret import KEPT_IN
from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.e2e.daemon import Daemon, running
from tests.e2e.full_daemon import KEY, with_tokenizer, write_sparse_embedder
from tests.workers.checkpoints import save_bert
from tests.workers.contract.checkpoint.library_folders import change
from tests.workers.heads.reranking_qwen3 import save_reranking_qwen3

# Whatever a template can be told shows in its prompt.
TEMPLATE = """\
{{ bos_token }}{{ reasoning_effort }}{{ enable_thinking }}{{ tools | tojson if tools }}\
{% for message in messages %}{{ message.role }} {{ message.name }} {{ message.tool_call_id }} >\
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}\
{{ message.content or '' }}{% for call in message.tool_calls or [] %}\
<call>{{ call.id }}/{{ call.function.name }}<args>{{ call.function.arguments | tojson }}</call>\
{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant   >{% if enable_thinking %}<think>{% endif %}\
{% endif %}"""
SECRET = "5e" * 32
"""The secret in the daemon's state folder."""
PROMPTS = {"prompts": {"query": "query: ", "passage": "passage: "}}


@pytest.fixture(scope="session")
def options_daemon(tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    """A generator, an embedder, a sparse one, a reranker and a causal one, `judge`, behind a
    key."""
    models = save_models(tmp_path_factory.mktemp("models"))
    entries: list[dict[str, Any]] = [
        {"model": str(folder), "names": [name], "threads": 1} for name, folder in models.items()
    ]
    entries[-1]["task"] = "rerank"
    file = tmp_path_factory.mktemp("options") / "penstock.yaml"
    file.write_text(yaml.safe_dump({"models": entries, "priority_range": "-1:1"}))
    state = file.parent / "state"
    state.mkdir()
    (state / KEPT_IN).write_text(SECRET)
    arguments = ("--config", str(file), "--api-key", KEY, "--state-dir", str(state))
    with running(*arguments) as daemon:
        yield daemon


def save_models(root: Path) -> dict[str, Path]:
    """Folders by the names of the models in them."""
    names = ("writer", "embedder", "sparse", "ranker", "Qwen3-Reranker/judge")
    models = {PurePath(name).name: root / name for name in names}
    shutil.copytree(demo_models()[GENERATOR_NAME], models["writer"])
    shutil.copytree(demo_models()[EMBEDDER_NAME], models["embedder"])
    change(models["embedder"] / "config.json", is_matryoshka=True)
    write_sparse_embedder(models["sparse"])
    size = json.loads((models["sparse"] / "config.json").read_text())["vocab_size"]
    save_bert(models["ranker"], labels=1, vocab_size=size, num_hidden_layers=1)
    with_tokenizer(models["ranker"])
    for name in ("writer", "embedder", "ranker"):
        (models[name] / "chat_template.jinja").write_text(TEMPLATE)
    for name in ("embedder", "sparse"):
        (models[name] / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    save_reranking_qwen3(models["judge"])
    return models
