"""Jobs of many requests from Python, on an engine of one's own or a running daemon."""

import argparse
import asyncio
import base64
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from operator import attrgetter
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import uvloop
from msgspec import UNSET

from engine_core.refusal import RefusalError
from server.batches.answering import NOT_OURS, Answer, Backend, Line, error_of
from server.batches.daemon_backend import daemon_backend
from server.batches.engine_backend import engine_backend
from server.batches.progress import Progress
from server.batches.results import Generated, GenerateResult, JobStoppedError, RequestError, Summary
from server.daemon.run import running_engine
from server.http.body import Body
from server.models.model_setup import EngineOptions
from server.models.model_source import model_folder
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest, RerankResult
from server.settings.setting_types import parse_size
from server.settings.settings import EngineSettings, ServerConfig

Prompt = str | Sequence[int]
"""A text, or its token ids."""
Options = Mapping[str, object]
"""Fields of a request by their names in the HTTP API."""

_COMPLETIONS, _EMBEDDINGS, _RERANK = "/v1/completions", "/v1/embeddings", "/v1/rerank"
_NO_OPTIONS = {
    *("model", "prompt", "return_token_ids", "input", "query", "documents"),
    *("encoding_format", "embed_dtype", "output_dtype"),
    *("stream", "stream_options", "timeout", "priority", "session_id", "user"),
}
_OPTIONS = {
    url: frozenset(struct.__struct_fields__) - _NO_OPTIONS
    for url, struct in (
        (_COMPLETIONS, CompletionRequest),
        (_EMBEDDINGS, EmbeddingRequest),
        (_RERANK, RerankRequest),
    )
}
_OF_ALL = frozenset({NOT_OURS, "not_found", "model_not_found", "model_required", "wrong_endpoint"})
_body = Body(CompletionRequest)
_NONE: Options = {}
_TEXTS_A_LINE = 64
_KEYS = (*EngineSettings.__struct_fields__, "memory_share", "rerank")
_SIZE = "kv_cache_memory"

FloatArray = npt.NDArray[np.float32]
ResultT = TypeVar("ResultT")


class Job(ABC, Generic[ResultT]):
    """`count` requests, each of which gets one result or one error."""

    def __init__(self, title: str, count: int) -> None:
        self._title = title
        self.results: list[ResultT | RequestError | None] = [None] * count
        self.summary = Summary(requests=count)

    @abstractmethod
    def rounds(self) -> Iterator[Iterable[Line]]:
        """The lines, round by round. A round may depend on the answers to the one before."""

    @abstractmethod
    def read(self, line: Line, body: bytes) -> None:
        """Put the result in a good answer. Raises JobStoppedError where no other would get one."""

    def refuse(self, line: Line, error: RequestError) -> None:
        """Put why a line was refused."""
        self.put(line.index, error)

    def take(self, line: Line, answer: Answer) -> None:
        """As `base.Put` says."""
        if answer.is_good:
            self.summary.add_usage(answer.body)
            self.read(line, answer.body)
        else:
            self.refuse(line, refusal(answer))

    def put(self, index: int, result: ResultT | RequestError) -> None:
        """The result of a request, given its number."""
        self.results[index] = result
        self.summary.count(failed=isinstance(result, RequestError))

    async def run(self, backend: Backend, *, shown: bool) -> list[ResultT | RequestError]:
        """Get all results, in order. If it is `shown`, a line on standard error tells the progress.

        Raises JobStoppedError, with the results so far.
        """
        summary, started = self.summary, time.perf_counter()
        summary.sharing = backend.sharing
        progress = Progress(self._title, "requests", summary.requests, lambda: summary.done)
        async with progress.shown() if shown else nullcontext():
            try:
                for lines in self.rounds():
                    await backend.answer(lines, self.take)
            except JobStoppedError as error:
                raise JobStoppedError(str(error), self.results) from None
        summary.seconds = time.perf_counter() - started
        done = [result for result in self.results if result is not None]
        assert len(done) == summary.requests, "every request has been answered"
        return done


