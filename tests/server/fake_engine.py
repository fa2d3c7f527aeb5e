"""A peer that speaks engine_core.messages and computes nothing: it answers with scripted tokens."""

import itertools
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import zmq
from msgspec.structs import replace

from engine_core.messages import (
    STEP_SIZES,
    Abort,
    Accepted,
    Beat,
    EncodedRows,
    EncodeJob,
    EndRow,
    EngineInfo,
    Failed,
    FromCore,
    GenerateJob,
    Hello,
    JobTiming,
    Outputs,
    ReadJob,
    RowOutput,
    StageTime,
    ToCore,
    Trace,
    TracedSteps,
    Usage,
)
from engine_core.tokenization.tokenizer import Tokenizer
from workers.contract.config import Task
from workers.contract.messages import Logprobs

STAGE_TIMES = [
    StageTime(busy_s=3.0, waiting_s=0.0, transfer_s=0.25, idle_s=0.5),
    StageTime(busy_s=2.0, waiting_s=1.0, transfer_s=0.125, idle_s=0.75),
]
"""Of the two stages that every engine says it has."""

VECTOR_SIZE = 8
LENGTH = 4.0
"""Of the vectors that the engine returns: an exact multiple of `vector_of`."""


def timing_of(job: int) -> JobTiming:
    """What the engine says of every job: powers of two, so that sums are exact."""
    return JobTiming(job, tokenize=0.125, queue=0.25, prefill=0.5, cached=2)


def vector_of(item: str | bytes, size: int) -> np.ndarray:
    """float32[size] of length 1, the same for the same item."""
    seed = zlib.crc32(item.encode() if isinstance(item, str) else item)
    vector = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return vector / np.linalg.norm(vector)


def states_of(item: str | bytes, tokens: int) -> np.ndarray:
    """float32[tokens, 8]: the item's vector, times 1, 2, 3, ..."""
    return vector_of(item, 8) * np.arange(1, tokens + 1, dtype=np.float32)[:, None]


def sparse_of(item: str | bytes) -> np.ndarray:
    """float32[E, 2] of indices and values: those of the item's vector that are above zero, 1000
    times its index; of "nothing" none, of "everything" 30,000."""
    if item == "everything":
        return np.ones((30_000, 2), np.float32)
    vector = vector_of(item, 8)
    indices = np.flatnonzero(vector > 0) if item != "nothing" else np.empty(0, np.int64)
    return np.stack([1000.0 * indices, vector[indices]], axis=1).astype(np.float32)


def score_of(query: str, text: str) -> float:
    """The share of the query's words that the text has."""
    words = query.split() or [""]
    return sum(word in text.split() for word in words) / len(words)


def logits_of(query: str | None, text: str, labels: int) -> np.ndarray:
    """float32[labels]: of a pair the first is its score, of a text alone its number of words."""
    first = len(text.split()) if query is None else score_of(query, text)
    return np.array([first, *vector_of(text, labels)[1:]], np.float32)


@dataclass
class Script:
    """What the engine says. Tests change it while it runs.

    `tokens` are the ids that every row says, over and over; `refusal` answers the next jobs,
    every job fails once a row has said `fail_after` tokens. While `held` accepted jobs do not
    move; while `deaf` jobs are not even answered. `chances` are the log-probabilities of the tokens
    of a job's rows, over and over, or of the tokens that are read of each row; `cached` of every
    row's prompt tokens were known.
    `ignored` is left out of every schema. `traced` answers each trace.
    """

    tokens: list[int] = field(default_factory=lambda: [40, 41])
    step_seconds: float = 0.0
    held: bool = False
    deaf: bool = False
    ready: bool = True
    refusal: Failed | None = None
    fail_after: int | None = None
    chances: list[float] = field(default_factory=lambda: [-0.5])
    cached: int = 0
    ignored: tuple[str, ...] = ()
    traced: Callable[[], list[TracedSteps]] = list


@dataclass
class _Job:
    client: bytes
    message: GenerateJob
    prompts: list[bytes]
    open_rows: set[int]
    said: int = 0


