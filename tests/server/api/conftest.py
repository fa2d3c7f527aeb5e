"""Deployments that the tests of several endpoints share."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server.settings.settings import ServedModel
from tests.server.chat_client import say_little
from tests.server.chat_templates import CHATML, ENDLESS, LLAMA3, MISTRAL, chat_deployment
from tests.server.conftest import Deployment, DeploymentBuilder, own_builder
from tests.server.support import ANY_PRIORITY, server_config, with_model
from workers.contract.model_config import EmbeddingConfig

TEMPLATES: dict[str, object] = {
    "writer": LLAMA3,
    "chatml": CHATML,
    "mistral": MISTRAL,
    "plain": None,
    "broken": "{% if",
    "endless": ENDLESS,
    "org/deep/model": None,
    "turns": (
        "{% for m in messages %}<{{ m.role[0] | upper }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<A>{% endif %}"
    ),
    "users only": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
    "no question": "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
}
PROMPTS = {"query": "Q: ", "passage": "P: ", "plain": "", "Clustering": "C: ", "clustering": "K: "}
EMBEDDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "listed": {"embedding": EmbeddingConfig(is_matryoshka=True, matryoshka_dimensions=(2, 4))},
    "any-size": {"embedding": EmbeddingConfig(is_matryoshka=True)},
    "prompted": {"embedding": EmbeddingConfig(prompts=PROMPTS)},
    "default": {"embedding": EmbeddingConfig(prompts=PROMPTS, default_prompt_name="query")},
    "unpooled": {"embedding": EmbeddingConfig(prompts=PROMPTS)},
    "long": {"modules": (), "embedding": EmbeddingConfig(similarity="dot")},
    "seeing": {"wrapped": True},
}
"""By what they declare: each has 8 numbers a vector and 2,048 tokens a text."""
LABELS = ("good", "bad", "ugly")


@pytest.fixture(scope="session")
def open_chats(tokenizer: Tokenizer) -> Iterator[Deployment]:
    with chat_deployment(tokenizer, TEMPLATES) as deployment:
        yield deployment


@pytest.fixture
def chats(open_chats: Deployment) -> Deployment:
    """A generator for each of TEMPLATES."""
    return say_little(open_chats)


@pytest.fixture(scope="session")
def open_encoders(tokenizer: Tokenizer) -> Iterator[Deployment]:
    with own_builder(tokenizer) as builder:
        models = [
            *(embedder(builder, name) for name in EMBEDDERS),
            builder.model("sorter", "classify", LABELS),
            with_model(builder.model("judge", "classify"), sigmoid_scores=True),
        ]
        yield builder.open(server_config(*models, limits=ANY_PRIORITY))


@pytest.fixture
def encoders(open_encoders: Deployment) -> Deployment:
    """EMBEDDERS, a classifier of three LABELS and a reranker with probabilities."""
    open_encoders.reset()
    return open_encoders


def embedder(builder: DeploymentBuilder, name: str) -> ServedModel:
    """One of EMBEDDERS. "unpooled" leaves its prompt out of the vector."""
    served = builder.model(name, "embed")
    pooling = msgspec.structs.replace(
        served.execution.model.pooling, include_prompt=name != "unpooled"
    )
    return with_model(served, pooling=pooling, **EMBEDDERS[name])
