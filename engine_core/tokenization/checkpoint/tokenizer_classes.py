"""The classes of transformers that read tokenizers of the families that are served."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_core.tokenization.checkpoint.class_rules import (
    AroundTexts,
    FieldOfRule,
    KeyRule,
    Legacy,
    MistralRegex,
    PrefixSpace,
    UnknownToken,
)


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """The named tokens that a class has unless a checkpoint says otherwise, and the rules for the
    keys that only some classes read.

    With `resets_special`, special tokens that tokenizer.json lacks take no white space with them.
    """

    tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    rules: tuple[KeyRule, ...] = ()
    resets_special: bool = False


EVERY_CLASS: tuple[KeyRule, ...] = (MistralRegex(),)

_CLS_SEP = (AroundTexts("cls_token", 0), AroundTexts("sep_token", -1))
_BOS_EOS = (AroundTexts("bos_token", 0), AroundTexts("eos_token", -1))
_BERT_TEXTS = (
    FieldOfRule("do_lower_case", "BertNormalizer", "lowercase", default=True),
    FieldOfRule("strip_accents", "BertNormalizer", "strip_accents", default=None),
    FieldOfRule("tokenize_chinese_chars", "BertNormalizer", "handle_chinese_chars", default=True),
)
_BYTE_LEVEL = FieldOfRule("add_prefix_space", "ByteLevel", "add_prefix_space", default=False)

_BERT_TOKENS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_HERBERT_TOKENS = {
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_ROBERTA_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", **_HERBERT_TOKENS}
_LLAMA_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_CODE_LLAMA_TOKENS = {
    **_LLAMA_TOKENS,
    "prefix_token": "▁<PRE>",
    "middle_token": "▁<MID>",
    "suffix_token": "▁<SUF>",
    "eot_token": "▁<EOT>",
    "fill_token": "<FILL_ME>",
}
_GEMMA_TOKENS = {
    "unk_token": "<unk>",
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
_END = "<|endoftext|>"
_GPT2_TOKENS = {"unk_token": _END, "bos_token": _END, "eos_token": _END}
_QWEN2_TOKENS = {"unk_token": _END, "eos_token": _END, "pad_token": _END}

GENERIC = TokenizerClass()
"""A class that reads tokenizer.json as it is, and nothing else but tokens."""

_BERT = TokenizerClass(_BERT_TOKENS, (*_BERT_TEXTS, *_CLS_SEP, UnknownToken()))
_MPNET = TokenizerClass(
    {**_ROBERTA_TOKENS, "unk_token": "[UNK]"}, (*_BERT_TEXTS, *_CLS_SEP, UnknownToken())
)
_ROBERTA = TokenizerClass(_ROBERTA_TOKENS, (_BYTE_LEVEL, *_CLS_SEP))
_UNIGRAM = TokenizerClass(_ROBERTA_TOKENS, (PrefixSpace(), *_BOS_EOS))
_LLAMA = TokenizerClass(_LLAMA_TOKENS, (PrefixSpace(), Legacy()))

_CLASSES: Mapping[str, TokenizerClass] = {
    "TokenizersBackend": GENERIC,
    "PreTrainedTokenizer": GENERIC,
    "PythonBackend": GENERIC,
    "BloomTokenizer": GENERIC,
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "SqueezeBertTokenizer": _BERT,
    "ConvBertTokenizer": _BERT,
    "HerbertTokenizer": TokenizerClass(_HERBERT_TOKENS, (*_CLS_SEP, UnknownToken())),
    "MPNetTokenizer": _MPNET,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _UNIGRAM,
    "CamembertTokenizer": _UNIGRAM,
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": TokenizerClass(_CODE_LLAMA_TOKENS, (PrefixSpace(),)),
    "GemmaTokenizer": TokenizerClass(_GEMMA_TOKENS, (UnknownToken(),)),
    "GPT2Tokenizer": TokenizerClass(_GPT2_TOKENS, (_BYTE_LEVEL,)),
    "GPTNeoXTokenizer": TokenizerClass(
        {**_GPT2_TOKENS, "pad_token": "<|padding|>"}, (_BYTE_LEVEL,)
    ),
    "Qwen2Tokenizer": TokenizerClass(_QWEN2_TOKENS, (_BYTE_LEVEL,), resets_special=True),
}
"""By names without `Fast`."""

_OF_MODELS: Mapping[str, str] = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "qwen3": "Qwen2Tokenizer",
}
"""The class of each `model_type` whose checkpoints name none."""

_WHATEVER_IS_NAMED: Mapping[str, str] = {
    "mistral": "TokenizersBackend",
    "modernbert": "TokenizersBackend",
    "phi3": "TokenizersBackend",
    "qwen2": "Qwen2Tokenizer",
}
"""The class of each `model_type` whose checkpoints are known to name another."""

_LLAMA_NAME, _ANY = "LlamaTokenizer", "TokenizersBackend"

KEYS_OF_CLASSES = frozenset(
    rule.key
    for rules in (EVERY_CLASS, *(each.rules for each in _CLASSES.values()))
    for rule in rules
)
"""Keys that some class reads. The others do not, as in transformers."""


def tokenizer_class(
    model_type: str, named: str | None, *, byte_level: bool
) -> TokenizerClass | None:
    """The class with which AutoTokenizer reads a checkpoint's tokenizer.json, which has a
    `byte_level` rule or has not; None if it is not known here."""
    name = _WHATEVER_IS_NAMED.get(model_type) or named or _OF_MODELS.get(model_type, _ANY)
    name = name.removesuffix("Fast")
    return GENERIC if name == _LLAMA_NAME and byte_level else _CLASSES.get(name)
