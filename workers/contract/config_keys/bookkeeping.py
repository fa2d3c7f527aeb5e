"""Keys of `config.json` that change no model's numbers, and keys that no family obeys.

As of transformers 5.23 and the versions before it, whose PretrainedConfig wrote the defaults of
generation too. What a checkpoint declares for sampling is read by `server/models`.
"""

from collections.abc import Mapping
from typing import Any

Neutral = Mapping[str, tuple[Any, ...]]
"""Keys that are not implemented though they can change a model's numbers -> the values with which
they do not. A checkpoint with another value is refused; one without the key is not."""

_ORIGIN = """
    _name_or_path _commit_hash _attn_implementation _attn_implementation_autoset attn_implementation
    _attn_implementation_internal architectures auto_map custom_pipelines finetuning_task
    model_type name_or_path transformers_version transformers.js_config unsloth_fixed
    unsloth_version task_specific_params language adapters
"""
_EXECUTION = """
    chunk_size_feed_forward dtype torch_dtype gradient_checkpointing output_attentions
    output_hidden_states output_past return_dict torchscript use_bfloat16 use_cache
    tie_encoder_decoder tie_last_hidden_states tf_legacy_loss use_flash_attn pretraining_tp
    deterministic_flash_attn is_training
"""
_TRAINING = """
    attention_dropout attention_probs_dropout_prob classifier_dropout dropout embd_pdrop
    embedding_dropout hidden_dropout hidden_dropout_prob initializer_cutoff_factor
    initializer_factor initializer_range label_smoothing mlp_dropout resid_pdrop
    summary_first_dropout
"""
_TOKENS = """
    bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids mask_token_id
    pad_token_id prefix sep_token_id tokenizer_class unk_token_id
"""
_GENERATION = """
    bad_words_ids begin_suppress_tokens cross_attention_hidden_size diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores
    remove_invalid_values repetition_penalty return_dict_in_generate suppress_tokens temperature
    top_k top_p typical_p
"""
_LABELS = "id2label label2id num_labels problem_type _num_labels"

_NAMES = frozenset(
    " ".join((_ORIGIN, _EXECUTION, _TRAINING, _TOKENS, _GENERATION, _LABELS)).split()
)
_PREFIXES = ("uniem_",)
"""Of keys in which a library of training keeps its own settings."""


def is_bookkeeping(name: str) -> bool:
    """Whether key `name` changes no model's numbers."""
    return name in _NAMES or name.startswith(_PREFIXES)


NOT_SUPPORTED: Neutral = {
    "add_cross_attention": (False, None),
    "attention_chunk_size": (None,),
    "compression_config": (None,),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "per_layer_config": (None, {}),
    "pruned_heads": (None, {}),
    "quantization": (None,),
    "quantization_config": (None,),
}
"""Values of other keys of any family; with another value a checkpoint is refused."""
