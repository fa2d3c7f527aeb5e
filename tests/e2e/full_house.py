"""Models for every endpoint: those of a daemon that clients and fuzzers are let loose on."""

import json
import shutil
from pathlib import Path

from server.demo import EMBEDDER_NAME, GENERATOR_NAME, demo_models
from tests.workers.checkpoints import save_bert

CLIENTS_PYTHON = Path(__file__).parents[2] / ".venv-clients" / "bin" / "python"
KEY = "sesame-5f0c1e"
HEADERS = {"Authorization": f"Bearer {KEY}"}
CLASSIFIER_NAME = "moods"

_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|' + message.role + '|>' + (message.content or '') + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}
"""


def write_models(folder: Path) -> dict[str, Path]:
    """Name -> folder: the demo models, of which the generator chats, and a classifier."""
    return {
        GENERATOR_NAME: _write_chat_model(folder / "chat"),
        EMBEDDER_NAME: demo_models()[EMBEDDER_NAME],
        CLASSIFIER_NAME: _write_classifier(folder / "moods"),
    }


def _write_chat_model(folder: Path) -> Path:
    """The demo generator with a chat template."""
    shutil.copytree(demo_models()[GENERATOR_NAME], folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"chat_template": _TEMPLATE}
    file.write_text(json.dumps(settings))
    return folder


def _write_classifier(folder: Path) -> Path:
    """Three labels at random, and the demo embedder's tokenizer."""
    embedder = demo_models()[EMBEDDER_NAME]
    vocabulary = json.loads((embedder / "config.json").read_text())["vocab_size"]
    save_bert(
        folder, labels=3, id2label={0: "calm", 1: "glad", 2: "sad"}, vocab_size=vocabulary,
        num_hidden_layers=1,
    )  # fmt: skip
    for file in embedder.glob("*token*.json"):
        shutil.copy(file, folder)
    return folder
