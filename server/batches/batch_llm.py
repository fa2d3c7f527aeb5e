"""Jobs of many requests from Python, on an engine of one's own or a running daemon."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import numpy as np

from server.batches.base import Backend
from server.batches.encode_job import EMBED_OPTIONS, RERANK_OPTIONS, EncodeJob, FloatArray, Ranking
from server.batches.engine_options import engine_options
from server.batches.job import Job
from server.batches.loop_thread import LoopThread
from server.batches.own_engine import own_engine
from server.batches.remote_daemon import running_daemon
from server.batches.requests import Options, Prompt, completion_requests
from server.batches.results import Generated, GenerateResult, RequestError, Summary
from server.models.model_source import model_folder
from server.schemas.rerank import RerankResult

ResultT = TypeVar("ResultT")
_Work = Callable[[Backend, Callable[[int, ResultT | RequestError], None]], Awaitable[None]]
_NO_OPTIONS: Mapping[str, object] = {}


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
        requests = completion_requests(prompts, sampling, options)

        async def work(
            backend: Backend, put: Callable[[int, Generated | RequestError], None]
        ) -> None:
            for index, request in enumerate(requests):
                if isinstance(request, RequestError):
                    put(index, request)
            good = {i: each for i, each in enumerate(requests) if not isinstance(each, Exception)}
            await backend.complete(good, put)

        started = time.perf_counter()
        results: list[GenerateResult] = self._run("generate", len(prompts), work)
        used = [result.usage for result in results if isinstance(result, Generated)]
        self._sum_up(
            results,
            started,
            prompt_tokens=sum(usage.prompt_tokens for usage in used),
            output_tokens=sum(usage.completion_tokens for usage in used),
            saved_tokens=sum(usage.prompt_tokens_details.cached_tokens for usage in used),
        )
        return results

    def embed(self, texts: Sequence[Prompt], **options: object) -> FloatArray:
        """The vector of each text (or of token ids), float32[N, D]; `options` are fields of
        `/v1/embeddings`. One that is refused is NaN, and in `errors`. Raises like `generate`."""
        _check_any("texts", texts)
        job = EncodeJob(options, EMBED_OPTIONS)
        started = time.perf_counter()
        work: _Work[FloatArray] = partial(job.embed, texts)
        vectors = self._run("embed", len(texts), work)
        self._sum_up(vectors, started, prompt_tokens=job.prompt_tokens)
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
    ) -> list[Ranking]:
        """The same for many queries, each with documents of its own. A query that is refused has
        its RequestError for a result. Raises like `generate`."""
        _check_any("queries", queries)
        if len(queries) != len(documents):
            raise ValueError(f"documents: {len(documents)} lists for {len(queries)} queries")
        job = EncodeJob(options, RERANK_OPTIONS)
        pairs = list(zip(queries, documents, strict=True))
        started = time.perf_counter()
        work: _Work[list[RerankResult]] = partial(job.rerank, pairs)
        rankings = self._run("rerank", len(queries), work)
        self._sum_up(rankings, started, prompt_tokens=job.prompt_tokens)
        return rankings

    def _opened(self) -> AbstractAsyncContextManager[Backend]:
        if self._url is not None:
            return running_daemon(self._url, self._model, self._api_key)
        folder = model_folder(str(self._model), self._options.load_format)
        return own_engine(folder, self._options)

    def _run(self, title: str, count: int, work: _Work[ResultT]) -> list[ResultT | RequestError]:
        if self._loop is None or self._backend is None:
            raise RuntimeError("BatchLLM works inside its block: with BatchLLM(...) as llm")
        job = Job[ResultT](title, count, shown=self._progress)
        return self._loop.run(job.run(work(self._backend, job.put)))

    def _sum_up(
        self,
        results: Sequence[object],
        started: float,
        *,
        prompt_tokens: int,
        output_tokens: int = 0,
        saved_tokens: int = 0,
    ) -> None:
        assert self._backend is not None
        self.errors = {
            index: result
            for index, result in enumerate(results)
            if isinstance(result, RequestError)
        }
        self.summary = Summary(
            requests=len(results),
            failed=len(self.errors),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            saved_tokens=saved_tokens,
            seconds=time.perf_counter() - started,
            sharing=self._backend.sharing,
        )


def _check_any(name: str, given: Sequence[object]) -> None:
    """Raises ValueError for an empty job, and for one text in place of many."""
    if isinstance(given, str):
        raise ValueError(f"{name}: a list, not one text")
    if not len(given):
        raise ValueError(f"{name}: is empty")
