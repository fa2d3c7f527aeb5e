"""A logit a label by a causal model with a classifier: that of the last token of a text, or of the
template with a query and a text."""

from functools import partial

from engine_core.messages import EncodeJob, GenerateJob
from engine_core.tokenization.job_inputs import Text
from engine_core.workflows.base import Workflow
from engine_core.workflows.decoder_embed import PromptProcessor, PromptScheduler
from engine_core.workflows.embed import tokenizer_threads_for
from engine_core.workflows.rerank import TemplateProcessor


class PromptClassifierProcessor(TemplateProcessor):
    """Texts without a query stay as they are."""

    def texts(self, message: GenerateJob | EncodeJob) -> list[Text]:
        if isinstance(message, GenerateJob) or message.query is None:
            return list(message.texts)
        return super().texts(message)


WORKFLOW = Workflow(
    task="classify",
    operations=frozenset({"encode texts", "score pairs", "follow an instruction"}),
    preprocessor=tokenizer_threads_for,
    processor=partial(PromptProcessor, items=PromptClassifierProcessor),
    scheduler=PromptScheduler,
    vector_size=lambda model: model.num_labels,
)
