"""The classes of transformers that read tokenizers of the families that are served."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine_core.tokenization.checkpoint.class_rules import (
    KeyRule,
    field_of_rule,
    legacy,
    mistral_regex,
    prefix_space,
    token_around_texts,
    unknown_token,
)


@dataclass(frozen=True, slots=True)
class TokenizerClass:
    """The named tokens that a class has unless a checkpoint says otherwise, and the rules for the
    keys that only some classes read.

    With `resets_special`, special tokens that tokenizer.json lacks take no white space with them.
    """

    tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    rules: Mapping[str, KeyRule] = field(default_factory=dict[str, KeyRule])
    resets_special: bool = False


def _tokens(**texts: str) -> dict[str, str]:
    return {f"{name}_token": text for name, text in texts.items()}


EVERY_CLASS: Mapping[str, KeyRule] = {"fix_mistral_regex": mistral_regex}

_CLS_SEP = {"cls_token": token_around_texts(0), "sep_token": token_around_texts(-1)}
_BOS_EOS = {"bos_token": token_around_texts(0), "eos_token": token_around_texts(-1)}
_BERT_TEXTS = {
    "do_lower_case": field_of_rule("BertNormalizer", "lowercase", default=True),
    "strip_accents": field_of_rule("BertNormalizer", "strip_accents", default=None),
    "tokenize_chinese_chars": field_of_rule("BertNormalizer", "handle_chinese_chars", default=True),
}
_BYTE_LEVEL = {"add_prefix_space": field_of_rule("ByteLevel", "add_prefix_space", default=False)}
_PREFIX_SPACE = {"add_prefix_space": prefix_space}
_UNKNOWN = {"unk_token": unknown_token}

_BERT_TOKENS = _tokens(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_HERBERT_TOKENS = _tokens(sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>")
_ROBERTA_TOKENS = _tokens(bos="<s>", eos="</s>") | _HERBERT_TOKENS
_LLAMA_TOKENS = _tokens(unk="<unk>", bos="<s>", eos="</s>")
_CODE_LLAMA_TOKENS = _LLAMA_TOKENS | _tokens(
    prefix="▁<PRE>", middle="▁<MID>", suffix="▁<SUF>", eot="▁<EOT>", fill="<FILL_ME>"
)
_GEMMA_TOKENS = _tokens(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>")
_END = "<|endoftext|>"
_GPT2_TOKENS = _tokens(unk=_END, bos=_END, eos=_END)
_QWEN2_TOKENS = _tokens(unk=_END, eos=_END, pad=_END)

GENERIC = TokenizerClass()
"""A class that reads tokenizer.json as it is, and nothing else but tokens."""

_BERT = TokenizerClass(_BERT_TOKENS, _BERT_TEXTS | _CLS_SEP | _UNKNOWN)
_MPNET = TokenizerClass(_ROBERTA_TOKENS | _tokens(unk="[UNK]"), _BERT.rules)
_ROBERTA = TokenizerClass(_ROBERTA_TOKENS, _BYTE_LEVEL | _CLS_SEP)
_UNIGRAM = TokenizerClass(_ROBERTA_TOKENS, _PREFIX_SPACE | _BOS_EOS)
_LLAMA = TokenizerClass(_LLAMA_TOKENS, {**_PREFIX_SPACE, "legacy": legacy})

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
    "HerbertTokenizer": TokenizerClass(_HERBERT_TOKENS, _CLS_SEP | _UNKNOWN),
    "MPNetTokenizer": _MPNET,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _UNIGRAM,
    "CamembertTokenizer": _UNIGRAM,
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": TokenizerClass(_CODE_LLAMA_TOKENS, _PREFIX_SPACE),
    "GemmaTokenizer": TokenizerClass(_GEMMA_TOKENS, _UNKNOWN),
    "GPT2Tokenizer": TokenizerClass(_GPT2_TOKENS, _BYTE_LEVEL),
    "GPTNeoXTokenizer": TokenizerClass(_GPT2_TOKENS | _tokens(pad="<|padding|>"), _BYTE_LEVEL),
    "Qwen2Tokenizer": TokenizerClass(_QWEN2_TOKENS, _BYTE_LEVEL, resets_special=True),
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

KEYS_OF_CLASSES = frozenset(EVERY_CLASS).union(*(each.rules for each in _CLASSES.values()))
"""Keys that some class reads. The others do not, as in transformers."""


def tokenizer_class(
    model_type: str, named: str | None, *, byte_level: bool
) -> TokenizerClass | None:
    """The class with which AutoTokenizer reads a checkpoint's tokenizer.json, which has a
    `byte_level` rule or has not; None if it is not known here."""
    name = _WHATEVER_IS_NAMED.get(model_type) or named or _OF_MODELS.get(model_type, _ANY)
    name = name.removesuffix("Fast")
    return GENERIC if name == _LLAMA_NAME and byte_level else _CLASSES.get(name)
