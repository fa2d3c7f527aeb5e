"""Jobs of many requests from Python, on an own engine or a running daemon."""

import argparse
import asyncio
import base64
import json
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from itertools import groupby, islice
from operator import attrgetter
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
from server.batches.progress import progress_shown
from server.batches.results import Generated, GenerateResult, JobStoppedError, RequestError, Summary
from server.daemon.run import running_engine
from server.errors import fault_of
from server.http.body import Body
from server.models.model_setup import EngineOptions
from server.models.model_source import model_folder
from server.schemas.common import invalid
from server.schemas.completions import Completion, CompletionRequest, PromptObject
from server.schemas.decisions import Decision, DecisionAnswer, DecisionRequest
from server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest, RerankResult
from server.settings.setting_types import parse_size
from server.settings.settings import EngineSettings, ServerConfig

PromptFields = Mapping[str, object]
"""A prompt as an object: its text as `prompt`, or its ids as `prompt_token_ids`."""
Prompt = str | Sequence[int]
"""A text, or its token ids."""
Options = Mapping[str, object]
"""Fields of a request, or of an object in it, by their names in the HTTP API."""
Input = str | Sequence[Options]
"""A text that questions are about, or messages and tool calls."""

_COMPLETIONS, _EMBEDDINGS = "/v1/completions", "/v1/embeddings"
_RERANK, _DECISIONS = "/v1/rerank", "/v1/decisions"
_NO_OPTIONS = {
    *("model", "prompt", "return_token_ids", "input", "query", "documents"),
    "questions",
    *("encoding_format", "embed_dtype", "output_dtype"),
    *("stream", "stream_options", "timeout", "priority", "session_id", "user"),
}
_OPTIONS = {
    url: frozenset(struct.__struct_fields__) - _NO_OPTIONS
    for url, struct in (
        (_COMPLETIONS, CompletionRequest),
        (_EMBEDDINGS, EmbeddingRequest),
        (_RERANK, RerankRequest),
        (_DECISIONS, DecisionRequest),
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
EntryT = TypeVar("EntryT")


class Job(ABC, Generic[ResultT]):
    """`count` requests. Each gets one result or one error."""

    def __init__(self, title: str, count: int) -> None:
        self._title = title
        self.results: list[ResultT | RequestError | None] = [None] * count
        self.summary = Summary(requests=count)

    @abstractmethod
    def rounds(self) -> Iterator[Iterable[Line]]:
        """The lines by rounds. A round may depend on the answers to the one before."""

    @abstractmethod
    def read(self, line: Line, body: bytes) -> None:
        """Put the result of a good answer. Raises JobStoppedError if no line can get one."""

    def refuse(self, line: Line, error: RequestError) -> None:
        self.put(line.index, error)

    def take(self, line: Line, answer: Answer) -> None:
        """Take an answer (an `answering.Put`)."""
        if answer.is_good:
            self.summary.add_usage(answer.body)
            self.read(line, answer.body)
        else:
            self.refuse(line, refusal(answer))

    def put(self, index: int, result: ResultT | RequestError) -> None:
        self.results[index] = result
        self.summary.count(failed=isinstance(result, RequestError))

    async def run(self, backend: Backend, *, shown: bool) -> list[ResultT | RequestError]:
        """Get all results in order. Raises JobStoppedError, with the results so far."""
        summary, started = self.summary, time.perf_counter()
        summary.sharing = backend.sharing
        total = summary.requests
        progress = progress_shown(self._title, "requests", total, lambda: summary.done)
        async with progress if shown else nullcontext():
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
    """A completion for each prompt. A prompt that makes no request has its error at once."""

    def __init__(
        self,
        named: Options,
        prompts: Sequence[Prompt | PromptFields],
        sampling: Options | Sequence[Options],
        common: Options,
    ) -> None:
        """Make a line of each prompt. `sampling` is one for all prompts, or one for each.

        Raises ValueError for options that are wrong for all.
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
                if own:  # the common ones have been checked
                    check_options(_COMPLETIONS, options)
                fields = {**named, "prompt": opened("prompt", prompt), **options}
                fields["return_token_ids"] = True
                self.lines.append(line_of(index, _COMPLETIONS, fields))
            except RequestError as error:
                self.put(index, error)

    def rounds(self) -> Iterator[Iterable[Line]]:
        # Bodies begin with the prompts: sorting puts common prefixes together.
        yield sorted(self.lines, key=attrgetter("body"))

    def read(self, line: Line, body: bytes) -> None:
        completion = msgspec.json.decode(body, type=Completion)
        if not isinstance(completion.usage, msgspec.Struct):
            raise JobStoppedError("the server's answer has no usage: it is no penstock")
        replace = msgspec.structs.replace
        choices = [replace(choice, prompt_token_ids=UNSET) for choice in completion.choices]
        self.put(line.index, Generated(choices=choices, usage=completion.usage))


class Embeddings(Job[FloatArray]):
    """A vector for each text, float32[D]. Texts of a shared line that is refused are asked for
    alone."""

    def __init__(self, named: Options, texts: Sequence[Prompt], options: Options) -> None:
        """Raises ValueError."""
        super().__init__("embed", len(texts))
        self._texts = texts
        self._fields = {**named, **check_options(_EMBEDDINGS, options), "encoding_format": "base64"}
        self._numbers: list[list[int]] = []

    def rounds(self) -> Iterator[Iterable[Line]]:
        yield self._lines(_TEXTS_A_LINE)
        yield self._lines(1)

    def read(self, line: Line, body: bytes) -> None:
        vectors = msgspec.json.decode(body, type=EmbeddingList).data
        for number, entry in zip(self._numbers[line.index], vectors, strict=True):
            vector = base64.b64decode(msgspec.json.decode(entry.embedding, type=str))
            self.put(number, np.frombuffer(vector, np.float32))

    def refuse(self, line: Line, error: RequestError) -> None:
        numbers = self._numbers[line.index]
        if len(numbers) == 1:  # the others are left for the next round
            self.put(numbers[0], error)

    def _lines(self, most: int) -> Iterator[Line]:
        """Make lines of up to `most` neighbours without a result, all texts or all token ids."""
        for _, alike in groupby(self._left(), lambda left: isinstance(left[1], str)):
            while chunk := list(islice(alike, most)):
                self._numbers.append([number for number, _ in chunk])
                fields = {**self._fields, "input": [item for _, item in chunk]}
                yield line_of(len(self._numbers) - 1, _EMBEDDINGS, fields)

    def _left(self) -> Iterator[tuple[int, str | list[int]]]:
        for number, text in enumerate(self._texts):
            if self.results[number] is None:
                try:
                    yield number, plain("input", text)
                except RequestError as error:
                    self.put(number, error)


class Lists(Job[list[EntryT]]):
    """A list for each of some requests to one endpoint, each in a line of its own."""

    def __init__(self, title: str, url: str, requests: Sequence[Options], common: Options) -> None:
        """Every line has the `common` fields, too."""
        super().__init__(title, len(requests))
        self._url, self._requests, self._common = url, requests, common

    def rounds(self) -> Iterator[Iterable[Line]]:
        yield self.lines()

    def lines(self) -> Iterator[Line]:
        """Yield the lines. A request that makes none has its error at once."""
        for index, request in enumerate(self._requests):
            try:
                yield line_of(index, self._url, {**self._common, **request})
            except RequestError as error:
                self.put(index, error)


class Rerankings(Lists[RerankResult]):
    """A ranking of each query's documents."""

    def __init__(
        self, named: Options, pairs: Sequence[tuple[str, Sequence[str]]], options: Options
    ) -> None:
        """Raises ValueError."""
        requests = [{"query": query, "documents": list(documents)} for query, documents in pairs]
        common = {**named, **check_options(_RERANK, options)}
        super().__init__("rerank", _RERANK, requests, common)

    def read(self, line: Line, body: bytes) -> None:
        self.put(line.index, msgspec.json.decode(body, type=Reranking).results)


class Decisions(Lists[DecisionAnswer]):
    """The answers to each input's questions."""

    def __init__(
        self, named: Options, pairs: Sequence[tuple[Input, object]], options: Options
    ) -> None:
        """Raises ValueError."""
        requests = [{"input": about, "questions": questions} for about, questions in pairs]
        common = {**named, **check_options(_DECISIONS, options)}
        super().__init__("decide", _DECISIONS, requests, common)

    def rounds(self) -> Iterator[Iterable[Line]]:
        # Bodies differ from the inputs on: sorting puts common prefixes together.
        yield sorted(self.lines(), key=attrgetter("body"))

    def read(self, line: Line, body: bytes) -> None:
        self.put(line.index, msgspec.json.decode(body, type=Decision).answers)


class BatchLLM:
    """A model for jobs of many requests, until its `with` block ends.

        with BatchLLM("path-or-hub-id") as llm:
            results = llm.generate(prompts, max_tokens=64)
            print(llm.summary)

    Results are in the order of the requests. `errors`, by the number of a refused request, and
    `summary` are those of the last job that ran to its end. Use it from one thread. Ctrl-C ends the
    job, leaving the block the engine.
    """

    summary: Summary
    errors: Mapping[int, RequestError]
    _backend: Backend
    """Set by `__enter__`."""

    def __init__(
        self,
        model: str | None = None,
        *,
        url: str | None = None,
        api_key: str | None = None,
        progress: bool = True,
        **settings: object,
    ) -> None:
        """Take a model that is a folder or a hub id, or a daemon.

        The former has `settings` as in `penstock.yaml`, the latter a `url`, and perhaps the name of
        a model there. Raises ValueError."""
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

    def __enter__(self) -> Self:
        """Wait until the engine is ready. Raises one of `server.daemon.daemon.START_ERRORS`, and
        ValueError for a bad `url`."""
        self._loop = LoopThread()
        try:
            self._backend = self._loop.run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None, "entered before"
        try:
            loop.run(self._stack.aclose())
        finally:
            loop.close()

    def generate(
        self,
        prompts: Sequence[Prompt | PromptFields] | PromptFields,
        sampling: Options | Sequence[Options] = _NONE,
        **options: object,
    ) -> list[GenerateResult]:
        """Continue each prompt: a text, its token ids or an object with either, which may be alone.
        A refused one has a RequestError.

        `options` are fields of `/v1/completions`, `sampling` more of them, for all prompts or one
        for each. Raises ValueError for options that are wrong for all, or without prompts, and
        JobStoppedError if the engine is lost.
        """
        prompts = [prompts] if isinstance(prompts, Mapping) else prompts
        _check_any("prompts", prompts)
        return self._run(Completions(self._named, prompts, sampling, options))

    def embed(self, texts: Sequence[Prompt], **options: object) -> FloatArray:
        """The vector of each text (or of token ids), float32[N, D]. `options` are fields of
        `/v1/embeddings`. A refused text is NaN, and in `errors`. Raises like `generate`."""
        _check_any("texts", texts)
        vectors = self._run(Embeddings(self._named, texts, options))
        width = max(0 if isinstance(row, RequestError) else len(row) for row in vectors)
        whole = np.full((len(vectors), width), np.nan, np.float32)
        for row, vector in zip(whole, vectors, strict=True):
            if not isinstance(vector, RequestError):
                row[:] = vector
        return whole

    def rerank(self, query: str, documents: Sequence[str], **options: object) -> list[RerankResult]:
        """The documents by their relevance to `query`, the best first. `options` are fields of
        `/v1/rerank`. Raises like `generate`, and RequestError if the query is refused."""
        return _only(self.rerank_each([query], [documents], **options))

    def rerank_each(
        self, queries: Sequence[str], documents: Sequence[Sequence[str]], **options: object
    ) -> list[list[RerankResult] | RequestError]:
        """Rerank each query's documents. A refused query has an error. Raises like `generate`."""
        _check_any("queries", queries)
        if len(queries) != len(documents):
            raise ValueError(f"documents: {len(documents)} lists for {len(queries)} queries")
        pairs = list(zip(queries, documents, strict=True))
        return self._run(Rerankings(self._named, pairs, options))

    def decide(
        self, input: Input, questions: Sequence[Options], **options: object
    ) -> list[DecisionAnswer]:
        """Answer questions about one input by probabilities, in their order. Inputs, questions and
        `options` are as in `/v1/decisions`. Raises like `generate`, and RequestError if the input
        or a question is refused."""
        return _only(self.decide_each([input], questions, **options))

    def decide_each(
        self,
        inputs: Sequence[Input],
        questions: Sequence[Options] | Sequence[Sequence[Options]],
        **options: object,
    ) -> list[list[DecisionAnswer] | RequestError]:
        """Answer questions about each input: one list for all inputs, or one for each. A refused
        input has an error. Raises like `generate`."""
        _check_any("inputs", inputs)
        _check_any("questions", questions)
        of_all = isinstance(questions[0], Mapping)
        each: Sequence[object] = [questions] * len(inputs) if of_all else questions
        if len(inputs) != len(each):
            raise ValueError(f"questions: {len(each)} lists for {len(inputs)} inputs")
        return self._run(Decisions(self._named, list(zip(inputs, each, strict=True)), options))

    async def _open(self) -> Backend:
        enter = self._stack.enter_async_context
        if self._url is not None:
            return await enter(daemon_backend(self._url, self._api_key))
        folder = model_folder(str(self._model), self._options.load_format)
        engine = await enter(running_engine(folder, self._options))
        return await enter(engine_backend(ServerConfig(models=(engine.model,))))

    def _run(self, job: Job[ResultT]) -> list[ResultT | RequestError]:
        if self._loop is None:
            raise RuntimeError("BatchLLM works inside its block: with BatchLLM(...) as llm")
        results = self._loop.run(job.run(self._backend, shown=self._progress))
        self.summary = job.summary
        self.errors = {i: each for i, each in enumerate(results) if isinstance(each, RequestError)}
        return results


def _only(results: Sequence[ResultT | RequestError]) -> ResultT:
    """The result of a job of one request. Raises RequestError if that is refused."""
    (result,) = results
    if isinstance(result, RequestError):
        raise result
    return result


def _check_any(name: str, given: Sequence[object]) -> None:
    """Raises ValueError for an empty list, and for a text or an object in place of one."""
    if isinstance(given, str | Mapping):
        raise ValueError(f"{name}: a list, not one text or object")
    if not len(given):
        raise ValueError(f"{name}: is empty")


def check_options(url: str, options: Options) -> Options:
    """Check the options of a job for `url`. Raises RequestError for one that is unknown, no JSON,
    or wrong for completions, whose prompt is checked where the line is answered."""
    _check_names(options, _OPTIONS[url])
    line = line_of(0, url, {**options, "prompt": ""})
    if url == _COMPLETIONS:
        try:
            _body.decode(line.body, strictly=True)
        except RefusalError as error:
            raise RequestError(error.code, error.message, error.param) from None
    return options


def _check_names(given: Options, known: Collection[str], prefix: str = "") -> None:
    """Raises RequestError for one that is not `known`."""
    if unknown := sorted(given.keys() - known):
        names, name = ", ".join(sorted(known)), prefix + unknown[0]
        message = f"{name}: there is no such option here; there are {names}"
        raise RequestError("invalid_request", message, name)


def line_of(index: int, url: str, fields: Options) -> Line:
    """A line with these fields for its body. Raises RequestError for what is no JSON."""
    try:
        return Line(index, "", url, json.dumps(fields, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise RequestError("invalid_request", str(error)) from None


def plain(field: str, prompt: Prompt) -> str | list[int]:
    """A text, or token ids of any sequence or array as a list. Raises RequestError."""
    if isinstance(prompt, str):
        return prompt
    try:
        ids = prompt.tolist() if isinstance(prompt, np.ndarray) else [*prompt]
        return msgspec.convert(ids, list[int])
    except (TypeError, msgspec.ValidationError):
        message = f"{field}: a text or token ids; conversations are rendered before"
        raise RequestError("invalid_request", message, field) from None


def opened(field: str, prompt: Prompt | PromptFields) -> str | list[int]:
    """A `plain` prompt, out of its object if it is in one. Raises RequestError."""
    if not isinstance(prompt, Mapping):
        return plain(field, prompt)
    fields = {name: value for name, value in prompt.items() if value is not None}
    _check_names(fields, PromptObject.__struct_fields__, f"{field}.")
    if isinstance(ids := fields.get("prompt_token_ids"), np.ndarray | array):
        fields["prompt_token_ids"] = ids.tolist()
    try:
        return msgspec.convert(fields, PromptObject).opened(field)[1]
    except msgspec.ValidationError as error:
        fault = fault_of(error)
        refused = invalid(f"{field}.{fault.path}", fault.reason)
    except RefusalError as error:
        refused = error
    raise RequestError(refused.code, refused.message, refused.param)


def refusal(answer: Answer) -> RequestError:
    """The error of a bad answer. Raises JobStoppedError for one that all requests would get."""
    error = error_of(answer)
    if error.code in _OF_ALL:
        raise JobStoppedError(f"{error.message} ({error.code})")
    return RequestError(error.code, error.message, error.param)


def engine_options(settings: Mapping[str, object]) -> EngineOptions:
    """Convert the settings of a model. Raises ValueError, naming the setting."""
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
        fault = fault_of(error)
        raise ValueError(f"{fault.path}: {fault.reason}") from None


class LoopThread:
    """Runs coroutines for threads that wait. Child processes end with this thread."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="batch-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, ResultT]) -> ResultT:
        """Run `work` to its result. Ctrl-C cancels it, waits for its end, and is raised again."""
        ended = threading.Event()
        tasks: list[asyncio.Task[ResultT]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            task.add_done_callback(lambda _: ended.set())
            tasks.append(task)

        def cancel() -> None:
            if not tasks:  # Ctrl-C came before it could begin
                begin()
            tasks[0].cancel()

        try:
            self._loop.call_soon_threadsafe(begin)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        return tasks[0].result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
