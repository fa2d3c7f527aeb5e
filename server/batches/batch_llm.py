"""Jobs of many requests from Python, on an engine of one's own or a running daemon."""

import argparse
import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import uvloop

from server.batches.answering import Backend
from server.batches.daemon_backend import daemon_backend
from server.batches.engine_backend import engine_backend
from server.batches.jobs import (
    Completions,
    Embeddings,
    FloatArray,
    Job,
    Options,
    Prompt,
    Rerankings,
    ResultT,
)
from server.batches.results import GenerateResult, RequestError, Summary
from server.daemon.run import running_engine
from server.models.model_setup import EngineOptions
from server.models.model_source import model_folder
from server.schemas.rerank import RerankResult
from server.settings.engine_settings import EngineSettings
from server.settings.server_config import ServerConfig
from server.settings.setting_types import parse_size

_KEYS = (*EngineSettings.__struct_fields__, "memory_share", "rerank")
_SIZE = "kv_cache_memory"


_NO_OPTIONS: Options = {}


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
        sampling: Options | Sequence[Options] = _NO_OPTIONS,
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
            config = ServerConfig(models=(engine.model,), log_level=self._options.log_level)
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
