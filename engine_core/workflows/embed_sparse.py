"""Sparse embeddings: one vector a text, of the size of the vocabulary, told by what is not zero."""

from engine_core.job import RefusalError
from engine_core.messages import EncodeJob, GenerateJob
from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from engine_core.tokenization.tokenizer_threads import Text
from engine_core.workflows.base import Workflow
from engine_core.workflows.embed import EncoderProcessor


class SparseEncoderProcessor(EncoderProcessor):
    """Texts as an encoder takes them; its token states are nobody's business."""

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        if isinstance(message, EncodeJob) and message.token_states:
            raise RefusalError("invalid_request", "this model tells no states of tokens")
        return super().texts(message)


WORKFLOW = Workflow(
    head="embed_sparse",
    tasks=("embed_sparse",),
    processor=SparseEncoderProcessor,
    scheduler=PrefillOnlyScheduler,
    vector_size=lambda model: model.vocab_size,
)
