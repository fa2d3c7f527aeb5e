"""A logit a label, for texts or for (query, text) pairs: the encoder with another head."""

from engine_core.messages import EncodeJob, GenerateJob
from engine_core.refusal import RefusalError
from engine_core.schedulers.prefill_only.scheduler import PrefillOnlyScheduler
from engine_core.tokenization.job_inputs import Text
from engine_core.workflows.base import Workflow
from engine_core.workflows.embed import EncoderProcessor, tokenizer_threads_for


class CrossEncoderProcessor(EncoderProcessor):
    """Each text is tokenized together with its query, as one pair, or alone without a query."""

    item = "documents"

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        texts = message.texts
        if isinstance(message, GenerateJob) or (queries := message.query) is None:
            return list(texts)
        if message.ids:
            raise RefusalError("invalid_request", "this model scores pairs of texts, not token ids")
        if isinstance(queries, str):
            return [(queries, text) for text in texts]
        if len(queries) != len(texts):
            raise RefusalError("invalid_request", f"{len(queries)} queries, {len(texts)} texts")
        return list(zip(queries, texts, strict=True))


WORKFLOW = Workflow(
    task="classify",
    operations=frozenset({"encode texts", "score pairs"}),
    preprocessor=tokenizer_threads_for,
    processor=CrossEncoderProcessor,
    scheduler=PrefillOnlyScheduler,
    vector_size=lambda model: model.num_labels,
)
