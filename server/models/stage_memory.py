"""What the stages of a model need of memory, by its shape alone: nothing is loaded yet."""

from workers.contract.config import ITEM_BYTES, ExecutionConfig
from workers.contract.share import even_split


def planned_layers(execution: ExecutionConfig) -> tuple[int, ...]:
    """How many layers each stage computes, if nothing that is measured at start changes it."""
    return execution.stage_layers or even_split(execution.model.num_layers, execution.num_stages)


def weight_bytes(execution: ExecutionConfig) -> list[int]:
    """Bytes of the matrices of each stage (norms and biases are too small to count).

    The first stage also has the embedding, the last one the LM head. Where the two are tied, they
    are one matrix on a stage that has both.
    """
    model, generates = execution.model, execution.task == "generate"
    hidden = model.hidden_size
    attention = 2 * hidden * (model.num_heads + model.num_kv_heads) * model.head_dim
    mlp = (3 if generates else 2) * hidden * model.intermediate_size  # a generator's has a gate
    sizes = [layers * (attention + mlp) for layers in planned_layers(execution)]
    vocabulary = model.vocab_size * hidden
    sizes[0] += vocabulary
    has_lm_head = execution.task in ("generate", "embed_sparse")
    if has_lm_head and not (model.tie_word_embeddings and execution.num_stages == 1):
        sizes[-1] += vocabulary
    return [size * ITEM_BYTES[execution.dtype] for size in sizes]


def largest_kv_cache(execution: ExecutionConfig) -> int:
    """Bytes of the largest stage's KV cache for `max_running` sequences of full length."""
    model = execution.model
    blocks = execution.max_running * -(-execution.max_model_len // execution.block_size)
    token = 2 * model.num_kv_heads * model.head_dim * ITEM_BYTES[execution.dtype]
    return blocks * execution.block_size * token * max(planned_layers(execution))
