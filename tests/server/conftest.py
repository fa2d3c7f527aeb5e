"""A real API process before fake engines: one deployment for all tests that leave it as it was."""

import json
import socket
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine_core.tokenization.tokenizer import Tokenizer
from server import cli
from server.settings.settings import ServedModel, ServerConfig
from tests.patience import PATIENCE
from tests.server.api_server import ApiServer
from tests.server.fake_engine import FakeEngine, Script
from tests.server.support import ANY_PRIORITY, served_model, server_config, write_tokenizer
from workers.contract.config import Task


@dataclass
class Deployment:
    """A running API process (`api`), its engines by model name, an HTTP client."""

    api: ApiServer
    engines: dict[str, FakeEngine]
    http: httpx.Client

    def post(self, path: str, body: object) -> httpx.Response:
        """POST `body` as JSON."""
        return self.http.post(path, json=body)

    def connect(self) -> socket.socket:
        """A connection on which nothing has been sent."""
        return socket.create_connection(("127.0.0.1", self.api.port), timeout=PATIENCE)

    def begin(self, path: str, body: bytes, *, unsent: int = 0, more: str = "") -> socket.socket:
        """A connection with a POST of which so many bytes lack. `more` are headers."""
        client = self.connect()
        size = len(body) + unsent
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{more}Content-Length: {size}\r\n\r\n"
        client.sendall(head.encode() + body)
        return client

    def ask(self, path: str, /, **fields: Any) -> Any:
        """The JSON of a 200."""
        return self._answer(200, path, fields).json()

    def refusal(self, path: str, /, **fields: Any) -> dict[str, Any]:
        """The error of a 400."""
        return self._answer(400, path, fields).json()["error"]

    def choices(self, path: str, /, **fields: Any) -> list[dict[str, Any]]:
        """The choices of an answer, or of a stream, put together from its chunks."""
        response = self._answer(200, path, fields)
        if not fields.get("stream"):
            return response.json()["choices"]
        whole: dict[int, dict[str, Any]] = {}
        for chunk in events_in(response):
            for piece in chunk["choices"]:
                whole[piece["index"]] = joined(whole.get(piece["index"], {}), piece)
        return [whole[index] for index in sorted(whole)]

    def _answer(self, status: int, path: str, fields: dict[str, Any]) -> httpx.Response:
        response = self.post(path, fields)
        assert response.status_code == status, response.text
        return response

    def job(self, model: str) -> Any:
        """The one job that an engine has got."""
        (job,) = self.engines[model].received
        return job

    def reset(self, **script: Any) -> None:
        """No engine has got anything yet. All answer by `script`."""
        for engine in self.engines.values():
            engine.script = Script(**script)
            engine.received.clear()
            engine.aborted.clear()
            engine.ended_rows.clear()


def events_in(stream: httpx.Response) -> list[dict[str, Any]]:
    """The JSON of each event of a whole stream, which ends with [DONE]."""
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, done, rest = stream.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def joined(first: Any, second: Any) -> Any:
    """Texts and lists one behind the other, objects field by field; of anything else the later."""
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: joined(first.get(key), second.get(key)) for key in first | second}
    if second is None:
        return first
    return first + second if isinstance(first, str | list) else second


Ended = Callable[..., str]
Refused = Callable[..., str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Call it with the arguments of a command: the one line in which that is refused."""

    def message(*arguments: object) -> str:
        assert cli.main([*map(str, arguments)]) == 1
        said = capsys.readouterr()
        line, end = said.err.split("\n")
        prefix, _, message = line.partition("penstock: error: ")
        assert (prefix, said.out, end) == ("", "", "")
        return message

    return message


@pytest.fixture
def ended(capsys: pytest.CaptureFixture[str]) -> Ended:
    """What a command says that exits with such a status."""

    def said(status: int, *arguments: str) -> str:
        with pytest.raises(SystemExit) as exit_info:
            cli.main(arguments)
        assert exit_info.value.code == status
        return "".join(capsys.readouterr())

    return said


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """Holds tokenizer.json; short enough a path for sockets."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        write_tokenizer(Path(name))
        yield Path(name)


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


class DeploymentBuilder(ExitStack):
    """Opens deployments in one folder; leaving it, or `close`, ends them."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._folder = folder
        self._tokenizer = tokenizer

    def model(self, name: str, task: Task, labels: tuple[str, ...] = ("relevant",)) -> ServedModel:
        """A model of this deployment; a classifier has `labels`."""
        endpoint = f"ipc://{self._folder}/{name}"
        size = self._tokenizer.raw.get_vocab_size()
        return served_model(name, task, self._folder, endpoint, vocab_size=size, labels=labels)

    def models(self) -> list[ServedModel]:
        """A generator, an embedder and a reranker."""
        tasks: dict[str, Task] = {"writer": "generate", "embedder": "embed", "ranker": "classify"}
        return [self.model(name, task) for name, task in tasks.items()]

    def open(self, config: ServerConfig, *, ready: bool = True) -> Deployment:
        """Start the engines of `config`, then the API process."""
        engines = {
            model.name: self.enter_context(
                FakeEngine(
                    model.engine.client_endpoint,
                    self._tokenizer,
                    task=model.execution.task,
                    labels=model.execution.model.num_labels,
                    script=Script(ready=ready),
                )
            )
            for model in config.models
        }
        api = self.enter_context(ApiServer(config, self._folder))
        if ready:
            api.wait_ready()
        http = self.enter_context(httpx.Client(base_url=api.url, timeout=PATIENCE))
        return Deployment(api, engines, http)


def in_its_folder(tokenizer: Tokenizer) -> Generator[DeploymentBuilder]:
    """One with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        write_tokenizer(Path(name))
        with DeploymentBuilder(Path(name), tokenizer) as builder:
            yield builder


own_builder = contextmanager(in_its_folder)
builder = pytest.fixture(in_its_folder)
module_builder = pytest.fixture(in_its_folder, scope="module")
"""For a deployment of all tests of a module."""


@pytest.fixture(scope="session")
def shared_deployment(folder: Path, tokenizer: Tokenizer) -> Iterator[Deployment]:
    with DeploymentBuilder(folder, tokenizer) as builder:
        yield builder.open(server_config(*builder.models(), limits=ANY_PRIORITY))


@pytest.fixture
def deployment(shared_deployment: Deployment) -> Iterator[Deployment]:
    """A generator, an embedder and a reranker; a test may change what the engines say."""
    shared_deployment.reset()
    yield shared_deployment
    shared_deployment.reset()


@pytest.fixture
def say(deployment: Deployment, tokenizer: Tokenizer):
    """Make the generator say a text, then end it."""

    def set_text(text: str, *, end: bool = True) -> list[int]:
        ids = tokenizer.raw.encode(text, add_special_tokens=False).ids
        deployment.engines["writer"].script.tokens = [*ids, 1] if end else ids
        return ids

    return set_text
