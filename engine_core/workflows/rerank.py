"""Scores of pairs by a causal model: its prompt has query and document, and asks for an answer.

The template's beginning and the query are a prefix of every document's prompt, so that they are
computed once.
"""

from functools import partial

from engine_core.messages import EncodeJob, GenerateJob
from engine_core.refusal import RefusalError
from engine_core.tokenization.job_inputs import Text
from engine_core.tokenization.text_pieces import TextPieces
from engine_core.workflows.base import Workflow
from engine_core.workflows.decoder_embed import PromptProcessor, PromptScheduler
from engine_core.workflows.embed import EncoderProcessor, tokenizer_threads_for
from workers.contract.config import ExecutionConfig
from workers.contract.reranking import UNKNOWN_TEMPLATE


class TemplateProcessor(EncoderProcessor):
    """Puts each text and its query into the template. Without one it refuses them."""

    item = "documents"

    def __init__(self, config: ExecutionConfig, num_blocks: int) -> None:
        super().__init__(config, num_blocks)
        declared = config.model.reranking
        self._template = None if declared is None else declared.known_template

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        if isinstance(message, GenerateJob) or message.query is None or message.ids:
            raise RefusalError("invalid_request", "this model scores pairs of a query and a text")
        if (template := self._template) is None:
            raise RefusalError("invalid_request", f"this model scores no pairs: {UNKNOWN_TEMPLATE}")
        instruction, queries, texts = message.instruction, message.query, message.texts
        if isinstance(queries, str):
            pieces = template.filled(queries, instruction)
            return [TextPieces(pieces, template.cut_piece, text) for text in texts]
        if len(queries) != len(texts):
            raise RefusalError("invalid_request", f"{len(queries)} queries, {len(texts)} texts")
        return [
            TextPieces(template.filled(query, instruction), template.cut_piece, text)
            for query, text in zip(queries, texts, strict=True)
        ]


WORKFLOW = Workflow(
    task="rerank",
    operations=frozenset({"encode texts", "score pairs", "follow an instruction"}),
    preprocessor=tokenizer_threads_for,
    processor=partial(PromptProcessor, items=TemplateProcessor),
    scheduler=PromptScheduler,
    vector_size=lambda model: model.num_labels,
)
