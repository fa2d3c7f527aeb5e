"""Embeddings by a causal model: prompts that are not continued, on the decoder's scheduler.

So long texts are computed in chunks, and texts that begin alike share the computed beginning.
"""

from array import array
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from engine_core.job import Job
from engine_core.messages import Accepted, EncodeJob, GenerateJob, SamplingParams
from engine_core.outbox import Outbox
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.encoded_rows import confirm_encoded_rows
from engine_core.schedulers.requests.request import Request
from engine_core.tokenization.job_inputs import JobInputs, Text
from engine_core.workflows.base import Workflow
from engine_core.workflows.embed import EncoderProcessor, tokenizer_threads_for
from workers.contract.config import ExecutionConfig

_NOT_CONTINUED = SamplingParams(max_tokens=0)


class PromptScheduler(DecoderScheduler):
    """Each row has one answer, from its last token."""

    def _confirm(self, batch: DecodeBatch, output: Any, outbox: Outbox) -> Iterator[Request]:
        return confirm_encoded_rows(batch, output, outbox)


class PromptProcessor:
    """Turns each text into a request that ends with its last token."""

    def __init__(
        self,
        config: ExecutionConfig,
        num_blocks: int,
        items: type[EncoderProcessor] = EncoderProcessor,
    ) -> None:
        """`items` finds a job's texts and checks their tokens."""
        self._items = items(config, num_blocks)

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        return self._items.texts(message)

    def prepare(self, inputs: JobInputs) -> tuple[Accepted, list[Request]]:
        accepted, _ = self._items.prepare(inputs)
        rows = list(enumerate(text.ids for text in inputs.tokenized))
        if inputs.job.is_batch:
            rows.sort(key=itemgetter(1))  # what begins alike is side by side
        return accepted, [_request(inputs.job, row, array("i", ids)) for row, ids in rows]


def _request(job: Job, row: int, tokens: "array[int]") -> Request:
    message = job.message
    return Request(
        job=job,
        row=row,
        params=_NOT_CONTINUED,
        tokens=tokens,
        max_len=len(tokens),
        seed=0,
        salt=message.cache_salt.encode(),
        priority=message.priority,
    )


WORKFLOW = Workflow(
    task="embed",
    operations=frozenset({"encode texts"}),
    preprocessor=tokenizer_threads_for,
    processor=PromptProcessor,
    scheduler=PromptScheduler,
    vector_size=lambda model: model.vector_size,
)
