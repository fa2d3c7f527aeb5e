"""A tokenizer's settings in the files beside `tokenizer.json`, as AutoTokenizer reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.processors import TemplateProcessing

from engine_core.tokenization.pipeline_rules import PipelineRules, continuing
from workers.contract.checkpoint.config_keys import ConfigKeys, Neutral, Refuse, shown_value, stop
from workers.contract.checkpoint.folder_files import TOKENIZER_BYTES, find_file, optional
from workers.contract.model_config import ModelConfigError


class TokenizerSettings:
    """The settings of a folder's tokenizer. What is wrong with them goes to `refuse`.

    Raises ModelConfigError for what cannot be read, as its methods do.
    """

    def __init__(self, folder: Path, refuse: Refuse = stop) -> None:
        keys = ConfigKeys.of_file(folder, "tokenizer_config.json", refuse)
        self.keys, self.refuse = keys, refuse
        self.config = optional(folder, "config.json", dict[str, Any]) or {}
        self.tokens = _declared_tokens(folder, keys, refuse)
        self._class = self._read_class(folder)

    @property
    def template_tokens(self) -> dict[str, str]:
        """The named tokens, as chat templates write them: `bos_token`, `eos_token`, ..."""
        named = {name: token.content for name, token in self.tokens.named.items() if token}
        return self._usual_tokens() | named

    def check_keys(self) -> None:
        """Refuse unknown keys, and values that no tokenizer obeys here, once, at set-up."""
        self.keys.neutral(_NOT_SUPPORTED)
        self.keys.ignore(*_KEYS_OF_CLASSES)
        self.keys.check_all_read(_BOOKKEEPING.__contains__, "a tokenizer")

    def put_into(self, tokenizer: Tokenizer) -> None:
        """Let what was read from tokenizer.json obey the settings, or refuse them."""
        for key, rule in {**_EVERY_CLASS, **self._class.rules}.items():
            if (found := rule(key, tokenizer, self)) is not None:
                value = shown_value(self.keys.values.get(key))
                self.refuse(self.keys.error(f"{key} {value} is not supported: {found}"))
        self._add_tokens(tokenizer)

    def _read_class(self, folder: Path) -> _TokenizerClass:
        """The class that reads a tokenizer.json. One that is not known is refused."""
        file, named = self.keys, self.keys.optional("tokenizer_class", str)
        if not named:
            file = ConfigKeys(folder / "config.json", self.config)
            named = file.optional("tokenizer_class", str)
        model_type = str(self.config.get("model_type"))
        usual = _OF_MODELS.get(model_type, "TokenizersBackend")
        name = (_WHATEVER_IS_NAMED.get(model_type) or named or usual).removesuffix("Fast")
        if name not in _CLASSES:
            self.refuse(file.error(f"tokenizer_class {named!r} is not supported"))
        if name == "LlamaTokenizer" and _is_byte_level(folder):
            return _GENERIC
        return _CLASSES.get(name, _GENERIC)

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        """Add the tokens that tokenizer.json lacks, or has with other properties, in transformers'
        order. Ids that would not be the declared ones are refused."""
        own = {each.content: each for each in tokenizer.get_added_tokens_decoder().values()}
        added = self._changed(own)
        if self._class.resets_special:
            self._check_properties(added)
        usual = [
            AddedToken(text, special=True)
            for text in self._usual_tokens().values()
            if tokenizer.token_to_id(text) is not None
        ]
        for token in (*self.tokens.special, *usual):
            if token.content not in own:
                added.setdefault(token.content, token)
        tokenizer.add_tokens(list(added.values()))  # pyright: ignore[reportUnknownMemberType]
        for index, token in self.tokens.by_id.items():
            if (actual := tokenizer.token_to_id(token.content)) != index:
                self._refuse_token(f"{token.content} is {index}, and by tokenizer.json {actual}")

    def _changed(self, own: dict[str, AddedToken]) -> dict[str, AddedToken]:
        """The tokens with declared ids that are not so among `own`, by their texts."""
        named = {token.content for token in self.tokens.named.values() if token}
        changed = dict[str, AddedToken]()
        for _, token in sorted(self.tokens.by_id.items()):
            had = own.get(token.content)
            if had is None or not (self.tokens.only_ids or repr(had) == repr(token)):
                token.special |= token.content in named
                changed[token.content] = token
        return changed

    def _check_properties(self, changed: dict[str, AddedToken]) -> None:
        for token in self.tokens.special:
            added = changed.get(token.content)
            if added is not None and (added.lstrip or added.rstrip or added.single_word):
                self._refuse_token(f"{token.content} has lstrip, rstrip or single_word")

    def _usual_tokens(self) -> dict[str, str]:
        """The class's own tokens that are not named otherwise."""
        return {
            name: text for name, text in self._class.tokens.items() if name not in self.tokens.named
        }

    def _refuse_token(self, text: str) -> None:
        self.refuse(ModelConfigError(f"{self.tokens.source}: {text}"))


