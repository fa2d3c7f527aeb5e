"""Embeddings by a causal model: prompts that are not continued, on the decoder's scheduler.

So long texts are computed in chunks, and texts that begin alike share the computed beginning.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from engine_core.job import Job, PrefixGroup
from engine_core.messages import Accepted, EncodeJob, GenerateJob, SamplingParams
from engine_core.outbox import Outbox
from engine_core.prefix_groups.find_groups import find_groups
from engine_core.schedulers.batches import DecodeBatch
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.encoded_rows import confirm_encoded_rows
from engine_core.schedulers.requests.request import Request
from engine_core.tokenization.tokenizer_threads import Text, TokenizedJob
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

    def prepare(self, inputs: TokenizedJob) -> tuple[Accepted, list[Request]]:
        accepted, _ = self._items.prepare(inputs)
        prompts = [text.ids for text in inputs.tokenized]
        groups = _groups(inputs.job.message, prompts)
        rows = enumerate(zip(prompts, groups, strict=True))
        return accepted, [
            _request(inputs.job, row, array("i", ids), own) for row, (ids, own) in rows
        ]


def _groups(
    message: GenerateJob | EncodeJob, prompts: Sequence[bytes]
) -> Sequence[PrefixGroup | None]:
    """What each of `prompts` shares with others of its job; None if the job is not grouped."""
    groups: list[PrefixGroup | None] = [None] * len(prompts)
    if isinstance(message, EncodeJob) and message.grouped:
        for prefix_len, members in find_groups(prompts):
            group = PrefixGroup(prefix_len)
            for row in members.tolist():
                groups[row] = group
    return groups


def _request(job: Job, row: int, tokens: "array[int]", group: PrefixGroup | None) -> Request:
    message = job.message
    return Request(
        job=job,
        row=row,
        params=_NOT_CONTINUED,
        tokens=tokens,
        max_len=len(tokens),
        seed=0,
        salt=message.cache_salt.encode(),
        priority=message.priority if group is None else math.inf,
        group=group,
    )


WORKFLOW = Workflow(
    task="embed",
    operations=frozenset({"encode texts"}),
    preprocessor=tokenizer_threads_for,
    processor=PromptProcessor,
    scheduler=PromptScheduler,
    vector_size=lambda model: model.vector_size,
)
