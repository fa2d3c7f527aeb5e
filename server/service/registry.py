"""The models of this daemon and their engines, found by the name in a request."""

import time
from pathlib import Path
from typing import Literal, Self

from engine_core.client.engine_client import EngineClient
from engine_core.client.pending_jobs import EngineError
from engine_core.tokenization.tokenizer import Tokenizer
from server.errors import APIError
from server.service.token_bytes import TokenBytes
from server.service.token_text import TokenText
from server.settings.server_config import ServedModel
from server.templates.renderer import ChatRenderer

Endpoint = Literal[
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/embed_sparse",
    "/tokenize",
    "/detokenize",
]


class Model:
    """One served model: what it was started with, its tokenizer, its engine."""

    def __init__(self, served: ServedModel, tokenizer: Tokenizer, client: EngineClient) -> None:
        self.served = served
        self.name = served.name
        self.names = (served.name, *served.aliases)
        self.vocab_size = served.engine.model.vocab_size
        self.max_model_len = served.engine.max_model_len
        self.tokenizer = tokenizer
        self.token_bytes = TokenBytes(tokenizer)
        self.token_text = TokenText(self.token_bytes)
        self.client = client
        self.chat = ChatRenderer(served.name, Path(served.path))
        self.endpoints = _endpoints(served)

    def check_loaded(self) -> None:
        """Raises APIError until the engine can take a request for the first time."""
        if self.client.info is None:
            raise APIError("not_ready", f"model {self.name} is still loading")

    def check_alive(self) -> None:
        """Raises APIError if the engine has died. The supervisor kills one that stands still."""
        if self.client.dead:
            raise APIError("unhealthy", f"the engine of model {self.name} has stopped")


class Registry:
    """The models by name, in the order in which the daemon was given them."""

    def __init__(self, models: list[Model]) -> None:
        self.models = models
        self.created = int(time.time())
        self._by_name = {name: model for model in models for name in model.names}

    @classmethod
    def load(cls, served: tuple[ServedModel, ...]) -> Self:
        """Read every tokenizer. Raises TokenizerError, naming the file that is missing."""
        return cls(
            [
                Model(
                    model,
                    Tokenizer.for_model(model.engine.model, model.engine.load_format),
                    EngineClient(model.engine.client_endpoint),
                )
                for model in served
            ]
        )

    async def start(self) -> None:
        """Connect to every engine, which need not be up yet; compile the chat templates."""
        for model in self.models:
            await model.client.start()
            model.chat.start()

    async def close(self) -> None:
        """Leave every engine; what still runs fails as `draining`."""
        for model in self.models:
            model.client.close()
            await model.chat.close()

    def abort_all(self, error: EngineError) -> None:
        """End everything that runs, with `error`."""
        for model in self.models:
            model.client.abort_all(error)

    def find(self, name: str | None, endpoint: Endpoint) -> Model:
        """The model that a request means.

        Raises APIError: unknown name, a model that does not serve the endpoint, no name where
        several serve it.
        """
        model = self._only(endpoint) if name is None else self.named(name)
        if endpoint not in model.endpoints:
            raise APIError(
                "wrong_endpoint",
                f"model {model.name} serves {', '.join(model.endpoints)}, not {endpoint}",
                "model",
            )
        return model

    def named(self, name: str) -> Model:
        """The model of that name, whatever its state. Raises APIError for an unknown one."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(self._by_name)
            raise APIError("model_not_found", f"there is no model {name!r} here ({known})", "model")
        return model

    def _only(self, endpoint: Endpoint) -> Model:
        able = [model for model in self.models if endpoint in model.endpoints]
        if len(able) == 1:
            return able[0]
        if not able:
            raise APIError("wrong_endpoint", f"no model of this daemon serves {endpoint}", "model")
        names = ", ".join(model.name for model in able)
        raise APIError("model_required", f"name one of the models: {names}", "model")


def _endpoints(served: ServedModel) -> tuple[Endpoint, ...]:
    tokens: tuple[Endpoint, ...] = ("/tokenize", "/detokenize")
    engine = served.engine
    if engine.task == "generate":
        return ("/v1/completions", "/v1/chat/completions", *tokens)
    if engine.task == "embed":
        return ("/v1/embeddings", "/v1/rerank", "/v1/score", *tokens)
    if engine.task == "embed_sparse":
        return ("/embed_sparse", *tokens)
    # Only a single label is a relevance.
    relevance = ("/v1/rerank", "/v1/score") if engine.model.num_labels == 1 else ()
    return (*relevance, "/v1/classify", *tokens)
