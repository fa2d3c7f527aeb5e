"""Memory that the stages of a model need: nothing is loaded yet."""

import re

from server.models.model_source import WeightHeads
from workers.contract.checkpoint.architectures import family_of
from workers.contract.config import ITEM_BYTES, ExecutionConfig
from workers.contract.model_config import DenseConfig, ModelConfig, inner_name, wrapper_names
from workers.contract.quantization import FP4_BYTES
from workers.contract.share import even_layers, shares_of

_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks)\.(\d+)\.")
_FIRST = re.compile(r"embed|per_layer")
_SCALE = re.compile(r"_scale(_inv)?$")
_LM_HEAD = re.compile(r"(?:^|\.)(?:lm_head|predictions)(?:\.decoder)?\.weight$")


def planned_layers(execution: ExecutionConfig) -> tuple[int, ...]:
    """The layers of each stage, if nothing that is measured at start changes them."""
    return execution.stage_layers or even_layers(execution.model, execution.num_stages)


def weight_bytes(execution: ExecutionConfig, heads: WeightHeads | None) -> list[int]:
    """Bytes of the weights of each stage, in the types in which its devices hold them.

    By the files' `heads`. Without, by the shape: all but norms and biases, which are small, as are
    scales of FP8.

    The first stage also has the embedding, the last one the LM head (one matrix if they are tied
    and on one stage), or an embedder's Dense modules.
    """
    sizes = _bytes_by_name(execution, heads) if heads else _bytes_of_shape(execution)
    if execution.task == "embed":
        sizes[-1] += _module_elements(execution.model) * ITEM_BYTES[execution.dtype]
    return sizes


def _module_elements(model: ModelConfig) -> int:
    dense = [module for module in model.modules if isinstance(module, DenseConfig)]
    return sum(module.in_features * module.out_features for module in dense)


def _bytes_by_name(execution: ExecutionConfig, elements: dict[str, int]) -> list[int]:
    """Tensors of no layer are on the first stage if they make its input, else on the last."""
    model, sizes = execution.model, [0] * execution.num_stages
    stages = [stage for stage, n in enumerate(planned_layers(execution)) for _ in range(n)]
    unread = re.compile(rf"unused\.|{model.unread}")
    reads_lm_head = _has_lm_head(execution) and not model.tie_word_embeddings
    for stored, count in elements.items():
        name = inner_name(stored) if model.wrapped else stored
        if name is None or (_LM_HEAD.search(name) and not reads_lm_head) or _SCALE.search(name):
            continue
        canonical = family_of(model.architecture).canonical_name(name)
        layer = _LAYER.search(canonical)
        if unread.match(canonical) or (layer and int(layer[1]) >= len(stages)):
            continue
        if layer:
            own = range(len(sizes)) if model.shared_layers else [stages[int(layer[1])]]
            for stage in own:
                sizes[stage] += count * _layer_item_bytes(execution, name)
        else:
            sizes[0 if _FIRST.search(name) else -1] += count * ITEM_BYTES[execution.dtype]
    return _with_tied_copy(execution, sizes)


def _layer_item_bytes(execution: ExecutionConfig, name: str) -> int:
    """Bytes of an element of a layer's tensor. Its norms and biases count as its products do."""
    model, own = execution.model, execution.model.quantization
    canonical = family_of(model.architecture).canonical_name(name).removesuffix(".weight")
    if name.endswith(("_blocks", "_scales")):  # of MXFP4, bytes of two numbers, and of scales
        numbers = 2 if name.endswith("_blocks") else 0
        return 1 if execution.fp8_item_bytes == 1 else numbers * ITEM_BYTES[execution.dtype]
    layer = name.removesuffix(".weight")
    others = wrapper_names(layer) if model.wrapped else (layer,)
    in_fp8 = own is not None and own.keeps(canonical, *others)
    return execution.fp8_item_bytes if in_fp8 else ITEM_BYTES[execution.dtype]


def _bytes_of_shape(execution: ExecutionConfig) -> list[int]:
    model, item = execution.model, ITEM_BYTES[execution.dtype]
    layers = [range(1) if model.shared_layers else own for own in _layers_of_stages(execution)]
    sizes = [sum(_bytes_of_layer(execution, layer) for layer in own) for own in layers]
    sizes[0] += model.vocab_size * model.embedding_size * item
    sizes[0] += model.input_numbers * item
    if _has_lm_head(execution) and not model.tie_word_embeddings:
        sizes[-1] += model.vocab_size * model.embedding_size * item
    return _with_tied_copy(execution, sizes)


def _bytes_of_layer(execution: ExecutionConfig, layer: int) -> int:
    model, item = execution.model, ITEM_BYTES[execution.dtype]
    numbers, own, experts = model.numbers_of(layer), model.quantization, model.experts
    if experts is None or own is None or not own.in_fp4 or execution.fp8_item_bytes > 1:
        return numbers * (execution.fp8_item_bytes if execution.weights_in_fp8 else item)
    in_fp4 = model.expert_numbers(layer) * experts.count
    return (numbers - in_fp4) * item + int(in_fp4 * FP4_BYTES)


def _has_lm_head(execution: ExecutionConfig) -> bool:
    # A reranker loads a row or two of its LM head.
    return execution.task in ("generate", "embed_sparse")


def _with_tied_copy(execution: ExecutionConfig, sizes: list[int]) -> list[int]:
    """Add the copy of a tied embedding that the last of several stages has."""
    model = execution.model
    if len(sizes) > 1 and model.tie_word_embeddings and _has_lm_head(execution):
        sizes[-1] += model.vocab_size * model.embedding_size * ITEM_BYTES[execution.dtype]
    return sizes


def largest_kv_cache(execution: ExecutionConfig) -> int:
    """Bytes of the largest stage's KV cache for all that running sequences could ever use."""
    return execution.cache_layout.usable(execution.max_running) * max(kv_block_bytes(execution))


def kv_block_bytes(execution: ExecutionConfig) -> list[int]:
    """Bytes of a block of KV cache on each stage."""
    return [execution.kv_block_bytes(layers) for layers in _layers_of_stages(execution)]


def _layers_of_stages(execution: ExecutionConfig) -> list[range]:
    return [share.layers for share in shares_of(planned_layers(execution))]
