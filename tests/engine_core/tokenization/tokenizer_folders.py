"""Tiny tokenizers of each kind that is published, as `tokenizer.json` files beside a config."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.processors import RobertaProcessing, TemplateProcessing
from tokenizers.trainers import BpeTrainer

CORPUS = ["water falls down the hill", "the quick brown fox jumps", "hello there, hello hill!"]
BERT_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ROBERTA_NAMES = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
ROBERTA_NAMES |= {"unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"}
WORDS = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
CHAT_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}{{ eos_token }}{{ image_token }}"
)


@dataclass
class TokenizerFolder:
    """The files of one kind of tokenizer, before a test changes one key of them."""

    model_type: str
    tokenizer: Tokenizer
    config: dict[str, Any]
    special: dict[str, Any] | None = None
    added: dict[str, int] | None = None
    model: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """The folder with these files in it."""
        self.tokenizer.save(str(folder / "tokenizer.json"))
        files = {
            "config.json": {"model_type": self.model_type, **self.model},
            "tokenizer_config.json": self.config,
            "special_tokens_map.json": self.special,
            "added_tokens.json": self.added,
        }
        for name, content in files.items():
            if content is not None:
                (folder / name).write_text(json.dumps(content))
        return folder


def decoder_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """`added_tokens_decoder` as transformers saves it."""
    properties = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    tokens = tokenizer.get_added_tokens_decoder().items()
    return {str(i): {name: getattr(token, name) for name in properties} for i, token in tokens}


def _letters() -> list[str]:
    return sorted(set("".join(CORPUS)) - {" "}) + list("ABÄäéÉ中文HWT")


def _around(tokenizer: Tokenizer, before: str, after: str) -> TemplateProcessing:
    tokens = [each for each in (before, after) if each]
    return TemplateProcessing(
        single=f"{before} $A {after}".strip(),
        pair="$A $B:1",
        special_tokens=[(each, tokenizer.token_to_id(each)) for each in tokens],
    )


def bert() -> TokenizerFolder:
    """WordPiece in lower case, between [CLS] and [SEP]."""
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    named = dict(zip(names, BERT_TOKENS, strict=True))
    return _wordpiece("bert", BERT_TOKENS, {"tokenizer_class": "BertTokenizer", **named})


def mpnet() -> TokenizerFolder:
    """The same between <s> and </s>."""
    named = ROBERTA_NAMES | {"tokenizer_class": "MPNetTokenizer", "unk_token": "[UNK]"}
    return _wordpiece("mpnet", ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"], named)


def _wordpiece(model_type: str, tokens: list[str], named: dict[str, str]) -> TokenizerFolder:
    words = sorted({word.strip(",!") for text in CORPUS for word in text.split()})
    pieces = [f"##{letter}" for letter in _letters()]
    vocabulary = {each: i for i, each in enumerate([*tokens, *_letters(), *words, *pieces])}
    raw = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece(prefix="##")
    raw.add_special_tokens(tokens)
    raw.post_processor = _around(raw, named["cls_token"], named["sep_token"])
    config = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    return _folder(model_type, raw, config | named)


def _folder(model_type: str, raw: Tokenizer, config: dict[str, Any]) -> TokenizerFolder:
    return TokenizerFolder(model_type, raw, {"added_tokens_decoder": decoder_of(raw), **config})


def _byte_level(special: list[str], pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    raw = Tokenizer(BPE())
    raw.normalizer, raw.pre_tokenizer = normalizer, pre_tokenizer
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=320, show_progress=False, initial_alphabet=alphabet, special_tokens=[]
    )
    raw.train_from_iterator(CORPUS, trainer)
    raw.add_special_tokens(special)
    return raw


def roberta() -> TokenizerFolder:
    """Byte-level BPE between <s> and </s>."""
    raw = _byte_level(ROBERTA_TOKENS, pre_tokenizers.ByteLevel(add_prefix_space=False))
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    sep, cls = ((token, raw.get_vocab()[token]) for token in ("</s>", "<s>"))
    raw.post_processor = RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)
    config = {"add_prefix_space": False, "errors": "replace", "trim_offsets": True}
    config |= {"tokenizer_class": "RobertaTokenizer"}
    return _folder("roberta", raw, ROBERTA_NAMES | config)


def gpt2(model_type: str = "llama") -> TokenizerFolder:
    """Byte-level BPE with nothing around texts."""
    raw = _byte_level(CHAT_TOKENS, pre_tokenizers.ByteLevel(add_prefix_space=False))
    config = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "add_prefix_space": False}
    config |= {"unk_token": "<|endoftext|>", "additional_special_tokens": ["<|im_start|>"]}
    return _generator(model_type, raw, {**config, "tokenizer_class": "GPT2Tokenizer"})


def _generator(model_type: str, raw: Tokenizer, config: dict[str, Any]) -> TokenizerFolder:
    return _folder(model_type, raw, {"chat_template": CHATML, **config})


def qwen2(model_type: str = "qwen2") -> TokenizerFolder:
    """Byte-level BPE of words that a regex finds in normalized texts."""
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    raw = _byte_level(CHAT_TOKENS, _split_bytes(Regex(PRETOKENIZE_REGEX)), normalizers.NFC())
    config = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config |= {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "unk_token": None}
    config |= {"split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer"}
    return _generator(model_type, raw, {"add_prefix_space": False, **config})


def _split_bytes(words: Regex) -> pre_tokenizers.Sequence:
    split = pre_tokenizers.Split(words, behavior="isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, whole])


def llama3(model_type: str = "llama") -> TokenizerFolder:
    """Byte-level BPE behind a token that begins texts, in a class that reads no keys."""
    special = ["<|begin|>", "<|end|>", "<|im_start|>", "<|im_end|>"]
    raw = _byte_level(special, _split_bytes(WORDS))
    raw.post_processor = _around(raw, "<|begin|>", "")
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "model_max_length": 131072}
    config |= {"clean_up_tokenization_spaces": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    return _generator(model_type, raw, config)


def mistral(words: Regex = WORDS) -> TokenizerFolder:
    """The same with a large vocabulary, as transformers 4 saved it."""
    folder = llama3("mistral")
    document = json.loads(folder.tokenizer.to_str())
    document["model"]["vocab"] |= {f"w{index}": index for index in range(1_000, 101_000)}
    folder.tokenizer = Tokenizer.from_str(json.dumps(document))
    folder.tokenizer.pre_tokenizer = _split_bytes(words)
    folder.config["added_tokens_decoder"] = decoder_of(folder.tokenizer)
    folder.model["transformers_version"] = "4.51.0"
    return folder


def _sentencepiece(special: list[str], *others: str) -> Tokenizer:
    raw = Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256)), *others],
        initial_alphabet=["▁"],
    )
    raw.train_from_iterator(CORPUS, trainer)
    document = json.loads(raw.to_str())
    tokens = document["added_tokens"]
    document["added_tokens"] = [each for each in tokens if each["content"] in (*special, *others)]
    return Tokenizer.from_str(json.dumps(document))


def llama2(*, metaspace: bool = False) -> TokenizerFolder:
    """Sentencepiece's BPE with a space before texts, as transformers 4 or 5 writes it."""
    raw = _sentencepiece(["<unk>", "<s>", "</s>"])
    raw.decoder = decoders.Sequence([raw.decoder, decoders.Strip(" ", 1, 0)])
    if metaspace:
        raw.normalizer = None
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        spaces = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        raw.normalizer = normalizers.Sequence(spaces)
    raw.post_processor = _around(raw, "<s>", "")
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    config |= {"legacy": False, "add_eos_token": False, "use_default_system_prompt": False}
    return _generator("llama", raw, {**config, "tokenizer_class": "LlamaTokenizer"})


