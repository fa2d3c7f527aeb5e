"""Scores of (query, text) pairs: the encoder with another head and another way to tokenize."""

from engine_core.job import RefusalError
from engine_core.messages import EncodeJob, GenerateJob
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from engine_core.tokenizing import Text
from engine_core.workflows.base import Workflow
from engine_core.workflows.encoder import EncoderProcessor


class CrossEncoderProcessor(EncoderProcessor):
    """Each text is tokenized together with the query, as one pair."""

    item = "documents"

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        if isinstance(message, GenerateJob) or message.query is None:
            raise RefusalError("invalid_request", "this model scores pairs of a query and a text")
        return [(message.query, text) for text in message.texts]


WORKFLOW = Workflow(
    head="classify",
    tasks=("score",),
    processor=CrossEncoderProcessor,
    scheduler=PrefillOnlyScheduler,
    vector_size=lambda model: model.num_labels,
)
