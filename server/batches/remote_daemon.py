"""A daemon that runs elsewhere, over HTTP."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from server.batches.base import Put, all_of
from server.batches.posting import MAX_ANSWER_BYTES, Reply, in_one_line, post, too_long
from server.batches.requests import generated
from server.batches.results import GenerateResult, JobStoppedError, RequestError, Sharing
from server.bench.load.http_client import Address, AnswerTooLongError, HTTPClient
from server.bench.results.measurement import BenchError
from server.schemas.completions import Completion, CompletionRequest

_AT_ONCE = 64
"""Requests in flight."""


class Daemon:
    """Gets ordinary requests, in the order of their prompts: its prefix cache then shares the whole
    blocks of what they begin with."""

    sharing: Sharing = "by whole blocks"

    def __init__(self, client: HTTPClient, model: str | None) -> None:
        """`model` may be None where the daemon has only one of that kind."""
        self._client, self._model = client, model

    async def complete(self, requests: Mapping[int, CompletionRequest], put: Put) -> None:
        """As `Backend` says."""

        async def one(index: int) -> None:
            put(index, await self._generated(requests[index]))

        order = sorted(requests, key=lambda index: _prompt_order(requests[index]))
        await all_of([partial(one, index) for index in order], _AT_ONCE)

    async def post(self, path: str, body: Mapping[str, object]) -> bytes:
        """As `Backend` says."""
        named = body if self._model is None else {**body, "model": self._model}
        return await post(self.exchange, path, named)

    async def _generated(self, request: CompletionRequest) -> GenerateResult:
        fields = msgspec.structs.asdict(request)
        given = {
            name: value
            for name, value in fields.items()
            if value is not None and value is not msgspec.UNSET
        }
        try:
            body = await self.post("/v1/completions", given)
        except RequestError as error:
            return error
        answer = msgspec.json.decode(body, type=Completion)
        if not isinstance(answer.usage, msgspec.Struct):
            raise JobStoppedError("the server's answer has no usage: it is no penstock")
        return generated(answer.choices, answer.usage)

    async def exchange(self, path: str, data: bytes) -> Reply:
        """As `posting.Exchange` says. Raises JobStoppedError if there is no answer."""
        address = self._client.address
        try:
            answer = await self._client.exchange(address.request("POST", path, msgspec.Raw(data)))
        except AnswerTooLongError as error:
            return too_long(error.size, error.request_id)
        except OSError as error:
            where = f"http://{address.host}:{address.port}"
            raise JobStoppedError(f"{where} does not answer: {error!r}") from None
        return in_one_line(Reply(answer.status, answer.body, answer.retry_after, answer.request_id))


def _prompt_order(request: CompletionRequest) -> tuple[str, list[str | int | list[int]]]:
    """Texts by their characters, token ids by their numbers."""
    return (request.prompt, []) if isinstance(request.prompt, str) else ("", request.prompt)


@asynccontextmanager
async def running_daemon(
    url: str, model: str | None, api_key: str | None
) -> AsyncGenerator[Daemon]:
    """The daemon at `url`. Raises ValueError for what is no address."""
    try:
        client = HTTPClient(Address.of(url, api_key), MAX_ANSWER_BYTES)
    except BenchError as error:
        raise ValueError(f"url: {error}") from None
    try:
        yield Daemon(client, model)
    finally:
        client.close()
