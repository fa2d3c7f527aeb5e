"""Jobs from Python: their lines, and their results as they come."""

import base64
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from engine_core.refusal import RefusalError
from server.batches.answering import NOT_OURS, Answer, Backend, Line, error_of
from server.batches.progress import Progress
from server.batches.results import Generated, JobStoppedError, RequestError, Summary
from server.http.body import Body
from server.schemas.completions import Completion, CompletionRequest
from server.schemas.embeddings import EmbeddingList, EmbeddingRequest
from server.schemas.rerank import Reranking, RerankRequest, RerankResult

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
