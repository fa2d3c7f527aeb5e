"""Settings as well-known checkpoints have them are accepted, and their `tokenizer.json` stands."""

from typing import Any

import pytest

from tests.engine_core.tokenization import tokenizer_folders as kinds
from tests.engine_core.tokenization.test_auto_tokenizer import check_as_auto_tokenizer

BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
BERT |= {"pad_token": "[PAD]", "tokenizer_class": "BertTokenizer", "strip_accents": None}
BERT |= {"do_lower_case": True, "tokenize_chinese_chars": True, "model_max_length": 512}
SAVED = {"max_length": 512, "pad_to_multiple_of": None, "pad_token_type_id": 0}
SAVED |= {"padding_side": "right", "stride": 0, "truncation_side": "right"}
SAVED |= {"truncation_strategy": "longest_first", "clean_up_tokenization_spaces": True}
OLD = {"name_or_path": "a/b", "special_tokens_map_file": "/x.json", "tokenizer_file": None}
OLD |= {"do_basic_tokenize": True, "never_split": None, "full_tokenizer_file": None}
XLMR = {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>", "eos_token": "</s>"}
XLMR |= {"unk_token": "<unk>", "pad_token": "<pad>", "model_max_length": 512}
LLAMA2 = {"add_bos_token": True, "add_eos_token": False, "sp_model_kwargs": {}, "pad_token": None}
LLAMA2 |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
LLAMA2 |= {"tokenizer_class": "LlamaTokenizer", "clean_up_tokenization_spaces": False}
QWEN2 = {"add_prefix_space": False, "bos_token": None, "clean_up_tokenization_spaces": False}
QWEN2 |= {"eos_token": "<|im_end|>", "errors": "replace", "pad_token": "<|endoftext|>"}
QWEN2 |= {"split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
GEMMA = {"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "<eos>"}
GEMMA |= {"pad_token": "<pad>", "unk_token": "<unk>", "tokenizer_class": "GemmaTokenizer"}
GEMMA |= {"spaces_between_special_tokens": False, "use_default_system_prompt": False}
LLAMA3 = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "model_max_length": 131072}
LLAMA3 |= {"model_input_names": ["input_ids", "attention_mask"]}
LLAMA3 |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": True}

PUBLISHED = {
    "bert, of the first versions": (kinds.bert, {"do_lower_case": True}),
    "minilm": (kinds.bert, BERT | OLD),
    "bge": (kinds.bert, BERT | SAVED | {"never_split": None, "do_basic_tokenize": True}),
    "nomic": (kinds.bert, BERT | {"model_max_length": 8192}),
    "mpnet": (
        kinds.mpnet,
        {"mask_token": "<mask>", "tokenizer_class": "MPNetTokenizer", "do_lower_case": True}
        | {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
        | {"pad_token": "<pad>", "unk_token": "[UNK]", "strip_accents": None}
        | OLD
        | SAVED,
    ),
    "roberta": (
        kinds.roberta,
        XLMR | {"add_prefix_space": False, "errors": "replace", "trim_offsets": True},
    ),
    "e5": (
        kinds.xlm_roberta,
        XLMR | {"tokenizer_class": "XLMRobertaTokenizer", "sp_model_kwargs": {}},
    ),
    "bge-m3": (
        kinds.xlm_roberta,
        XLMR | {"tokenizer_class": "XLMRobertaTokenizer", "add_prefix_space": True} | SAVED,
    ),
    "camembert": (kinds.camembert, {"tokenizer_class": "CamembertTokenizer", **XLMR}),
    "modernbert": (
        lambda: kinds.gpt2("modernbert"),
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192},
    ),
    "llama 2": (kinds.llama2, LLAMA2 | {"legacy": False, "padding_side": "right"}),
    "tinyllama": (kinds.llama2, LLAMA2 | {"legacy": False, "add_prefix_space": None}),
    "vicuna": (
        kinds.llama2,
        LLAMA2 | {"do_lower_case": False, "handle_chinese_chars": True, "start_n_top": None},
    ),
    "code llama": (
        kinds.llama2,
        LLAMA2
        | {"tokenizer_class": "CodeLlamaTokenizer", "suffix_first": False}
        | {"legacy": None, "use_default_system_prompt": False},
    ),
    "llama 3": (kinds.llama3, LLAMA3),
    "smollm2": (kinds.gpt2, {"tokenizer_class": "GPT2Tokenizer", "vocab_size": 49152}),
    "mistral": (
        lambda: kinds.llama3("mistral"),
        LLAMA2
        | {"bos_token": "<|begin|>", "eos_token": "<|end|>", "unk_token": "<|end|>"}
        | {"legacy": False, "add_prefix_space": None, "tokenizer_class": "LlamaTokenizer"},
    ),
    "zephyr": (
        lambda: kinds.llama3("mistral"),
        LLAMA3 | {"legacy": True, "truncation_side": "left", "tokenizer_class": "LlamaTokenizer"},
    ),
    "phi 3": (
        lambda: kinds.llama3("phi3"),
        LLAMA3 | {"add_bos_token": False, "legacy": False, "tokenizer_class": "LlamaTokenizer"},
    ),
    "phi 4": (
        lambda: kinds.gpt2("phi3"),
        {"add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"},
    ),
    "qwen 2.5": (kinds.qwen2, QWEN2 | {"add_bos_token": False}),
    "qwen 3": (lambda: kinds.qwen2("qwen3"), QWEN2 | {"add_bos_token": False}),
    "gte-qwen2": (
        kinds.qwen2,
        QWEN2 | {"add_eos_token": True, "auto_map": {"AutoTokenizer": ["a.B", "a.BFast"]}},
    ),
    "deepseek's qwen": (
        kinds.qwen2,
        {"add_bos_token": True, "legacy": True, "sp_model_kwargs": {}, "unk_token": None}
        | {"bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "normalized": True}}
        | {"tokenizer_class": "LlamaTokenizerFast", "model_max_length": 16384},
    ),
    "gemma 2": (kinds.gemma, GEMMA | {"sp_model_kwargs": {}}),
    "gemma 3": (
        lambda: kinds.gemma("gemma3_text"),
        GEMMA
        | {"sp_model_kwargs": None, "processor_class": "Gemma3Processor"}
        | {"boi_token": "<start_of_turn>", "image_token": "<start_of_turn>"}
        | {"extra_special_tokens": {"boi_token": "<start_of_turn>"}},
    ),
    "saved by transformers 5": (
        kinds.llama3,
        {"backend": "tokenizers", "is_local": False, "local_files_only": False}
        | {"bos_token": "<|begin|>", "eos_token": "<|end|>", "fix_mistral_regex": True}
        | {"extra_special_tokens": ["<|im_start|>"], "tokenizer_class": "TokenizersBackend"},
    ),
}


@pytest.mark.parametrize(("kind", "settings"), PUBLISHED.values(), ids=PUBLISHED)
def test_settings_of_published_checkpoints(tmp_path: Any, kind: Any, settings: Any) -> None:
    folder = kind()
    declared = folder.config.get("added_tokens_decoder")
    folder.config = {"added_tokens_decoder": declared} | settings
    ours = check_as_auto_tokenizer(folder.write(tmp_path))
    for text in ("Hello there hill", "water falls, the quick brown fox", "é中 1234"):
        assert ours.raw.encode(text).ids == folder.tokenizer.encode(text).ids
