"""Keys of `tokenizer_config.json` that change neither ids nor prompts, and keys with one value.

As of transformers 5.23 and the versions before it, where there is a `tokenizer.json`: then what is
added around texts stands there alone, whatever `add_bos_token` and `add_eos_token` say.
"""

from workers.contract.checkpoint.config_keys import Neutral

_ORIGIN = """
    _commit_hash _from_auto _name_or_path name_or_path auto_map backend cache_dir device_map
    force_download from_slow is_local local_files_only processor_class revision subfolder token
    tokenizer_class tokenizer_type slow_tokenizer_class transformers_version trust_remote_code
    use_auth_token use_fast verbose model_type dtype torch_dtype unsloth_fixed unsloth_version
    task language
"""
_FILES = """
    added_tokens_file files_loaded full_tokenizer_file merges_file special_tokens_map_file
    tokenizer_config_file tokenizer_file vocab_file
"""
_LENGTHS = """
    max_len max_len_sentences_pair max_len_single_sentence max_length max_seq_length
    model_max_length pad_to_multiple_of padding padding_side stride truncation truncation_side
    truncation_strategy
"""
_OUTPUTS = """
    model_input_names pad_token_type_id return_attention_mask return_token_type_ids
"""
_DECODING = """
    clean_up_tokenization_spaces decode_with_prefix_space errors skip_special_tokens
    clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    spaces_between_special_tokens trim_offsets
"""
_SLOW_FORM = """
    add_bos_token add_eos_token do_basic_tokenize end_n_top extra_ids handle_chinese_chars
    keep_accents legacy_behaviour mecab_kwargs never_split remove_space sp_model_kwargs
    split_by_punct start_n_top suffix_first unk_id vocab_size vocab_type wordpieces_prefix
"""
_CHATS = """
    chat_control_tokens chat_template response_schema response_template tool_parser_type
    use_default_system_prompt
"""
_IDS = """
    bos_token_id cls_token_id eos_token_id image_token_id mask_token_id pad_token_id sep_token_id
    unk_token_id
"""

BOOKKEEPING = frozenset(
    " ".join((_ORIGIN, _FILES, _LENGTHS, _OUTPUTS, _DECODING, _SLOW_FORM, _CHATS, _IDS)).split()
)

NOT_SUPPORTED: Neutral = {
    "fast_tokenizer_files": (None, [], ["tokenizer.json"]),
    "init_inputs": (None, []),
    "split_special_tokens": (None, False),
}
"""Values of keys of any class; with another value a checkpoint is refused."""