def _is_byte_level(folder: Path) -> bool:
    """Whether any rule of a tokenizer.json is called ByteLevel, as transformers finds it."""
    file = find_file(folder, "tokenizer.json", TOKENIZER_BYTES)
    return file is not None and b'"ByteLevel"' in file.read_bytes()


_BOOKKEEPING = frozenset(
    """
    _commit_hash _from_auto _name_or_path name_or_path auto_map backend cache_dir device_map
    force_download from_slow is_local local_files_only processor_class revision subfolder token
    tokenizer_class tokenizer_type slow_tokenizer_class transformers_version trust_remote_code
    use_auth_token use_fast verbose model_type dtype torch_dtype unsloth_fixed unsloth_version
    task language

    added_tokens_file files_loaded full_tokenizer_file merges_file special_tokens_map_file
    tokenizer_config_file tokenizer_file vocab_file

    max_len max_len_sentences_pair max_len_single_sentence max_length max_seq_length
    model_max_length pad_to_multiple_of padding padding_side stride truncation truncation_side
    truncation_strategy

    model_input_names pad_token_type_id return_attention_mask return_token_type_ids

    clean_up_tokenization_spaces decode_with_prefix_space errors skip_special_tokens
    clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    spaces_between_special_tokens trim_offsets

    add_bos_token do_basic_tokenize end_n_top extra_ids handle_chinese_chars
    keep_accents legacy_behaviour mecab_kwargs never_split remove_space sp_model_kwargs
    split_by_punct start_n_top suffix_first unk_id vocab_size vocab_type wordpieces_prefix

    chat_control_tokens chat_template response_schema response_template tool_parser_type
    use_default_system_prompt

    bos_token_id cls_token_id eos_token_id image_token_id mask_token_id pad_token_id sep_token_id
    unk_token_id
    """.split()
)
"""Keys of `tokenizer_config.json` that change neither ids nor prompts.

They are about the origin, files, lengths, outputs, decoding, slow form, chats and ids of tokens.
Beside a `tokenizer.json`, transformers (up to 5.23) ignores `add_bos_token` and `add_eos_token`:
that file alone says what is added around texts (but see `_end_by_own_code`).
"""

_NOT_SUPPORTED: Neutral = {
    "fast_tokenizer_files": (None, [], ["tokenizer.json"]),
    "init_inputs": (None, []),
    "split_special_tokens": (None, False),
}
"""Values of keys of any class. A checkpoint with another value is refused."""