class FakeEngine:
    """One engine on one endpoint. `with` runs it in a thread."""

    def __init__(
        self,
        endpoint: str,
        tokenizer: Tokenizer,
        *,
        task: Task = "generate",
        script: Script | None = None,
        labels: int = 1,
    ) -> None:
        self.script = script or Script()
        self.aborted: list[int] = []
        self.ended_rows: list[tuple[int, int]] = []
        self.received: list[GenerateJob | EncodeJob | ReadJob] = []
        self.traces: list[float] = []
        self._tokenizer = tokenizer
        self._task = task
        size = {"generate": 0, "classify": labels}.get(task, VECTOR_SIZE)
        vocabulary = tokenizer.raw.get_vocab_size()
        self._info = EngineInfo(
            task, 2048, vocabulary, size, {"states": VECTOR_SIZE}, 1 << 20, 1 << 20
        )
        self._jobs: dict[tuple[bytes, int], _Job] = {}
        self._waiting: list[tuple[bytes, EncodeJob | ReadJob]] = []
        self._greeted: set[bytes] = set()
        self._unready: set[bytes] = set()
        self._steps = itertools.count()
        self._stop = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        self._socket.bind(endpoint)
        self._thread = threading.Thread(target=self.run, name="fake-engine", daemon=True)

    def __enter__(self) -> "FakeEngine":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Vanish, as a killed process does."""
        self._stop.set()
        self._thread.join()
        self._context.destroy(0)

    @property
    def running(self) -> int:
        """Jobs that have been accepted and not ended."""
        return len(self._jobs) + len(self._waiting)

    def run(self) -> None:
        """The loop: take what has come, then one step, then sleep until the next is due."""
        due = beat_due = time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            busy = bool(self._jobs or self._waiting) and not self.script.held
            wait = max(0.0, due - now) if busy else 0.005
            self._socket.poll(int(wait * 1000))
            while self._socket.poll(0):
                client, frame = self._socket.recv_multipart()
                for message in msgspec.msgpack.decode(frame, type=list[ToCore]):
                    self._receive(client, message)
            now = time.monotonic()
            if now >= beat_due:
                self._beat()
                beat_due = now + 0.2
            if now >= due and not self.script.held:
                due = max(due + self.script.step_seconds, now - self.script.step_seconds)
                self._step()

    def _beat(self) -> None:
        self._greet_if_ready()
        running = sum(len(job.open_rows) for job in self._jobs.values())
        beat = Beat(
            usage=Usage(running=running, waiting=0, kv_blocks_used=1, kv_blocks_total=16),
            steps=next(self._steps),
            step_sizes=[0] * (len(STEP_SIZES) + 1),
            stages=STAGE_TIMES,
            admitted_rows=running,
            admitted_tokens=running,
        )
        for client in self._greeted:
            self._send(client, beat)

    def _greet_if_ready(self) -> None:
        while self.script.ready and self._unready:
            self._greeted.add(client := self._unready.pop())
            self._send(client, self._info)

    def _receive(self, client: bytes, message: ToCore) -> None:
        match message:
            case Hello():
                self._unready.add(client)
                self._greet_if_ready()
            case Abort():
                # Of an earlier test's job it may come late.
                known = {job.id for job in self.received}
                self.aborted += [job for job in message.ids if job in known]
                for job in message.ids:
                    self._jobs.pop((client, job), None)
                self._waiting = [w for w in self._waiting if w[1].id not in message.ids]
            case EndRow():
                self.ended_rows.append((message.job, message.row))
                if (job := self._jobs.get((client, message.job))) is not None:
                    self._close_row(job, message.row)
            case GenerateJob() | EncodeJob() | ReadJob():
                self.received.append(message)
                if not self.script.deaf:
                    self._admit(client, message)
            case Trace():
                self.traces.append(message.seconds)
                for part in self.script.traced():
                    self._send(client, part)
            case _:
                pass  # there is no cache here

    def _admit(self, client: bytes, message: GenerateJob | EncodeJob | ReadJob) -> None:
        if (refusal := self.script.refusal) is not None:
            failed = msgspec.structs.replace(refusal, id=message.id)
            self._send(client, Outputs(failed=[failed]))
            return
        if isinstance(message, ReadJob):
            pieces = self._tokenizer.encode(message.pieces, add_special_tokens=False)
            sizes = [len(tokens) // 4 for tokens in pieces]
            lengths = [sum(sizes[piece] for piece in prompt) for prompt in message.prompts]
            self._waiting.append((client, message))
            accepted = Accepted(message.id, lengths, piece_tokens=sizes)
            self._send(client, Outputs(accepted=[accepted]))
            return
        if isinstance(message, EncodeJob):
            self._waiting.append((client, message))
            self._send(client, Outputs(accepted=[Accepted(message.id)]))
            return
        ids = self._ids(message)
        lengths = [len(tokens) // 4 for tokens in ids]
        rows = set(range(len(ids) * message.n))
        self._jobs[client, message.id] = _Job(client, message, ids, rows)
        accepted = Accepted(message.id, lengths, ids, ignored=self.script.ignored)
        self._send(client, Outputs(accepted=[accepted]))

    def _ids(self, message: GenerateJob | EncodeJob) -> list[bytes]:
        options = message.tokenization
        special = options.add_special_tokens
        ids = message.ids or self._tokenizer.encode(message.texts, add_special_tokens=special)
        if options.truncate_to is None:
            return ids
        size = 4 * options.truncate_to
        return [part[-size:] if options.truncation_side == "left" else part[:size] for part in ids]

    def _step(self) -> None:
        outputs: dict[bytes, Outputs] = {}
        for job in list(self._jobs.values()):
            self._say(job, outputs.setdefault(job.client, Outputs([], [], [], [], [])))
        for client, message in self._waiting:
            is_read = isinstance(message, ReadJob)
            part = self._read(message) if is_read else self._with_lengths(message)
            own = outputs.setdefault(client, Outputs([], [], [], [], []))
            own.encoded.append(part)
            timing = timing_of(message.id)
            own.timings.append(msgspec.structs.replace(timing, found=self.script.cached))
        self._waiting.clear()
        for client, own in outputs.items():
            self._send(client, own)

    def _say(self, job: _Job, outputs: Outputs) -> None:
        message, params = job.message, job.message.params
        if job.said == self.script.fail_after:
            outputs.failed.append(Failed(message.id, "row_failed", "no finite result"))
            del self._jobs[job.client, message.id]
            return
        if job.said == 0 and params.prompt_logprobs is not None:
            outputs.rows.extend(self._scored(job, params.prompt_logprobs))
        if params.max_tokens == 0:
            for row in list(job.open_rows):
                outputs.rows.append(RowOutput(message.id, row, finish="length"))
                self._close_row(job, row)
            return
        if job.said == 0:
            outputs.timings.append(timing_of(message.id))
        token = self.script.tokens[job.said % len(self.script.tokens)]
        job.said += 1
        finish = "length" if job.said == params.max_tokens else None
        ends = params.eos_token_ids if not params.ignore_eos else frozenset()
        if token in ends | params.stop_token_ids and job.said > params.min_tokens:
            finish = "stop"
        cached = self.script.cached if job.said == 1 else 0
        for row in list(job.open_rows):
            chance = self.script.chances[row % len(self.script.chances)]
            width = params.logprobs
            named = params.logprob_token_ids
            sampled = None if width is None else logprobs_of([token], width, chance, named)
            outputs.rows.append(RowOutput(message.id, row, token, finish, sampled, cached=cached))
            if finish is not None:
                self._close_row(job, row)

    def _scored(self, job: _Job, width: int) -> list[RowOutput]:
        """The log-probabilities of each prompt in two pieces, with its first row."""
        pieces: list[RowOutput] = []
        for row in sorted(row for row in job.open_rows if row % job.message.n == 0):
            ids = np.frombuffer(job.prompts[row // job.message.n], np.int32)[1:].tolist()
            half = len(ids) // 2
            for part in (ids[:half], ids[half:]):
                ranks = np.full(len(part), 7, np.int32).tobytes()
                scored = replace(logprobs_of(part, width), ranks=ranks)
                pieces.append(RowOutput(job.message.id, row, scored=scored))
        return pieces

    def _close_row(self, job: _Job, row: int) -> None:
        job.open_rows.discard(row)
        if not job.open_rows:
            self._jobs.pop((job.client, job.message.id), None)

    def _read(self, message: ReadJob) -> EncodedRows:
        counts = np.array([len(tokens) // 4 for tokens in message.tokens], np.int32)
        chances = self.script.chances
        values = np.concatenate([np.resize(np.array(chances, np.float32), n) for n in counts])
        rows = np.arange(len(counts), dtype=np.int32)
        rows, values, counts = (each.tobytes() for each in (rows, values, counts))
        return EncodedRows(message.id, rows, values, counts)

    def _with_lengths(self, message: EncodeJob) -> EncodedRows:
        lens = np.array([len(ids) // 4 for ids in self._ids(message)], np.int32)
        return replace(self._encoded(message), lens=lens.tobytes())

    def _encoded(self, message: EncodeJob) -> EncodedRows:
        items = message.texts or message.ids
        rows = np.arange(len(items), dtype=np.int32).tobytes()
        if self._task == "classify":
            return EncodedRows(message.id, rows, self._logits(message).tobytes())
        if self._task != "embed_sparse" and message.outputs == ("vector",):
            unit = np.stack([vector_of(item, VECTOR_SIZE) for item in items])
            return EncodedRows(message.id, rows, (LENGTH * unit).tobytes())
        if self._task == "embed_sparse":
            parts = [sparse_of(item) for item in items]
        else:
            lengths = [len(ids) // 4 for ids in self._ids(message)]
            parts = [states_of(*each) for each in zip(items, lengths, strict=True)]
        counts = np.array([len(part) for part in parts], np.int32).tobytes()
        return EncodedRows(message.id, rows, np.concatenate(parts).tobytes(), counts)

    def _logits(self, message: EncodeJob) -> np.ndarray:
        labels, queries = self._info.vector_size, message.query
        if not isinstance(queries, list):
            queries = [queries] * (len(message.texts) + len(message.ids))
        texts = message.texts or ["" for _ in message.ids]
        return np.stack([logits_of(*pair, labels) for pair in zip(queries, texts, strict=True)])

    def _send(self, client: bytes, message: FromCore | TracedSteps) -> None:
        self._socket.send_multipart([client, msgspec.msgpack.encode(message)], zmq.NOBLOCK)


def logprobs_of(
    tokens: list[int], width: int, chance: float = -0.5, named: bytes = b""
) -> Logprobs:
    """Made up: every token has `chance` and no rank, its alternatives are the `named` ones (int32),
    or the ids from 0, ever less likely."""
    alternatives = np.frombuffer(named, np.int32) if named else np.arange(width, dtype=np.int32)
    width = len(alternatives)
    chosen = np.full(len(tokens), chance, np.float32)
    top_ids = np.tile(alternatives, (len(tokens), 1))
    top = np.tile(-np.arange(1, width + 1, dtype=np.float32), (len(tokens), 1))
    return Logprobs(width, chosen.tobytes(), top_ids.tobytes(), top.tobytes())
