"""The models of this daemon and their engines, found by the name in a request."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from engine_core.client.engine_client import EngineClient
from engine_core.refusal import RefusalError
from engine_core.tokenization.tokenizer import Tokenizer
from server import __version__
from server.errors import quoted
from server.models.text_bound import TextBound
from server.service.endpoint import Endpoint
from server.service.token_text import TokenText
from server.settings.server_config import ServedModel
from server.templates.template_client import TemplateClient
from workers.contract.config import ExecutionConfig, Task
from workers.contract.reranking import UNKNOWN_TEMPLATE

_DIGITS = 10


def system_fingerprint(execution: ExecutionConfig) -> str:
    """The same for the same release, model, devices and settings; not of one start alone."""
    lasting = msgspec.structs.replace(
        execution,
        worker_endpoint="",
        token_endpoint="",
        rendezvous="",
        # What is free when the daemon starts.
        kv_cache_bytes=0,
        memory_shares=(),
        # What changes no text.
        log_level="",
        setting_names={},
    )
    text = __version__.encode() + msgspec.json.encode(lasting, order="sorted")
    return f"fp_{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


class Model:
    """One served model: its configuration, its tokenizer, its engine."""

    def __init__(self, served: ServedModel, tokenizer: Tokenizer, client: EngineClient) -> None:
        self.served = served
        self.name = served.name
        self.names = (served.name, *served.aliases)
        self.vocab_size = served.execution.model.vocab_size
        self.max_model_len = served.execution.max_model_len
        self.fingerprint = system_fingerprint(served.execution)
        self.text_only = served.execution.model.wrapper is not None
        self.tokenizer = tokenizer
        self.text_bound = TextBound(tokenizer, self.max_model_len)
        self.token_bytes = tokenizer.token_bytes
        self.token_text = TokenText(self.token_bytes)
        self.client = client
        self.chat = TemplateClient(served.name, Path(served.path))

    def check_loaded(self) -> None:
        """Raises RefusalError until the engine can take a request for the first time."""
        if self.client.info is None:
            raise RefusalError("not_ready", f"model {self.name} is still loading")

    def check_alive(self) -> None:
        """Raises RefusalError if the engine has died. The supervisor kills one that hangs."""
        if self.client.dead:
            raise RefusalError("unhealthy", f"the engine of model {self.name} has stopped")


class Registry:
    """The models by name, in the order in which the daemon was given them."""

    def __init__(self, models: list[Model], endpoints: Sequence[Endpoint]) -> None:
        self.models = models
        self.endpoints = endpoints
        self.created = int(time.time())
        self._by_name = {name: model for model in models for name in model.names}

    @classmethod
    def load(cls, served: Sequence[ServedModel], endpoints: Sequence[Endpoint]) -> Self:
        """Read every tokenizer. Raises TokenizerError, naming the file that is missing."""
        return cls(
            [
                Model(
                    model,
                    Tokenizer.for_model(model.execution.model, model.execution.load_format),
                    EngineClient(model.engine.client_endpoint),
                )
                for model in served
            ],
            endpoints,
        )

    async def start(self) -> None:
        """Connect to every engine, which need not be up yet; compile the chat templates."""
        for model in self.models:
            await model.client.start()
            model.chat.start()

    async def close(self) -> None:
        """Leave every engine; running jobs fail as `draining`."""
        for model in self.models:
            model.client.close()
            await model.chat.close()

    def abort_all(self, error: RefusalError) -> None:
        """End every running job with `error`."""
        for model in self.models:
            model.client.abort_all(error)

    def find(self, name: str | None, endpoint: Endpoint) -> Model:
        """The model that a request means.

        Raises RefusalError: unknown name, a model that does not serve the endpoint, no name where
        several serve it.
        """
        model = self._only(endpoint) if name is None else self.named(name)
        if not endpoint.is_served_by(model.served.execution):
            served = ", ".join(self.paths_of(model))
            reason = f"model {model.name} serves {served}, not {endpoint.path}"
            if endpoint.relevance and not model.served.execution.model.reads_pairs:
                reason += f": {UNKNOWN_TEMPLATE}"
            raise RefusalError("wrong_endpoint", reason, "model")
        return model

    def paths_of(self, model: Model) -> list[str]:
        """The endpoints that `model` serves, without their variants."""
        return [
            endpoint.path
            for endpoint in self.endpoints
            if endpoint.variant_of is None and endpoint.is_served_by(model.served.execution)
        ]

    def has_task(self, task: Task) -> bool:
        """Whether some model does this."""
        return any(model.served.execution.task == task for model in self.models)

    def named(self, name: str) -> Model:
        """The model of that name, whatever its state. Raises RefusalError for an unknown one."""
        model = self._by_name.get(name)
        if model is None:
            known = ", ".join(self._by_name)
            message = f"there is no model {quoted(name)} here ({known})"
            raise RefusalError("model_not_found", message, "model")
        return model

    def _only(self, endpoint: Endpoint) -> Model:
        able = [model for model in self.models if endpoint.is_served_by(model.served.execution)]
        if len(able) == 1:
            return able[0]
        if not able:
            raise RefusalError(
                "wrong_endpoint", f"no model of this daemon serves {endpoint.path}", "model"
            )
        names = ", ".join(model.name for model in able)
        raise RefusalError("model_required", f"name one of the models: {names}", "model")