_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The named tokens of every tokenizer. A checkpoint may have others."""
_BY_ID = "added_tokens_decoder"
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]
_EXTRA = ("extra_special_tokens", "additional_special_tokens")


class _DeclaredToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token that is found in texts before they are split: where, and whether decoding skips it.

    Without `normalized`, a special token is found in the text itself, another in its normal form.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    def added(self, *, special: bool = False) -> AddedToken:
        return AddedToken(**msgspec.to_builtins(self) | {"special": special or self.special})


class _DeclaredTokens(msgspec.Struct):
    """Special tokens by name, further special tokens, and added tokens by id.

    A name with None has no token. `source` is the file, with its key, that `by_id` is from; with
    `only_ids` that does not say how a token is found in texts.
    """

    named: dict[str, AddedToken | None] = {}
    extra: list[AddedToken] | None = None
    by_id: dict[int, AddedToken] = {}
    source: str = ""
    only_ids: bool = False

    @property
    def special(self) -> list[AddedToken]:
        """The special tokens, in the order in which missing ones get their ids."""
        names = dict.fromkeys((*_NAMES, *self.named))
        named = [self.named.get(name) for name in names]
        return [token for token in [*named, *(self.extra or [])] if token]

    def read(self, keys: ConfigKeys) -> None:
        """Read the special tokens in a file's `keys`, beside those of another."""
        for name, value in keys.values.items():
            if name in _NAMES or (name.endswith("_token") and isinstance(value, str | dict)):
                token = keys.optional(name, object)
                self.named[name] = None if token is None else _special(keys, name, token)
        self._read_named(keys, "model_specific_special_tokens")
        extra, additional = (keys.optional(name, object) for name in _EXTRA)
        name = _EXTRA[0]
        if self.extra is None and not extra:
            name, extra = _EXTRA[1], additional
        if isinstance(extra, dict):
            self._read_named(keys, name)
        else:
            tokens = [_special(keys, name, token) for token in keys.read(name, list[object], [])]
            if tokens or any(map(keys.has, _EXTRA)):
                self.extra = (self.extra or []) + tokens

    def _read_named(self, keys: ConfigKeys, name: str) -> None:
        tokens = keys.read(name, dict[str, object], {})
        self.named.update({each: _special(keys, name, token) for each, token in tokens.items()})


def _declared_tokens(folder: Path, keys: ConfigKeys, refuse: Refuse) -> _DeclaredTokens:
    """The tokens that a folder declares whose tokenizer_config.json has `keys`.

    Without an `added_tokens_decoder` in it the older files count, and more than its names do.
    Raises ModelConfigError for a file that cannot be read, or a token of another form.
    """
    declared = _DeclaredTokens()
    declared.read(keys)
    by_id = keys.optional(_BY_ID, dict[_Id, _DeclaredToken])
    if by_id is not None:
        declared.source = f"{keys.file}: {_BY_ID}"
        declared.by_id = {int(index): token.added() for index, token in by_id.items()}
        return declared
    map_file, added_file = "special_tokens_map.json", "added_tokens.json"
    special = optional(folder, map_file, dict[str, Any])
    if special is not None:
        older = ConfigKeys(folder / map_file, special, refuse=refuse)
        declared.read(older)
        older.check_all_read(lambda _: False, "a tokenizer")
    added = optional(folder, added_file, dict[str, int])
    if added is not None:
        names = {token.content for token in declared.special}
        declared.source, declared.only_ids = str(folder / added_file), True
        declared.by_id = {
            index: AddedToken(content, special=content in names) for content, index in added.items()
        }
    return declared


def _special(keys: ConfigKeys, name: str, token: object) -> AddedToken:
    """A token as key `name` has it. Raises ModelConfigError for another form."""
    try:
        declared = msgspec.convert(token, str | _DeclaredToken)
    except msgspec.ValidationError as error:
        raise keys.error(f"{name} is not a token: {error}") from None
    declared = _DeclaredToken(declared) if isinstance(declared, str) else declared
    return declared.added(special=True)


_KeyRule = Callable[[str, Tokenizer, TokenizerSettings], str | None]
"""Lets a tokenizer obey a key. Returns what contradicts its value in tokenizer.json."""