def gemma(model_type: str = "gemma2") -> TokenizerFolder:
    """Sentencepiece's BPE without a space before texts."""
    raw = _sentencepiece(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], "<start_of_turn>")
    raw.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    raw.post_processor = _around(raw, "<bos>", "")
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    config |= {"pad_token": "<pad>", "additional_special_tokens": ["<start_of_turn>"]}
    return _generator(model_type, raw, {**config, "tokenizer_class": "GemmaTokenizer"})


def xlm_roberta(
    model_type: str = "xlm-roberta", name: str = "XLMRobertaTokenizer"
) -> TokenizerFolder:
    """A unigram model of words with a space before each, between <s> and </s>."""
    words = sorted({f"▁{word}" for text in CORPUS for word in text.split()})
    scores = [(each, -10.0) for each in ("▁", *_letters())] + [(each, -5.0) for each in words]
    raw = Tokenizer(Unigram([*((each, 0.0) for each in ROBERTA_TOKENS[:4]), *scores], unk_id=3))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens(ROBERTA_TOKENS)
    raw.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    raw.post_processor = _around(raw, "<s>", "</s>")
    return _folder(model_type, raw, {"tokenizer_class": name, **ROBERTA_NAMES})


def albert() -> TokenizerFolder:
    """The same in lower case without accents, between [CLS] and [SEP]."""
    raw = _unigram(["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    plain = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    raw.normalizer = normalizers.Sequence([*quotes, *plain])
    raw.post_processor = _around(raw, "[CLS]", "[SEP]")
    config = {"do_lower_case": True, "keep_accents": False, "remove_space": True}
    return _folder("albert", raw, {"tokenizer_class": "AlbertTokenizer", **config})


def deberta() -> TokenizerFolder:
    """A unigram model whose spaces are part of the words behind them."""
    raw = _unigram(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
    strip = normalizers.Strip(left=False, right=True)
    raw.normalizer = normalizers.Sequence([spaces, normalizers.NFC(), strip])
    raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace()])
    raw.post_processor = _around(raw, "[CLS]", "[SEP]")
    config = {"do_lower_case": False, "split_by_punct": False, "vocab_type": "spm"}
    return _folder("deberta-v2", raw, {"tokenizer_class": "DebertaV2Tokenizer", **config})


def _unigram(special: list[str]) -> Tokenizer:
    words = sorted({f"▁{word}" for text in CORPUS for word in text.split()})
    scores = [(each, -10.0) for each in ("▁", *_letters())] + [(each, -5.0) for each in words]
    raw = Tokenizer(Unigram([*((each, 0.0) for each in special), *scores], unk_id=1))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens(special)
    return raw


def cohere() -> TokenizerFolder:
    """Byte-level BPE of single digits behind a token that begins texts."""
    special = ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>"]
    digits = pre_tokenizers.Digits(individual_digits=True)
    single = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    raw = _byte_level([*special, "<|END_OF_TURN_TOKEN|>"], single, normalizers.NFC())
    raw.post_processor = _around(raw, "<BOS_TOKEN>", "")
    config = {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>"}
    return _generator("cohere", raw, {"tokenizer_class": "CohereTokenizer", **config})


def camembert() -> TokenizerFolder:
    """The same under another name."""
    return xlm_roberta("camembert", "CamembertTokenizer")
