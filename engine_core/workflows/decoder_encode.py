"""Embeddings and scores by a causal model: prompts on the decoder's scheduler, not continued.

So long texts are computed in chunks, and texts that begin alike share the computed beginning. A
pair fills a template: all before its text is a prefix, computed once for each query.
"""

from array import array
from collections.abc import Mapping
from functools import partial

from engine_core.messages import EncodeJob, JobMessage, SamplingParams
from engine_core.refusal import RefusalError
from engine_core.schedulers.decoder import DecoderScheduler
from engine_core.schedulers.request import Request
from engine_core.tokenization.tokenized import TextPieces
from engine_core.workflows.base import Prepared, Workflow
from engine_core.workflows.encode import EncodeProcessor, encode_workflow
from engine_core.workflows.tokenizer_threads import JobInputs, Text
from workers.contract.config import ExecutionConfig, Task
from workers.contract.reranking import UNKNOWN_TEMPLATE

_NOT_CONTINUED = SamplingParams(max_tokens=0)


class PromptProcessor(EncodeProcessor):
    """Turns each text, or a template with a query and a text, into a request that is not
    continued."""

    def __init__(self, config: ExecutionConfig, num_blocks: int) -> None:
        super().__init__(config, num_blocks)
        self._only_pairs = config.task == "rerank"
        declared = None if config.task == "embed" else config.model.reranking
        self._template = None if declared is None else declared.known_template

    def texts(self, message: JobMessage) -> list[Text]:
        if self._only_pairs and (not isinstance(message, EncodeJob) or message.query is None):
            raise RefusalError("invalid_request", "this model scores pairs of a query and a text")
        return super().texts(message)

    def _pairs(self, pairs: list[tuple[str, str]], instruction: str | None) -> list[Text]:
        if (template := self._template) is None:
            raise RefusalError("invalid_request", f"this model scores no pairs: {UNKNOWN_TEMPLATE}")
        pieces = {query: template.filled(query, instruction) for query in {q for q, _ in pairs}}
        return [TextPieces(pieces[query], template.cut_piece, text) for query, text in pairs]

    def prepare(self, inputs: JobInputs) -> Prepared:
        tokens = self._checked(inputs).num_tokens
        texts = [*enumerate(inputs.tokenized, inputs.first)]
        if inputs.job.is_batch:
            # What begins alike is side by side.
            texts.sort(key=lambda numbered: numbered[1].ids)
        requests = (
            Request(
                job=inputs.job,
                row=row,
                params=_NOT_CONTINUED,
                tokens=array("i", text.ids),
                max_len=text.num_tokens,
                seed=0,
                dropped=text.dropped,
            )
            for row, text in texts
        )
        return Prepared(requests, tokens)


_prompts = partial(encode_workflow, processor=PromptProcessor, scheduler=DecoderScheduler)
_PAIRS = ("score pairs", "follow an instruction")

WORKFLOWS: Mapping[Task, Workflow] = {
    "embed": _prompts("embed", lambda model: model.vector_size),
    "classify": _prompts("classify", lambda model: model.num_labels, *_PAIRS),
    "rerank": _prompts("rerank", lambda model: model.num_labels, *_PAIRS),
}