class Completions(Job[Generated]):
    """A completion for each prompt. One that is no request has its error at once."""

    def __init__(
        self,
        named: Options,
        prompts: Sequence[Prompt],
        sampling: Options | Sequence[Options],
        common: Options,
    ) -> None:
        """Make a line of each prompt, with the fields `named`, and those of `common` and
        `sampling`, which may be one for all prompts, or one for each.

        Raises ValueError for options that are wrong for all, before any work.
        """
        super().__init__("generate", len(prompts))
        if isinstance(sampling, Mapping):
            of_all, each = {**common, **sampling}, [_NONE] * len(prompts)
        else:
            of_all, each = common, sampling
        check_options(_COMPLETIONS, of_all)
        if len(each) != len(prompts):
            given, wanted = len(each), len(prompts)
            raise ValueError(f"sampling: {given} for {wanted} prompts; give one, or one each")
        self.lines: list[Line] = []
        for index, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
            options = {**of_all, **own}
            try:
                if own:  # those of all have been checked
                    _check(_COMPLETIONS, options)
                fields = {**named, "prompt": plain("prompt", prompt), **options}
                fields["return_token_ids"] = True
                self.lines.append(line_of(index, _COMPLETIONS, fields))
            except RequestError as error:
                self.put(index, error)

    def rounds(self) -> Iterator[Iterable[Line]]:
        # Bodies begin with the prompts: those that begin alike follow each other.
        yield sorted(self.lines, key=attrgetter("body"))

    def read(self, line: Line, body: bytes) -> None:
        completion = msgspec.json.decode(body, type=Completion)
        if not isinstance(completion.usage, msgspec.Struct):
            raise JobStoppedError("the server's answer has no usage: it is no penstock")
        replace = msgspec.structs.replace
        choices = [replace(choice, prompt_token_ids=UNSET) for choice in completion.choices]
        self.put(line.index, Generated(choices=choices, usage=completion.usage))


class Embeddings(Job[FloatArray]):
    """A vector for each text, float32[D]. Neighbouring texts share a line. Where that is refused,
    each of its texts gets a line of its own."""

    def __init__(self, named: Options, texts: Sequence[Prompt], options: Options) -> None:
        """Raises ValueError."""
        super().__init__("embed", len(texts))
        self._texts = texts
        self._fields = {**named, **check_options(_EMBEDDINGS, options), "encoding_format": "base64"}
        self._numbers: list[list[int]] = []
        self._alone: list[int] = []

    def rounds(self) -> Iterator[Iterable[Line]]:
        yield self._lines(self._neighbours())
        yield self._lines([number] for number in self._alone)

    def read(self, line: Line, body: bytes) -> None:
        vectors = msgspec.json.decode(body, type=EmbeddingList).data
        for number, entry in zip(self._numbers[line.index], vectors, strict=True):
            vector = base64.b64decode(msgspec.json.decode(entry.embedding, type=str))
            self.put(number, np.frombuffer(vector, np.float32))

    def refuse(self, line: Line, error: RequestError) -> None:
        part = self._numbers[line.index]
        if len(part) == 1:
            self.put(part[0], error)
        else:
            self._alone += part

    def _lines(self, parts: Iterable[list[int]]) -> Iterator[Line]:
        for part in parts:
            self._numbers.append(part)
            items = [plain("input", self._texts[number]) for number in part]
            yield line_of(len(self._numbers) - 1, _EMBEDDINGS, {**self._fields, "input": items})

    def _neighbours(self) -> Iterator[list[int]]:
        """Numbers of neighbouring texts, or of neighbouring token ids."""
        part: list[int] = []
        for number, text in enumerate(self._texts):
            try:
                plain("input", text)
            except RequestError as error:
                self.put(number, error)
                continue
            alike = not part or isinstance(text, str) == isinstance(self._texts[part[0]], str)
            if len(part) == _TEXTS_A_LINE or not alike:
                yield part
                part = []
            part.append(number)
        if part:
            yield part


class Rerankings(Job[list[RerankResult]]):
    """A ranking of each query's documents."""

    def __init__(
        self, named: Options, pairs: Sequence[tuple[str, Sequence[str]]], options: Options
    ) -> None:
        """Raises ValueError."""
        super().__init__("rerank", len(pairs))
        self._pairs = pairs
        self._fields = {**named, **check_options(_RERANK, options)}

    def rounds(self) -> Iterator[Iterable[Line]]:
        yield self._lines()

    def read(self, line: Line, body: bytes) -> None:
        self.put(line.index, msgspec.json.decode(body, type=Reranking).results)

    def _lines(self) -> Iterator[Line]:
        for index, (query, documents) in enumerate(self._pairs):
            fields = {**self._fields, "query": query, "documents": list(documents)}
            try:
                yield line_of(index, _RERANK, fields)
            except RequestError as error:
                self.put(index, error)


