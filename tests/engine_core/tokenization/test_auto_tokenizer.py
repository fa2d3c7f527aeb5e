"""Folders whose files disagree in one key each are read as AutoTokenizer reads them, or refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import msgspec
import pytest
from tokenizers import Regex
from tokenizers import Tokenizer as RawTokenizer
from transformers import AutoTokenizer

from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from engine_core.tokenization.tokenizer_settings import MISTRAL_WORDS, TokenizerSettings
from server.templates.loaded_template import LoadedTemplate
from server.templates.protocol import Conversation
from server.templates.template_files import read_chat_template
from tests.engine_core.configs import MODEL
from tests.engine_core.tokenization import tokenizer_folders as kinds
from tests.engine_core.tokenization.tokenizer_folders import TokenizerFolder
from workers.contract.model_config import ModelConfigError

TEXTS = [
    "Hello HILL, the Äpfel fälls 中文 é!",
    "hello there,  water falls\n\nquick ",
    "water <|im_start|> hello <|im_end|>  hill <|x|> fox <|y|>jumps",
    "a[MASK] b <mask> c</s> d <s>e [PAD]<pad> <tool> there",
    "hello",
    "",
]
MESSAGES = [{"role": "user", "content": "hello <|x|> hill"}]


def added(content: str, **properties: bool) -> dict[str, Any]:
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, **token, "special": True, **properties}


P = ParamSpec("P")
Change = Callable[[TokenizerFolder], None]


def change(made: Callable[Concatenate[TokenizerFolder, P], None]) -> Callable[P, Change]:
    """Of arguments without the folder, the change that they make of one."""
    return lambda *args, **named: lambda folder: made(folder, *args, **named)


@change
def keys(folder: TokenizerFolder, *dropped: str, **config: Any) -> None:
    folder.config = {k: v for k, v in folder.config.items() if k not in dropped} | config


def named(name: str, **config: Any) -> Change:
    return keys(tokenizer_class=name, **config)


@change
def only(folder: TokenizerFolder, **config: Any) -> None:
    """These keys beside `added_tokens_decoder`."""
    keys(*folder.config.keys() - {"added_tokens_decoder"}, **config)(folder)


@change
def older(
    folder: TokenizerFolder, special: Any = None, added: str | None = None, ahead: int = 0,
    **config: Any,
) -> None:  # fmt: skip
    """Without `added_tokens_decoder`, and with the files that count then."""
    keys("added_tokens_decoder", **config)(folder)
    folder.special = special
    if added is not None:
        known, size = folder.tokenizer.token_to_id(added), folder.tokenizer.get_vocab_size()
        folder.added = {added: (size if known is None else known) + ahead}


@change
def next_token(folder: TokenizerFolder, content: str, ahead: int = 0, **properties: bool) -> None:
    """A token that only `added_tokens_decoder` has, behind the vocabulary."""
    index = folder.tokenizer.get_vocab_size() + ahead
    folder.config["added_tokens_decoder"][str(index)] = added(content, **properties)


@change
def property_of(folder: TokenizerFolder, content: str, **properties: bool) -> None:
    """Another property of a token than in tokenizer.json."""
    for token in folder.config["added_tokens_decoder"].values():
        if token["content"] == content:
            token.update(properties)


def model(**config: Any) -> Change:
    return lambda folder: folder.model.update(config)


@change
def both(folder: TokenizerFolder, first: Change, second: Change) -> None:
    first(folder)
    second(folder)


def llama2_of_5() -> TokenizerFolder:
    return kinds.llama2(metaspace=True)


STRIPPED = {"content": "<|x|>", "lstrip": True}

OBEYED = {
    "metaspace": (llama2_of_5, keys()),
    "bert case": (kinds.bert, keys(do_lower_case=False)),
    "bert accents": (kinds.bert, keys(strip_accents=False)),
    "bert accents in case": (kinds.bert, keys(strip_accents=True, do_lower_case=False)),
    "bert chinese": (kinds.bert, keys(tokenize_chinese_chars=False)),
    "bert by model": (kinds.bert, keys("tokenizer_class", do_lower_case=False)),
    "bert named in config": (
        kinds.bert,
        both(keys("tokenizer_class"), model(tokenizer_class="BertTokenizerFast")),
    ),
    "bert generic": (kinds.bert, named("PreTrainedTokenizerFast", do_lower_case=False)),
    "distilbert case": (kinds.bert, named("DistilBertTokenizer", do_lower_case=False)),
    "mpnet case": (kinds.mpnet, keys(do_lower_case=False)),
    "roberta space": (kinds.roberta, keys(add_prefix_space=True)),
    "gpt2 space": (kinds.gpt2, keys(add_prefix_space=True)),
    "qwen2 space": (kinds.qwen2, keys(add_prefix_space=True)),
    "qwen2 whatever is named": (kinds.qwen2, named("LlamaTokenizerFast", add_prefix_space=True)),
    "llama3 ignores space": (kinds.llama3, keys(add_prefix_space=True)),
    "llama3 adds no end": (kinds.llama3, keys(add_eos_token=True, add_bos_token=False)),
    "new token": (kinds.llama3, next_token("<|x|>")),
    "new token of qwen2": (kinds.qwen2, next_token("<|x|>", special=False)),
    "new token of bert": (kinds.bert, next_token("<|x|>", normalized=True)),
    "new token of gemma": (kinds.gemma, next_token("<|x|>", rstrip=True)),
    "two new tokens": (kinds.gpt2, both(next_token("<|y|>", 1), next_token("<|x|>"))),
    "lstrip": (kinds.llama3, property_of("<|im_end|>", lstrip=True)),
    "rstrip": (kinds.llama3, property_of("<|im_end|>", rstrip=True)),
    "lstrip of roberta": (kinds.roberta, property_of("</s>", lstrip=True)),
    "no lstrip of roberta": (kinds.roberta, property_of("<mask>", lstrip=False)),
    "single word": (kinds.bert, property_of("[MASK]", single_word=True)),
    "not special": (kinds.llama3, property_of("<|im_start|>", special=False)),
    "map has bos": (kinds.llama3, older({"bos_token": "<|begin|>"}, bos_token=None)),
    "map has another bos": (kinds.llama3, older({"bos_token": {"content": "<|im_start|>"}})),
    "map has no bos": (kinds.llama3, older({"bos_token": None})),
    "map beside a decoder": (
        kinds.llama3,
        lambda folder: setattr(folder, "special", {"bos_token": "<|end|>"}),
    ),
    "map has a new token": (kinds.llama3, older({"pad_token": "<|x|>"})),
    "map has additional": (kinds.llama3, older({"additional_special_tokens": ["<|x|>"]})),
    "map has extra": (kinds.gpt2, older({"extra_special_tokens": [STRIPPED]})),
    "added_tokens.json": (kinds.gpt2, older(added="<|x|>")),
    "added_tokens.json of a special token": (kinds.gpt2, older({"pad_token": "<|x|>"}, "<|x|>")),
    "added_tokens.json of known tokens": (kinds.roberta, older(added="<mask>")),
    "extra by name": (kinds.llama3, keys(extra_special_tokens={"image_token": "<|x|>"})),
    "extra listed": (kinds.llama3, keys(extra_special_tokens=["<|x|>"])),
    "additional": (kinds.llama3, keys(additional_special_tokens=["<|x|>"])),
    "extra before additional": (
        kinds.llama3,
        keys(additional_special_tokens=["<|y|>"], extra_special_tokens=["<|x|>"]),
    ),
    "a token of its own name": (kinds.llama3, keys(image_token="<|x|>")),
    "model specific": (kinds.llama3, keys(model_specific_special_tokens={"image_token": "<|x|>"})),
    "new pad": (kinds.qwen2, keys(pad_token="<|x|>")),
    "tokens of the class": (kinds.gpt2, keys("bos_token", "unk_token")),
    "tokens of the class, gemma": (kinds.gemma, keys("bos_token", "eos_token")),
    "null is no token": (kinds.gpt2, keys(bos_token=None)),
    "typed token": (kinds.llama3, keys(bos_token={"__type": "AddedToken", **added("<|begin|>")})),
    "no config": (kinds.bert, lambda folder: folder.config.clear()),
    "mistral": (lambda: kinds.mistral(Regex(MISTRAL_WORDS)), keys(fix_mistral_regex=True)),
    "fix_mistral_regex of a newer version": (
        kinds.mistral,
        both(keys(fix_mistral_regex=True), model(transformers_version="5.2.0")),
    ),
    "bookkeeping": (kinds.qwen2, keys(response_schema={"a": 1}, chat_control_tokens=["fox"])),
    "fix_mistral_regex elsewhere": (kinds.llama3, keys(fix_mistral_regex=True)),
}

SAVED = {"max_length": 512, "pad_to_multiple_of": None, "pad_token_type_id": 0}
SAVED |= {"padding_side": "right", "stride": 0, "truncation_side": "right"}
SAVED |= {"truncation_strategy": "longest_first", "clean_up_tokenization_spaces": True}
OLD = {"name_or_path": "a/b", "special_tokens_map_file": "/x.json", "tokenizer_file": None}
LLAMA = {"sp_model_kwargs": {}, "unk_token": "<|end|>", "add_bos_token": True}
TYPED = {"__type": "AddedToken", "content": "<|im_start|>", "normalized": True}
GEMMA_3 = {"boi_token": "<start_of_turn>", "sp_model_kwargs": None}
GEMMA_3 |= {"extra_special_tokens": {"boi_token": "<start_of_turn>"}}
SAVED_BY_5 = {"backend": "tokenizers", "is_local": False, "local_files_only": False}
SAVED_BY_5 |= {"fix_mistral_regex": True, "extra_special_tokens": ["<|im_start|>"]}
OLD |= {"do_basic_tokenize": True, "never_split": None, "full_tokenizer_file": None}

PUBLISHED = {
    "bert, of the first versions": (kinds.bert, only(do_lower_case=True)),
    "minilm": (kinds.bert, keys(model_max_length=512, **OLD)),
    "bge": (kinds.bert, keys(never_split=None, do_basic_tokenize=True, **SAVED)),
    "mpnet": (kinds.mpnet, keys(**OLD, **SAVED)),
    "roberta": (kinds.roberta, keys("tokenizer_class", model_max_length=512)),
    "e5": (kinds.xlm_roberta, keys(sp_model_kwargs={}, model_max_length=512)),
    "bge-m3": (kinds.xlm_roberta, keys(add_prefix_space=True, **SAVED)),
    "camembert": (kinds.camembert, keys(model_max_length=512)),
    "electra": (kinds.bert, named("ElectraTokenizer", model_max_length=512)),
    "electra, by its model": (
        kinds.bert,
        both(keys("tokenizer_class"), model(model_type="electra")),
    ),
    "albert": (kinds.albert, keys(model_max_length=512)),
    "albert, by its model": (kinds.albert, keys("tokenizer_class", "do_lower_case")),
    "deberta": (kinds.deberta, keys(sp_model_kwargs={})),
    "deberta, by its model": (kinds.deberta, keys("tokenizer_class", "split_by_punct")),
    "phi 2": (lambda: kinds.gpt2("phi"), named("CodeGenTokenizer", model_max_length=2048)),
    "gpt 2": (lambda: kinds.gpt2("gpt2"), keys("tokenizer_class", model_max_length=1024)),
    "command-r": (kinds.cohere, keys(legacy=True, merges_file=None, sp_model_kwargs={})),
    "command-r, by its model": (kinds.cohere, keys("tokenizer_class")),
    "minitron": (lambda: kinds.llama3("nemotron"), named("LlamaTokenizer", legacy=False)),
    "modernbert": (
        lambda: kinds.gpt2("modernbert"),
        only(tokenizer_class="PreTrainedTokenizerFast", model_max_length=8192),
    ),
    "llama 2": (kinds.llama2, keys(padding_side="right", clean_up_tokenization_spaces=False)),
    "tinyllama": (kinds.llama2, keys(add_prefix_space=None)),
    "vicuna": (
        kinds.llama2,
        keys("legacy", do_lower_case=False, handle_chinese_chars=True, start_n_top=None),
    ),
    "code llama": (kinds.llama2, named("CodeLlamaTokenizer", suffix_first=False, legacy=None)),
    "llama 3": (kinds.llama3, keys(model_input_names=["input_ids", "attention_mask"])),
    "smollm2": (kinds.gpt2, only(tokenizer_class="GPT2Tokenizer", vocab_size=49152)),
    "mistral": (
        lambda: kinds.llama3("mistral"),
        named("LlamaTokenizer", legacy=False, add_prefix_space=None, pad_token=None, **LLAMA),
    ),
    "zephyr": (lambda: kinds.llama3("mistral"), named("LlamaTokenizer", legacy=True)),
    "phi 3": (lambda: kinds.llama3("phi3"), named("LlamaTokenizer", legacy=False)),
    "phi 4": (lambda: kinds.gpt2("phi3"), only(tokenizer_class="GPT2Tokenizer")),
    "qwen 2.5": (kinds.qwen2, keys(clean_up_tokenization_spaces=False)),
    "qwen 3 vl": (lambda: kinds.qwen2("qwen3_vl"), keys("tokenizer_class")),
    "qwen 3": (lambda: kinds.qwen2("qwen3"), keys(clean_up_tokenization_spaces=False)),
    "gte-qwen2": (kinds.qwen2, keys(add_eos_token=True, auto_map={"AutoTokenizer": ["a.B"]})),
    "deepseek's qwen": (
        kinds.qwen2,
        only(tokenizer_class="LlamaTokenizerFast", bos_token=TYPED, **LLAMA | {"unk_token": None}),
    ),
    "gemma 2": (kinds.gemma, keys(spaces_between_special_tokens=False)),
    "gemma 3": (
        lambda: kinds.gemma("gemma3_text"),
        keys(processor_class="Gemma3Processor", image_token="<start_of_turn>", **GEMMA_3),
    ),
    "saved by transformers 5": (
        kinds.llama3,
        only(tokenizer_class="TokenizersBackend", bos_token="<|begin|>", **SAVED_BY_5),
    ),
}
"""Settings as well-known checkpoints have them."""

OWN_CODE = {"AutoTokenizer": [f"tokenization_qwen.{name}" for name in ("Qwen2Tokenizer", "Fast")]}

REFUSED = {
    "unknown": (kinds.bert, keys(fold_case=True), "fold_case true is not known for a tokenizer"),
    "unknown in the map": (kinds.gpt2, older({"fold_case": 1}), "_map.json: fold_case 1 is not"),
    "split_special_tokens": (kinds.qwen2, keys(split_special_tokens=True), "split_special_tokens"),
    "init_inputs": (kinds.bert, keys(init_inputs=[{"a": 1}]), "init_inputs"),
    "other files": (kinds.bert, keys(fast_tokenizer_files=["b.json"]), "fast_tokenizer_files"),
    "unknown class": (kinds.bert, named("OwnTokenizer"), "'OwnTokenizer'"),
    "albert's case": (kinds.albert, keys(do_lower_case=False), "do_lower_case .* has a Lowercase"),
    "albert's space": (kinds.albert, keys(add_prefix_space=False), "add_prefix_space false"),
    "deberta's case": (kinds.deberta, keys(do_lower_case=True), "do_lower_case .* no Lowercase"),
    "deberta's marks": (kinds.deberta, keys(split_by_punct=True), "split_by_punct .* no Punct"),
    "deberta's cls": (kinds.deberta, keys(cls_token="[MASK]"), "cls_token"),
    "bert's cls": (kinds.bert, keys(cls_token="[MASK]"), r"cls_token .* puts \[CLS\] \[SEP\] a"),
    "mpnet's sep": (kinds.mpnet, keys(sep_token="<mask>"), "sep_token"),
    "roberta's cls": (kinds.roberta, keys(cls_token="<mask>"), "cls_token"),
    "xlm-roberta's end": (kinds.xlm_roberta, keys(eos_token="<mask>"), "eos_token"),
    "bert's unknown": (kinds.bert, keys(unk_token="[MASK]"), 'unk_token "'),
    "gemma's unknown": (kinds.gemma, keys(unk_token="<mask>"), 'unk_token "<mask>"'),
    "xlm-roberta's space": (kinds.xlm_roberta, keys(add_prefix_space=False), "add_prefix_space"),
    "camembert's space": (kinds.camembert, keys(add_prefix_space=False), "add_prefix_space"),
    "llama's space": (kinds.llama2, keys(add_prefix_space=False), "add_prefix_space false"),
    "llama's legacy": (llama2_of_5, keys(legacy=True), "legacy true .* prepend_scheme .* is first"),
    "no rule to set": (
        lambda: kinds.llama2(metaspace=True),
        named("BertTokenizer", do_lower_case=False),
        "do_lower_case false .* no BertNormalizer",
    ),
    "mistral's regex": (
        kinds.mistral,
        keys(fix_mistral_regex=True),
        "fix_mistral_regex true .* has another regex",
    ),
    "an end that is no token": (
        kinds.qwen2,
        keys(auto_map=OWN_CODE, add_eos_token=True, eos_token="<|odd|>"),
        r"add_eos_token true .* has no <\|odd\|>",
    ),
    "another id": (kinds.llama3, next_token("<|x|>", ahead=5), r"<\|x\|> is \d+, and by .* \d+"),
    "another added id": (kinds.gpt2, older(added="<|im_end|>", ahead=1), "added_tokens.json: "),
    "rstrip of qwen2": (kinds.qwen2, property_of("<|im_end|>", rstrip=True), "rstrip"),
    "not a token": (kinds.bert, keys(mask_token=3), "mask_token is not a token"),
    "not an id": (kinds.bert, keys(added_tokens_decoder={"a": added("x")}), "decoder is not valid"),
    "not a boolean": (kinds.bert, keys(do_lower_case="yes"), "do_lower_case is not valid"),
}


def changed(tmp_path: Path, kind: Callable[[], TokenizerFolder], change: Any) -> Path:
    folder = kind()
    change(folder)
    return folder.write(tmp_path)


def tokenizer_of(folder: Path) -> Tokenizer:
    """As a model that is set up has it."""
    TokenizerSettings(folder).check_keys()
    return Tokenizer.for_model(msgspec.structs.replace(MODEL, path=str(folder)), "auto")


def check_as_auto_tokenizer(folder: Path, texts: list[str]) -> Tokenizer:
    """Our tokenizer of a folder, after comparing it with that of transformers."""
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    ours = tokenizer_of(folder)
    for special in (True, False):
        expected = theirs(texts, add_special_tokens=special)["input_ids"]
        found = ours.raw.encode_batch_fast(texts, add_special_tokens=special)
        assert [encoding.ids for encoding in found] == expected
    copied = RawTokenizer.from_str(ours.raw.to_str())
    ids = copied.encode(texts[2]).ids
    assert ours.raw.encode(texts[2]).ids == ids
    for skip in (True, False):
        spelled = theirs.decode(ids, skip_special_tokens=skip)
        assert ours.decode(ids, skip_special_tokens=skip) == spelled
    if theirs.chat_template:
        template = read_chat_template(folder)
        assert template.tokens == theirs.special_tokens_map
        conversation = Conversation(messages=MESSAGES)
        prompt = LoadedTemplate(template).render(conversation)
        assert prompt == theirs.apply_chat_template(MESSAGES, tokenize=False)
    return ours


def assert_as_published(ours: Tokenizer, folder: Path, texts: list[str]) -> None:
    published = RawTokenizer.from_file(str(folder / "tokenizer.json"))
    for text in texts:
        assert ours.raw.encode(text).ids == published.encode(text).ids


@pytest.mark.parametrize(("kind", "change"), OBEYED.values(), ids=OBEYED)
def test_a_key_is_obeyed(tmp_path, kind, change):
    check_as_auto_tokenizer(changed(tmp_path, kind, change), TEXTS)


@pytest.mark.parametrize(("kind", "change"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_settings_are_accepted_and_tokenizer_json_stands(tmp_path, kind, change):
    texts = ["Hello there hill", "water falls, the quick brown fox", "é中 1234"]
    ours = check_as_auto_tokenizer(changed(tmp_path, kind, change), texts)
    assert_as_published(ours, tmp_path, texts)


def test_llamas_class_with_rules_of_bytes(tmp_path):
    """As newer versions of transformers read it; in 5.17 the spaces are lost."""
    change = named("LlamaTokenizer", legacy=True, add_prefix_space=True)
    folder = changed(tmp_path, kinds.llama3, change)
    assert_as_published(tokenizer_of(folder), folder, TEXTS)


@pytest.mark.parametrize(("kind", "change", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_key_is_refused_by_name(tmp_path, kind, change, reason):
    folder = changed(tmp_path, kind, change)
    named = rf"^{re.escape(str(folder))}.*{reason}"
    with pytest.raises((ModelConfigError, TokenizerError), match=named) as error:
        tokenizer_of(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("add_eos_token", [True, False])
def test_the_own_code_of_gte_qwen2_ends_texts(tmp_path, add_eos_token):
    change = keys(auto_map=OWN_CODE, add_eos_token=add_eos_token)
    raw = tokenizer_of(changed(tmp_path, kinds.qwen2, change)).raw
    text, other = "Hello there", "hill"
    plain, behind = [raw.encode(part, add_special_tokens=False).ids for part in (text, other)]
    end = [raw.token_to_id("<|im_end|>")] * add_eos_token
    assert raw.encode(text).ids == plain + end
    assert raw.encode(text, other).ids == plain + end + behind + end
