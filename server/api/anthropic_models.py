"""The models of `/v1/models` in Anthropic's shape, for clients that name its API's version."""

from datetime import UTC, datetime
from typing import Literal

import msgspec

from server.service.service import Model, Registry


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model, for clients that send `anthropic-version`."""

    type: Literal["model"] = "model"
    """Always `model`."""
    id: str
    display_name: str
    """A name of the model."""
    created_at: datetime
    """When the daemon started."""
    max_input_tokens: int
    max_tokens: int
    """Tokens that the model takes at most, prompt and answer together."""
    lifecycle: Literal["active"] = "active"
    """Always `active`."""


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """The models of this daemon, for clients that send `anthropic-version`."""

    data: list[ModelInfo]
    """All models, each under all its names."""
    first_id: str | None
    last_id: str | None
    """Names of the first and the last of them."""
    has_more: Literal[False] = False
    """Always false: there is one page."""


def model_info(registry: Registry, model: Model, name: str) -> ModelInfo:
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(registry.created, UTC),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
    )


def model_page(registry: Registry) -> ModelPage:
    data = [model_info(registry, model, name) for model in registry.models for name in model.names]
    return ModelPage(data=data, first_id=data[0].id, last_id=data[-1].id)
