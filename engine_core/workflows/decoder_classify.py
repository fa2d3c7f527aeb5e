"""A logit a label by a causal model with a classifier: that of a text's or a pair's last token."""

from functools import partial

from engine_core.workflows.base import Workflow
from engine_core.workflows.classify import CrossEncoderProcessor
from engine_core.workflows.decoder_embed import PromptProcessor, PromptScheduler
from engine_core.workflows.embed import tokenizer_threads_for

WORKFLOW = Workflow(
    task="classify",
    operations=frozenset({"encode texts", "score pairs"}),
    preprocessor=tokenizer_threads_for,
    processor=partial(PromptProcessor, items=CrossEncoderProcessor),
    scheduler=PromptScheduler,
    vector_size=lambda model: model.num_labels,
)
