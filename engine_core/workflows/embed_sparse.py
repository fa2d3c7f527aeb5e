"""Sparse embeddings: one vector a text over the vocabulary, sent as its non-zero entries."""

from engine_core.schedulers.prefill_only.scheduler import PrefillOnlyScheduler
from engine_core.workflows.base import Workflow
from engine_core.workflows.embed import EncoderProcessor, tokenizer_threads_for

WORKFLOW = Workflow(
    task="embed_sparse",
    operations=frozenset({"encode texts"}),
    preprocessor=tokenizer_threads_for,
    processor=EncoderProcessor,
    scheduler=PrefillOnlyScheduler,
    vector_size=lambda model: model.vocab_size,
)
