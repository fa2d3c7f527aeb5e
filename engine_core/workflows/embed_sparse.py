"""Sparse embeddings: one vector a text over the vocabulary, sent as its non-zero entries."""

from engine_core.schedulers.prefill_only import PrefillOnlyScheduler
from engine_core.workflows.base import Workflow
from engine_core.workflows.embed import EncoderProcessor, tokenizing_threads

WORKFLOW = Workflow(
    task="embed_sparse",
    operations=frozenset({"encode texts"}),
    preprocessor=tokenizing_threads,
    processor=EncoderProcessor,
    scheduler=PrefillOnlyScheduler,
    vector_size=lambda model: model.vocab_size,
)