class BatchLLM:
    """A model for jobs of many requests, until its `with` block ends.

        with BatchLLM("path-or-hub-id") as llm:
            results = llm.generate(prompts, max_tokens=64)
            print(llm.summary)

    Results are in the order of what was asked. A request that is refused stops no other one: it is
    in `errors`, by its number. `errors` and `summary` are those of the last job that ran to its
    end. Use it from one thread; Ctrl-C ends the job, and leaving the block the engine.
    """

    summary: Summary
    errors: Mapping[int, RequestError]

    def __init__(
        self,
        model: str | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        progress: bool = True,
        **settings: object,
    ) -> None:
        """Without `url`, `model` is a folder or a hub id, and `settings` are those of a model in
        `penstock.yaml`; with `url` it is the name of a model of that daemon. With `progress` a line
        on standard error tells how far a job is. Raises ValueError."""
        if url is None and model is None:
            raise ValueError("model: name a folder or a hub id, or the url of a daemon")
        if url is not None and settings:
            raise ValueError(f"{next(iter(settings))}: a daemon at a url has its own settings")
        self._model, self._url, self._api_key = model, url, api_key
        named = url is not None and model is not None
        self._named: Options = {"model": model} if named else {}
        self._options = engine_options(settings)
        self._progress = progress
        self._stack = AsyncExitStack()
        self._loop: LoopThread | None = None
        self._backend: Backend | None = None

    def __enter__(self) -> Self:
        """Wait until the engine is ready.

        Raises one of `server.daemon.daemon.START_ERRORS`; ValueError for a bad `url`.
        """
        loop = LoopThread()
        try:
            self._backend = loop.run(self._stack.enter_async_context(self._opened()))
        except BaseException:
            loop.close()
            raise
        self._loop = loop
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop, self._loop, self._backend = self._loop, None, None
        if loop is not None:
            try:
                loop.run(self._stack.aclose())
            finally:
                loop.close()

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Options | Sequence[Options] = _NONE,
        **options: object,
    ) -> list[GenerateResult]:
        """Continue each prompt, a text or its token ids. `options` are fields of `/v1/completions`
        for all prompts; `sampling` are more of them, or some for each. A prompt that is refused has
        its RequestError for a result.

        Raises ValueError for options that are wrong for all, or without any prompt;
        JobStoppedError if the engine is lost.
        """
        _check_any("prompts", prompts)
        return self._run(Completions(self._named, prompts, sampling, options))

    def embed(self, texts: Sequence[Prompt], **options: object) -> FloatArray:
        """The vector of each text (or of token ids), float32[N, D]; `options` are fields of
        `/v1/embeddings`. One that is refused is NaN, and in `errors`. Raises like `generate`."""
        _check_any("texts", texts)
        vectors = self._run(Embeddings(self._named, texts, options))
        width = max(0 if isinstance(row, RequestError) else len(row) for row in vectors)
        whole = np.full((len(vectors), width), np.nan, np.float32)
        for row, vector in zip(whole, vectors, strict=True):
            if not isinstance(vector, RequestError):
                row[:] = vector
        return whole

    def rerank(self, query: str, documents: Sequence[str], **options: object) -> list[RerankResult]:
        """The documents by their relevance to `query`, the best first; `options` are fields of
        `/v1/rerank`. Raises like `generate`, and RequestError if the query is refused."""
        (ranking,) = self.rerank_each([query], [documents], **options)
        if isinstance(ranking, RequestError):
            raise ranking
        return ranking

    def rerank_each(
        self, queries: Sequence[str], documents: Sequence[Sequence[str]], **options: object
    ) -> list[list[RerankResult] | RequestError]:
        """The same for many queries, each with documents of its own. A query that is refused has
        its RequestError for a result. Raises like `generate`."""
        _check_any("queries", queries)
        if len(queries) != len(documents):
            raise ValueError(f"documents: {len(documents)} lists for {len(queries)} queries")
        pairs = list(zip(queries, documents, strict=True))
        return self._run(Rerankings(self._named, pairs, options))

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Backend]:
        if self._url is not None:
            async with daemon_backend(self._url, self._api_key) as daemon:
                yield daemon
            return
        folder = model_folder(str(self._model), self._options.load_format)
        async with running_engine(folder, self._options) as engine:
            config = ServerConfig(models=(engine.model,))
            async with engine_backend(config) as own:
                yield own

    def _run(self, job: Job[ResultT]) -> list[ResultT | RequestError]:
        if self._loop is None or self._backend is None:
            raise RuntimeError("BatchLLM works inside its block: with BatchLLM(...) as llm")
        results = self._loop.run(job.run(self._backend, shown=self._progress))
        self.summary = job.summary
        self.errors = {i: each for i, each in enumerate(results) if isinstance(each, RequestError)}
        return results


