"""Encoders: one vector a text, dense or sparse, or a logit a label for a text or a pair.

With a model that embeds the server scores pairs by the cosine of their vectors.
"""

from collections.abc import Callable, Mapping

import numpy as np

from engine_core.messages import EncodeJob, JobMessage, Marks
from engine_core.refusal import RefusalError
from engine_core.schedulers.encoder_rows import EncoderRows
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from engine_core.workflows.base import (
    Operation,
    Prepared,
    RequestProcessor,
    Scheduler,
    Workflow,
    check_vocabulary,
)
from engine_core.workflows.tokenizer_threads import JobInputs, Text, TokenizerThreads
from workers.contract.config import ExecutionConfig, Task
from workers.contract.model_config import ModelConfig

_ITEM = 4  # bytes of an int32


class EncodeProcessor:
    """Turns texts or ids into rows in flat arrays, after checking that each fits the model."""

    def __init__(self, config: ExecutionConfig, num_blocks: int) -> None:
        self._item = "documents" if config.task in ("classify", "rerank") else "input"
        self._vocab_size = config.model.vocab_size
        self._most_tokens, self._bound = config.max_model_len, "this model takes at most"
        if config.model.has_kv_cache:
            kv_tokens = config.cache_layout.longest(num_blocks)
            if kv_tokens < config.max_model_len:
                self._most_tokens, self._bound = kv_tokens, "this model's KV cache holds"

    def texts(self, message: JobMessage) -> list[Text]:
        texts = message.texts
        if not isinstance(message, EncodeJob) or (query := message.query) is None:
            return list(texts)
        if message.ids:
            raise RefusalError("invalid_request", "this model scores pairs of texts, not token ids")
        queries = [query] * len(texts) if isinstance(query, str) else query
        if len(queries) != len(texts):
            raise RefusalError("invalid_request", f"{len(queries)} queries, {len(texts)} texts")
        return self._pairs(list(zip(queries, texts, strict=True)), message.instruction)

    def _pairs(self, pairs: list[tuple[str, str]], instruction: str | None) -> list[Text]:
        """The texts to tokenize for each query with its text."""
        del instruction
        return [*pairs]

    def prepare(self, inputs: JobInputs) -> Prepared:
        rows = self._checked(inputs)
        return Prepared(rows, rows.num_tokens)

    def _checked(self, inputs: JobInputs) -> EncoderRows:
        tokenized, message = inputs.tokenized, inputs.job.message
        lens = np.array([text.num_tokens for text in tokenized], np.int32)
        self._check_lengths(inputs, lens)
        marks = message.marks if isinstance(message, EncodeJob) else None
        texts = [text.ids for text in tokenized]
        rows = _rows(lens, texts) if marks is None else _marked(marks, texts)
        # Negative ones are beyond every vocabulary so.
        if np.frombuffer(b"".join(texts), np.uint32).max(initial=0) >= self._vocab_size:
            for index, ids in enumerate(texts):
                check_vocabulary(self._param(inputs, index), "holds", ids, self._vocab_size)
        rows.token_types += b"".join([text.segments for text in tokenized])
        if message.tokenization.truncate_to is not None:
            rows.dropped += np.array([text.dropped for text in tokenized], np.int32).tobytes()
        return rows

    def _check_lengths(self, inputs: JobInputs, lens: np.typing.NDArray[np.int32]) -> None:
        unpooled = inputs.job.message.tokenization.unpooled
        wrong = np.flatnonzero((lens <= unpooled) | (lens > self._most_tokens))
        if len(wrong):
            index = int(wrong[0])
            param = self._param(inputs, index)
            if lens[index] <= unpooled:
                behind = f" behind the {unpooled} of its prompt" if unpooled else ""
                raise RefusalError("invalid_request", f"{param} has no tokens{behind}", param)
            described = inputs.tokenized[index].described
            raise RefusalError(
                "context_length_exceeded",
                f"{param} has {described} tokens; {self._bound} {self._most_tokens}",
                param,
            )

    def _param(self, inputs: JobInputs, index: int) -> str:
        many = inputs.job.num_rows > 1
        return f"{self._item}[{inputs.first + index}]" if many else self._item


def _rows(lens: np.typing.NDArray[np.int32], texts: list[bytes]) -> EncoderRows:
    return EncoderRows(bytearray().join(texts), bytearray(lens.tobytes()))


def _marked(marks: Marks, texts: list[bytes]) -> EncoderRows:
    """The rows of texts with their `marks`."""
    marker = b"" if marks.marker is None else np.int32(marks.marker).tobytes()
    marked = [ids[:_ITEM] + marker + ids[_ITEM:] for ids in texts]
    added = [max(marks.length - len(ids) // _ITEM, 0) for ids in marked]
    filler = np.int32(marks.filler).tobytes()
    filled = [ids + count * filler for ids, count in zip(marked, added, strict=True)]
    rows = _rows(np.array([len(ids) // _ITEM for ids in filled], np.int32), filled)
    if marks.length and not marks.attended:
        rows.unattended += np.array(added, np.int32).tobytes()
    return rows


def encode_workflow(
    task: Task,
    vector_size: Callable[[ModelConfig], int],
    *others: Operation,
    processor: Callable[[ExecutionConfig, int], RequestProcessor] = EncodeProcessor,
    scheduler: Callable[..., Scheduler] = PrefillOnlyScheduler,
) -> Workflow:
    """The workflow of a model that encodes texts. `others` are its other operations."""
    return Workflow(
        task=task,
        operations=frozenset({"encode texts", *others}),
        preprocessor=lambda config, tokenizer: TokenizerThreads(
            tokenizer, config.max_model_len, whole=False
        ),
        processor=processor,
        scheduler=scheduler,
        vector_size=vector_size,
    )


WORKFLOWS: Mapping[Task, Workflow] = {
    "embed": encode_workflow("embed", lambda model: model.vector_size, "return token states"),
    # Vectors over the vocabulary, sent as their non-zero entries.
    "embed_sparse": encode_workflow("embed_sparse", lambda model: model.vocab_size),
    **{
        task: encode_workflow(task, lambda _: 0, "return token states")
        for task in ("embed_tokens", "classify_tokens")
    },
    "classify": encode_workflow("classify", lambda model: model.num_labels, "score pairs"),
}
