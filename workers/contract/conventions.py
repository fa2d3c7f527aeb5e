"""What sentence-transformers assumes about a checkpoint that is used for a task."""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.contract.config import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """One task's, each with the file whose entry must agree:

    library_class  its class for such models, None if it has none: `model_type` in
                   config_sentence_transformers.json
    task           the task for which its first module runs the model: `transformer_task` in
                   sentence_bert_config.json
    output         the model's output that the module passes on: `method_output_name` there
    output_name    the name under which it does: `module_output_name` there
    pooling        the type of its second module in modules.json, None if there is none
    after_pooling  types that may follow
    templated      whether texts are put into a template of ours, which takes the place of what the
                   files say of chat templates and prompts
    """

    library_class: str | None
    task: str
    output: str
    output_name: str
    pooling: str | None
    after_pooling: tuple[str, ...] = ()
    templated: bool = False


CONVENTIONS: Mapping[Task, Conventions] = {
    "generate": Conventions(
        library_class=None,
        task="text-generation",
        output="logits",
        output_name="causal_logits",
        pooling=None,
    ),
    "embed": Conventions(
        library_class="SentenceTransformer",
        task="feature-extraction",
        output="last_hidden_state",
        output_name="token_embeddings",
        pooling="Pooling",
        after_pooling=("Dense", "LayerNorm", "Normalize", "Dropout"),
    ),
    "embed_sparse": Conventions(
        library_class="SparseEncoder",
        task="fill-mask",
        output="logits",
        output_name="token_embeddings",
        pooling="SpladePooling",
    ),
    "classify": Conventions(
        library_class="CrossEncoder",
        task="sequence-classification",
        output="logits",
        output_name="scores",
        pooling=None,
    ),
    "rerank": Conventions(
        library_class="CrossEncoder",
        task="text-generation",
        output="logits",
        output_name="causal_logits",
        pooling=None,
        after_pooling=("LogitScore",),
        templated=True,
    ),
}