def _check_any(name: str, given: Sequence[object]) -> None:
    """Raises ValueError for an empty job, and for one text in place of many."""
    if isinstance(given, str):
        raise ValueError(f"{name}: a list, not one text")
    if not len(given):
        raise ValueError(f"{name}: is empty")


def check_options(url: str, options: Options) -> Options:
    """The options of a job for `url`. Raises ValueError for one that is unknown or no JSON, and for
    a wrong one of completions."""
    try:
        _check(url, options)
    except RequestError as error:
        raise ValueError(error.message) from None
    return options


def _check(url: str, options: Options) -> None:
    """Raises RequestError as `check_options` raises ValueError. The prompt, which may be long, is
    checked by whoever answers."""
    known = _OPTIONS[url]
    if unknown := sorted(options.keys() - known):
        names = ", ".join(sorted(known))
        message = f"{unknown[0]}: there is no such option here; there are {names}"
        raise RequestError("invalid_request", message, unknown[0])
    line = line_of(0, url, {**options, "prompt": ""})
    if url == _COMPLETIONS:
        try:
            _body.decode(line.body, strictly=True)
        except RefusalError as error:
            raise RequestError(error.code, error.message, error.param) from None


def line_of(index: int, url: str, fields: Options) -> Line:
    """A line with this body. Raises RequestError for what is no JSON."""
    try:
        return Line(index, "", url, json.dumps(fields, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise RequestError("invalid_request", str(error)) from None


def plain(field: str, prompt: Prompt) -> str | list[int]:
    """A text, or token ids, which may come in an array, as Python's numbers. Raises
    RequestError."""
    if isinstance(prompt, str):
        return prompt
    try:
        ids = prompt.tolist() if isinstance(prompt, np.ndarray) else [*prompt]
        return msgspec.convert(ids, list[int])
    except (TypeError, msgspec.ValidationError):
        message = f"{field}: a text or token ids; conversations are rendered before"
        raise RequestError("invalid_request", message, field) from None


def refusal(answer: Answer) -> RequestError:
    """The error in an answer that is not good. Raises JobStoppedError for what every other request
    for this model would get, too."""
    error = error_of(answer)
    if error.code in _OF_ALL:
        raise JobStoppedError(f"{error.message} ({error.code})")
    return RequestError(error.code, error.message, error.param)


def engine_options(settings: Mapping[str, object]) -> EngineOptions:
    """Raises ValueError, naming the setting."""
    for key in settings:
        if key not in _KEYS:
            raise ValueError(f"{key}: there is no such setting; there are {', '.join(_KEYS)}")
    given = dict(settings)
    names = {key: key for key in (*_KEYS, "stall_timeout")}
    try:
        if isinstance(size := given.get(_SIZE), str):
            given[_SIZE] = parse_size(size)
        return msgspec.convert(
            {"log_level": "warning", "setting_names": names, **given}, EngineOptions
        )
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{_SIZE}: {error}") from None
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        raise ValueError(f"{where.rstrip('`')}: {reason}") from None


class LoopThread:
    """Runs coroutines for threads that wait for them. Child processes that a coroutine starts end
    with the thread: it lives until `close`."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="batch-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Wait for its result. Ctrl-C cancels it, waits for its end, and is raised again."""
        ended = threading.Event()
        tasks: list[asyncio.Task[ResultT]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # Ctrl-C came before it could begin
                work.close()
                ended.set()

        try:
            self._loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

    def close(self) -> None:
        """End the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
