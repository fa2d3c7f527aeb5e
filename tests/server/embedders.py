"""Embedders that declare what a test needs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from engine_core.tokenization.tokenizer import Tokenizer
from tests.server.conftest import Deployment, DeploymentBuilder
from tests.server.support import ANY_PRIORITY, server_config
from workers.contract.model_config import EmbeddingConfig


@contextmanager
def embedder_deployment(
    folder: Path, tokenizer: Tokenizer, declared: Mapping[str, EmbeddingConfig]
) -> Iterator[Deployment]:
    """One a declaration, by name, of 8 numbers a vector and 2,048 tokens a text. Those whose name
    ends with "unpooled" leave their prompt out of the vector."""
    builder = DeploymentBuilder(folder, tokenizer)
    models = []
    for name, embedding in declared.items():
        served = builder.model(name, "embed")
        pooling = msgspec.structs.replace(
            served.execution.model.pooling, include_prompt=not name.endswith("unpooled")
        )
        model = msgspec.structs.replace(
            served.execution.model, embedding=embedding, pooling=pooling
        )
        execution = msgspec.structs.replace(served.execution, model=model)
        engine = msgspec.structs.replace(served.engine, execution=execution)
        models.append(msgspec.structs.replace(served, engine=engine))
    yield builder.open(server_config(*models, limits=ANY_PRIORITY))
    builder.close()
