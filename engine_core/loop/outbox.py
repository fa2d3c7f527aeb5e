"""Updates for clients: gathered during an iteration of the loop, sent as one message a client."""

import time
from collections import defaultdict
from collections.abc import Callable, ItemsView

from engine_core.loop.jobs import Job
from engine_core.messages import Accepted, EncodedRows, Failed, Outputs, RowOutput
from engine_core.refusal import RefusalError


class Outbox:
    """Updates by client. A job ends exactly once: `on_end` then releases its budget. Before that,
    `on_rows` hears that some of its rows have ended."""

    def __init__(
        self,
        on_end: Callable[[Job], None],
        on_rows: Callable[[Job], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_end, self._on_rows = on_end, on_rows
        self._clock = clock
        self._outputs: defaultdict[bytes, Outputs] = defaultdict(Outputs)

    def accept(self, job: Job, accepted: Accepted) -> None:
        self._outputs[job.client].accepted.append(accepted)

    def row(self, job: Job, output: RowOutput, *, first: bool = False) -> None:
        """An update of one row, its last if it has a finish. The `first` goes before those of older
        rows: its client waits for it."""
        outputs = self._outputs[job.client]
        job.losses = 0
        outputs.rows.insert(0 if first else len(outputs.rows), output)
        if not job.moments.reported and (output.token >= 0 or output.finish is not None):
            self._report_timing(outputs, job)
        if output.finish is not None:
            self.close_rows(job, 1)

    def encoded(self, job: Job, part: EncodedRows, rows: int) -> None:
        """Finished rows of an encode job."""
        outputs = self._outputs[job.client]
        job.losses = 0
        outputs.encoded.append(part)
        self.close_rows(job, rows)
        if job.ended:
            self._report_timing(outputs, job)

    def fail(self, job: Job, refusal: RefusalError) -> None:
        """The job's terminal message, for all rows that have not ended."""
        if not job.ended:
            self.refuse(job.client, job.message.id, refusal)
            self.end(job)

    def fail_not_finite(self, job: Job) -> None:
        message = "the model produced values that are not finite for this request"
        self.fail(job, RefusalError("row_failed", message))

    def refuse(self, client: bytes, job_id: int, refusal: RefusalError) -> None:
        """The only answer to a job that was never admitted."""
        failed = Failed(job_id, refusal.code, refusal.message, refusal.param, refusal.retry_after)
        self._outputs[client].failed.append(failed)

    def close_rows(self, job: Job, rows: int) -> None:
        """Count rows of a job that have ended. The last one ends the job."""
        job.open_rows -= rows
        if job.open_rows == 0:
            self.end(job)
        elif rows:
            self._on_rows(job)

    def take(self) -> ItemsView[bytes, Outputs]:
        """Everything gathered since the last call, by client."""
        outputs, self._outputs = self._outputs, defaultdict(Outputs)
        return outputs.items()

    def _report_timing(self, outputs: Outputs, job: Job) -> None:
        outputs.timings.append(job.moments.report(job.message.id, self._clock()))

    def end(self, job: Job) -> None:
        """End a job, silently if nothing is sent before: its client is gone or does not want it."""
        job.ended = True
        self._on_end(job)
