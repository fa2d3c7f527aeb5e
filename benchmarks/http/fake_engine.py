"""An engine core that computes nothing, as cheaply as Python can: to measure the API process.

`python -m benchmarks.http.fake_engine ENDPOINT TASK CLIENTS STEP_MS TOKEN ...`: it is ready once so
many clients have connected. Each row to generate repeats the tokens, one every STEP_MS, or all at
once if that is 0; each text to embed gets the same vector. Nothing is tokenized: a prompt to
continue counts a token for each space, every other text counts as one. Aborts are ignored: a row
ends by `max_tokens` alone.
"""

import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import numpy as np
import zmq

from engine_core.loop.transport import ClientSocket
from engine_core.messages import (
    Accepted,
    EncodedRows,
    EncodeJob,
    EngineInfo,
    GenerateJob,
    Hello,
    JobTiming,
    Outputs,
    RowOutput,
    ToCore,
)
from workers.contract.config import Task
from workers.contract.model_config import TokenOutput
from workers.contract.process import exit_with_parent

VECTOR_SIZE = 384
_PROMPT = bytes(4)
_IDLE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Row:
    """A row to generate: its client and job, how many tokens it gets, how many it has."""

    client: bytes
    job: int
    row: int
    max_tokens: int
    generated: int = 0


class FakeEngine:
    """One endpoint. All updates of a client between two waits are one message."""

    def __init__(
        self,
        endpoint: str,
        task: Task,
        clients: int,
        step_seconds: float,
        tokens: Sequence[int],
    ) -> None:
        self._clients = ClientSocket(endpoint, zmq.Context())
        sizes: dict[TokenOutput, int] = {"states": VECTOR_SIZE}
        self._info = EngineInfo(task, 2048, 1 << 20, VECTOR_SIZE, sizes, 1 << 20, 1 << 20)
        self._expected, self._greeting = clients, list[bytes]()
        self._step_seconds = step_seconds
        self._tokens = tokens
        vector = np.full(VECTOR_SIZE, VECTOR_SIZE**-0.5) * np.linspace(0.5, 1.5, VECTOR_SIZE)
        self._vector = vector.astype(np.float32).tobytes()
        self._decoder = msgspec.msgpack.Decoder(list[ToCore])
        self._outputs: defaultdict[bytes, Outputs] = defaultdict(Outputs)
        self._rows: list[_Row] = []
        self._due = 0.0

    def run(self) -> None:
        """Until killed."""
        while True:
            wait = self._due - time.monotonic() if self._rows else _IDLE_SECONDS
            self._clients.arrivals.poll(math.ceil(max(0.0, wait) * 1e3))
            while (arrival := self._clients.receive()) is not None:
                client, frame = arrival
                for message in self._decoder.decode(frame):
                    self._handle(client, message)
            if self._rows and time.monotonic() >= self._due:
                self._due += self._step_seconds
                self._rows = [row for row in self._rows if not self._generate_token(row)]
            for client, outputs in self._outputs.items():
                self._clients.send(client, outputs)
            self._outputs.clear()

    def _handle(self, client: bytes, message: ToCore) -> None:
        match message:
            case Hello():
                self._greet(client)
            case EncodeJob():
                count = len(message.texts) + len(message.ids)
                rows = np.arange(count, dtype=np.int32).tobytes()
                outputs = self._outputs[client]
                lens = np.ones(count, np.int32).tobytes()
                outputs.accepted.append(Accepted(message.id))
                outputs.encoded.append(
                    EncodedRows(message.id, rows, self._vector * count, lens=lens)
                )
                outputs.timings.append(_timing(message.id))
            case GenerateJob():
                self._generate(client, message)

    def _greet(self, client: bytes) -> None:
        """Answer all clients once every one of them is there: ready means that none is missing."""
        self._greeting.append(client)
        if len(self._greeting) >= self._expected:
            for each in self._greeting:
                self._clients.send(each, self._info)
            self._greeting.clear()
            self._expected = 1

    def _generate(self, client: bytes, job: GenerateJob) -> None:
        lengths = [max(1, text.count(" ")) for text in job.texts] + [1] * len(job.ids)
        count = len(lengths)
        self._outputs[client].accepted.append(Accepted(job.id, lengths, [_PROMPT] * count))
        limit = job.params.max_tokens or 1
        rows = [_Row(client, job.id, row, limit) for row in range(count * job.n)]
        if not self._step_seconds:
            for row in rows:
                while not self._generate_token(row):
                    pass
            return
        if not self._rows:
            self._due = time.monotonic() + self._step_seconds
        self._rows += rows

    def _generate_token(self, row: _Row) -> bool:
        """The row's next token; True if that was its last."""
        token = self._tokens[row.generated % len(self._tokens)]
        row.generated += 1
        last = row.generated == row.max_tokens
        if row.generated == 1 and row.row == 0:
            self._outputs[row.client].timings.append(_timing(row.job))
        output = RowOutput(row.job, row.row, token, "length" if last else None)
        self._outputs[row.client].rows.append(output)
        return last


def _timing(job: int) -> JobTiming:
    """As a real engine says it of every job."""
    return JobTiming(job, 1e-4, 1e-3, 1e-2, 0)


def main() -> None:
    """The process."""
    exit_with_parent()
    endpoint, task, clients, step_ms, *tokens = sys.argv[1:]
    FakeEngine(
        endpoint,
        cast("Task", task),
        int(clients),
        float(step_ms) / 1e3,
        list(map(int, tokens)),
    ).run()


if __name__ == "__main__":
    main()