def _field_of_rule(kind: str, field: str, *, default: bool | None) -> _KeyRule:
    """A key that is a field of one kind of rule in the pipeline, where that has such a rule.

    Without the key the field has `default`, whatever tokenizer.json says, as in transformers.
    """

    def apply(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
        value = settings.keys.optional(key, bool)
        rules = PipelineRules.of(tokenizer)
        if all(rule["type"] != kind for rule in rules.every):
            return None if value is None else f"tokenizer.json has no {kind} to set it in"
        setting = {field: default if value is None else value}
        rules.changed(lambda rule: rule | setting if rule["type"] == kind else rule).put_into(
            tokenizer
        )
        return None

    return apply


def _prefix_space(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
    """Whether a space is put before texts, for sentencepiece's kind of tokenizers."""
    value = settings.keys.optional(key, bool)
    if value in (None, continuing(tokenizer) is not tokenizer):
        return None
    return f"tokenizer.json puts {'no' if value else 'a'} space before texts"


def _has_rule(kind: str) -> _KeyRule:
    """A key that says whether the pipeline has a rule of this kind."""

    def apply(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
        value = settings.keys.optional(key, bool)
        has = any(rule["type"] == kind for rule in PipelineRules.of(tokenizer).every)
        if value in (None, has):
            return None
        return f"tokenizer.json has {'no' if value else 'a'} {kind}"

    return apply


def _legacy(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
    """Whether Llama's tokenizer puts a space before every text between special tokens.

    A `tokenizer.json` of transformers 4, without a Metaspace, does so whatever this key says.
    """
    value = settings.keys.optional(key, bool)
    contrary = "first" if value else "always"
    schemes = [rule.get("prepend_scheme") for rule in PipelineRules.of(tokenizer).every]
    if value is None or contrary not in schemes:
        return None
    return f"the prepend_scheme of tokenizer.json is {contrary}"


def _token_around_texts(index: int) -> _KeyRule:
    """A named token that this class puts at one end of each text."""

    def apply(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
        token = settings.tokens.named.get(key)
        around = tokenizer.encode("").tokens
        if token is None or around[index:][:1] == [token.content]:
            return None
        return f"tokenizer.json puts {' '.join(around) or 'nothing'} around texts"

    return apply


def _unknown_token(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
    """The token for what the vocabulary lacks, in a class that names it in its model."""
    token, model = settings.tokens.named.get(key), tokenizer.model
    own = model.unk_token if isinstance(model, BPE | WordPiece) else None
    same = token is None or own == token.content
    return None if same else f"the unk_token of tokenizer.json is {own}"


def _mistral_regex(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
    """Whether transformers puts another regex into tokenizers that Mistral published."""
    concerned = settings.config.get("model_type") in (*_MISTRAL, None)
    major = str(settings.config.get("transformers_version") or "").partition(".")[0]
    is_fixed = major.isdecimal() and int(major) >= _FIXED_SINCE
    patterns = [rule.get("pattern") for rule in PipelineRules.of(tokenizer).every]
    changes = (
        settings.keys.read(key, bool, False)
        and (concerned and not is_fixed)
        and tokenizer.get_vocab_size() > _SMALL
        and {"Regex": MISTRAL_WORDS} not in patterns
    )
    return "tokenizer.json has another regex" if changes else None


def _end_by_own_code(key: str, tokenizer: Tokenizer, settings: TokenizerSettings) -> str | None:
    """Whether a token is behind each text in gte-Qwen2, which its own code puts there."""
    own = "tokenization_qwen." in str(settings.keys.values.get("auto_map"))
    token = settings.tokens.named.get("eos_token")
    if not (own and settings.keys.read(key, bool, False)) or token is None:
        return None
    end, index = token.content, tokenizer.token_to_id(token.content)
    if index is None:
        return f"tokenizer.json has no {end}"
    tokenizer.post_processor = TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single=f"$A {end}", pair=f"$A {end} $B:1 {end}:1", special_tokens=[(end, index)]
    )
    return None


_MISTRAL = ("mistral", "mistral3", "voxtral", "ministral", "pixtral")
_SMALL = 100_000
"""Vocabularies up to this size have no such regex."""
_FIXED_SINCE = 5
"""The version of transformers that saves such tokenizers as they are."""
MISTRAL_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The regular expression by which transformers finds the words of these models."""


class _TokenizerClass(msgspec.Struct, frozen=True):
    """The named tokens of a class, unless a checkpoint says otherwise, and rules for its own keys.

    With `resets_special`, special tokens that tokenizer.json lacks take no white space with them.
    """

    tokens: dict[str, str] = {}
    rules: dict[str, _KeyRule] = {}
    resets_special: bool = False


def _tokens(**texts: str) -> dict[str, str]:
    return {f"{name}_token": text for name, text in texts.items()}


_EVERY_CLASS: Mapping[str, _KeyRule] = {
    "add_eos_token": _end_by_own_code,
    "fix_mistral_regex": _mistral_regex,
}

_CLS_SEP = {"cls_token": _token_around_texts(0), "sep_token": _token_around_texts(-1)}
_BOS_EOS = {"bos_token": _token_around_texts(0), "eos_token": _token_around_texts(-1)}
_BERT_TEXTS = {
    "do_lower_case": _field_of_rule("BertNormalizer", "lowercase", default=True),
    "strip_accents": _field_of_rule("BertNormalizer", "strip_accents", default=None),
    "tokenize_chinese_chars": _field_of_rule(
        "BertNormalizer", "handle_chinese_chars", default=True
    ),
}
_BYTE_LEVEL = {"add_prefix_space": _field_of_rule("ByteLevel", "add_prefix_space", default=False)}
_PREFIX_SPACE = {"add_prefix_space": _prefix_space}
_UNKNOWN = {"unk_token": _unknown_token}

_BERT_TOKENS = _tokens(unk="[UNK]", sep="[SEP]", pad="[PAD]", cls="[CLS]", mask="[MASK]")
_HERBERT_TOKENS = _tokens(sep="</s>", cls="<s>", unk="<unk>", pad="<pad>", mask="<mask>")
_ROBERTA_TOKENS = _tokens(bos="<s>", eos="</s>") | _HERBERT_TOKENS
_ALBERT_TOKENS = _tokens(bos="[CLS]", eos="[SEP]", unk="<unk>", pad="<pad>") | _tokens(
    sep="[SEP]", cls="[CLS]", mask="[MASK]"
)
_COHERE_TOKENS = _tokens(
    unk="<UNK>", bos="<BOS_TOKEN>", eos="<|END_OF_TURN_TOKEN|>", pad="<PAD>"
) | _tokens(cls="<CLS>", sep="<SEP>", mask="<MASK_TOKEN>")
_LLAMA_TOKENS = _tokens(unk="<unk>", bos="<s>", eos="</s>")
_CODE_LLAMA_TOKENS = _LLAMA_TOKENS | _tokens(
    prefix="▁<PRE>", middle="▁<MID>", suffix="▁<SUF>", eot="▁<EOT>", fill="<FILL_ME>"
)
_GEMMA_TOKENS = _tokens(unk="<unk>", bos="<bos>", eos="<eos>", pad="<pad>", mask="<mask>")
_END = "<|endoftext|>"
_GPT2_TOKENS = _tokens(unk=_END, bos=_END, eos=_END)
_QWEN2_TOKENS = _tokens(unk=_END, eos=_END, pad=_END)

_GENERIC = _TokenizerClass()
"""A class that reads tokenizer.json as it is, and nothing else but tokens."""

_BERT = _TokenizerClass(_BERT_TOKENS, _BERT_TEXTS | _CLS_SEP | _UNKNOWN)
_MPNET = _TokenizerClass(_ROBERTA_TOKENS | _tokens(unk="[UNK]"), _BERT.rules)
_ROBERTA = _TokenizerClass(_ROBERTA_TOKENS, _BYTE_LEVEL | _CLS_SEP)
_UNIGRAM = _TokenizerClass(_ROBERTA_TOKENS, _PREFIX_SPACE | _BOS_EOS)
_ALBERT = _TokenizerClass(
    _ALBERT_TOKENS,
    {**_PREFIX_SPACE, **_CLS_SEP, "do_lower_case": _has_rule("Lowercase")},
)
_DEBERTA = _TokenizerClass(
    _ALBERT_TOKENS | _tokens(unk="[UNK]", pad="[PAD]"),
    {
        **_CLS_SEP,
        "do_lower_case": _has_rule("Lowercase"),
        "split_by_punct": _has_rule("Punctuation"),
    },
)
_LLAMA = _TokenizerClass(_LLAMA_TOKENS, {**_PREFIX_SPACE, "legacy": _legacy})

_CLASSES: Mapping[str, _TokenizerClass] = {
    "TokenizersBackend": _GENERIC,
    "PreTrainedTokenizer": _GENERIC,
    "PythonBackend": _GENERIC,
    "BloomTokenizer": _GENERIC,
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "SqueezeBertTokenizer": _BERT,
    "ConvBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "HerbertTokenizer": _TokenizerClass(_HERBERT_TOKENS, _CLS_SEP | _UNKNOWN),
    "MPNetTokenizer": _MPNET,
    "RobertaTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "XLMRobertaTokenizer": _UNIGRAM,
    "CamembertTokenizer": _UNIGRAM,
    "AlbertTokenizer": _ALBERT,
    "DebertaV2Tokenizer": _DEBERTA,
    "LlamaTokenizer": _LLAMA,
    "CodeLlamaTokenizer": _TokenizerClass(_CODE_LLAMA_TOKENS, _PREFIX_SPACE),
    "GemmaTokenizer": _TokenizerClass(_GEMMA_TOKENS, _UNKNOWN),
    "GPT2Tokenizer": _TokenizerClass(_GPT2_TOKENS, _BYTE_LEVEL),
    "CodeGenTokenizer": _TokenizerClass(_GPT2_TOKENS, _BYTE_LEVEL),
    "CohereTokenizer": _TokenizerClass(_COHERE_TOKENS, _BYTE_LEVEL),
    "GPTNeoXTokenizer": _TokenizerClass(_GPT2_TOKENS | _tokens(pad="<|padding|>"), _BYTE_LEVEL),
    "Qwen2Tokenizer": _TokenizerClass(_QWEN2_TOKENS, _BYTE_LEVEL, resets_special=True),
}
"""By names without `Fast`."""

_OF_MODELS: Mapping[str, str] = {
    "bert": "BertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "gte": "XLMRobertaTokenizer",
    "nomic_bert": "BertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "gemma": "GemmaTokenizer",
    "gemma2": "GemmaTokenizer",
    "gemma3": "GemmaTokenizer",
    "gemma3_text": "GemmaTokenizer",
    "cohere": "CohereTokenizer",
    "cohere2": "CohereTokenizer",
    "gpt2": "GPT2Tokenizer",
    "phi": "GPT2Tokenizer",
    "starcoder2": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "qwen2_vl": "Qwen2Tokenizer",
    "qwen2_5_vl": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_vl": "Qwen2Tokenizer",
}
"""The class of each `model_type` whose checkpoints name none."""

_WHATEVER_IS_NAMED: Mapping[str, str] = {
    "mistral": "TokenizersBackend",
    "modernbert": "TokenizersBackend",
    "ernie4_5": "TokenizersBackend",
    "internlm2": "TokenizersBackend",
    "nemotron": "TokenizersBackend",
    "phi3": "TokenizersBackend",
    "qwen2": "Qwen2Tokenizer",
}
"""The class of each `model_type` whose checkpoints are known to name another."""

_KEYS_OF_CLASSES = frozenset(_EVERY_CLASS).union(*(each.rules for each in _CLASSES.values()))
"""Keys that some class reads. The others do not, as in transformers."""
