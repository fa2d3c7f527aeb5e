"""Tokenizers without a tokenizer.json: converted once, compared, kept; or refused in one line."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer as RawTokenizer
from tokenizers.pre_tokenizers import ByteLevel
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError
from server.demo import EMBEDDER_NAME, demo_models
from server.models import convert_main, slow_tokenizer
from server.models.convert_main import NUM_TEXTS, ConversionError, convert, odd_texts
from server.models.slow_tokenizer import with_tokenizer
from tests.server.checkpoint_folders import BERT, write_checkpoint, write_json
from tests.server.support import set_up
from workers.contract.checkpoint.checkpoint_config import read_model_config
from workers.contract.config import LoadFormat
from workers.contract.model_config import ModelConfig

SPECIAL = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "penstock" / "tokenizers"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A real BERT's vocabulary.txt and no tokenizer.json."""
    folder = write_checkpoint(tmp_path / "bert", BERT | {"model_type": "bert"})
    (folder / "tokenizer.json").unlink()
    demo = json.loads((demo_models()[EMBEDDER_NAME] / "tokenizer.json").read_text())
    ids = demo["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.get)) + "\n")
    write_json(folder / "tokenizer_config.json", {"do_lower_case": True, "model_max_length": 64})
    return folder


def model_of(folder: Path, **options: Any) -> ModelConfig:
    return set_up(folder, **options).execution.model


def test_a_vocabulary_alone_becomes_a_tokenizer_once(
    bert: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(bert)
    assert model.tokenizer_file is not None
    assert [str(file) for file in cache.iterdir()] == [model.tokenizer_file]
    texts = odd_texts(SPECIAL)
    ids = Tokenizer.for_model(model, "auto").encode(texts)
    slow: Any = BertTokenizerLegacy(str(bert / "vocab.txt"))
    for text, own in zip(texts, ids, strict=True):
        assert memoryview(own).cast("i").tolist() == slow(text)["input_ids"], text

    monkeypatch.setattr(slow_tokenizer, "run_program", None)
    assert model_of(bert) == model


def test_another_vocabulary_or_setting_is_another_tokenizer(
    bert: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file has the same name and size."""
    monkeypatch.setattr(slow_tokenizer, "run_program", lambda *paths: Path(paths[-1]).touch())
    plain = read_model_config(bert)
    first = with_tokenizer(plain, "auto").tokenizer_file
    lines = (bert / "vocab.txt").read_text().splitlines()
    (bert / "vocab.txt").write_text("\n".join(lines[::-1]) + "\n")
    second = with_tokenizer(plain, "auto").tokenizer_file
    write_json(bert / "tokenizer_config.json", {"do_lower_case": False})
    third = with_tokenizer(plain, "auto").tokenizer_file
    assert len({first, second, third}) == 3
    assert {str(file) for file in cache.iterdir()} == {first, second, third}


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_tokenizer_json_and_dummy_weights_need_none(
    bert: Path, cache: Path, load_format: LoadFormat
) -> None:
    if load_format == "auto":
        Tokenizer.load(demo_models()[EMBEDDER_NAME]).raw.save(str(bert / "tokenizer.json"))
    assert model_of(bert, load_format=load_format).tokenizer_file is None
    assert not cache.exists()


def trained_folder(parent: Path, family: str, tokenizer: str, **training: Any) -> Path:
    """A folder with a sentencepiece model, trained on some lines of code."""
    folder = parent / family
    folder.mkdir()
    lines = Path(slow_tokenizer.__file__).read_text().splitlines()
    with (folder / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, minloglevel=2, **training
        )
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": tokenizer})
    write_json(folder / "config.json", {"model_type": family})
    return folder


@pytest.fixture
def xlm_roberta(tmp_path: Path) -> Path:
    """A folder with a small sentencepiece model, as XLM-RoBERTa's slow form has it."""
    folder = trained_folder(tmp_path, "xlm-roberta", "XLMRobertaTokenizer", vocab_size=200)
    (folder / "tokenizer.model").rename(folder / "sentencepiece.bpe.model")
    return folder


def test_a_sentencepiece_model_is_converted(xlm_roberta: Path, tmp_path: Path) -> None:
    convert(xlm_roberta, tmp_path / "converted.json")
    pieces = SentencePieceProcessor(model_file=str(xlm_roberta / "sentencepiece.bpe.model"))
    ids = RawTokenizer.from_file(str(tmp_path / "converted.json")).encode("import sys").ids
    # The first three pieces have other numbers: <s>, <pad>, </s>, <unk> come before the others.
    assert ids == [0, *(piece + 1 for piece in pieces.encode("import sys")), 2]


def test_a_sentencepiece_model_that_is_read_otherwise_is_refused(
    xlm_roberta: Path, tmp_path: Path
) -> None:
    """Llama's form takes texts as they are; this model brings them into a form of Unicode's."""
    (xlm_roberta / "sentencepiece.bpe.model").rename(xlm_roberta / "tokenizer.model")
    write_json(xlm_roberta / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"})
    write_json(xlm_roberta / "config.json", {"model_type": "llama"})
    with pytest.raises(ConversionError, match="otherwise once it is converted"):
        convert(xlm_roberta, tmp_path / "converted.json")


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with a small sentencepiece model of the kind that Llama has."""
    return trained_folder(
        tmp_path,
        "llama",
        "LlamaTokenizer",
        model_type="bpe",
        vocab_size=500,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
    )


def test_a_space_before_every_text_is_kept(llama: Path, tmp_path: Path) -> None:
    """The 200 odd texts are read as sentencepiece reads them; some of them are below too."""
    convert(llama, tmp_path / "converted.json")
    converted = RawTokenizer.from_file(str(tmp_path / "converted.json"))
    pieces = SentencePieceProcessor(model_file=str(llama / "tokenizer.model"))
    for text in ("", " ", "import sys", "  import  sys ", "▁a", "é\u0301", "\n"):
        assert converted.encode(text).ids == [1, *pieces.encode(text)]
    assert converted.encode("a</s> b").ids == [1, *pieces.encode("a"), 2, *pieces.encode(" b")]
    assert converted.decode(pieces.encode(" import  sys")) == " import  sys"
    settings = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False}
    write_json(llama / "tokenizer_config.json", settings)
    convert(llama, tmp_path / "bare.json")
    bare = RawTokenizer.from_file(str(tmp_path / "bare.json"))
    assert bare.encode("a").ids == pieces.encode("a")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"legacy": False}, "legacy: false has no exact fast form"),
        ({}, "it reads ' ' otherwise once it is converted"),
    ],
    ids=["before the first text alone", "left out"],
)
def test_a_space_before_some_texts_is_refused(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict, reason: str
) -> None:
    write_json(llama / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"} | settings)
    if not settings:
        monkeypatch.setattr(convert_main, "_as_llama", lambda *_: None)
    with pytest.raises(ConversionError, match=reason):
        convert(llama, tmp_path / "converted.json")


def test_files_that_transformers_does_not_read(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bert / "vocab.txt").write_bytes(b"\xff")
    monkeypatch.setattr(sys, "argv", ["convert_main", str(bert), str(bert / "target")])
    with pytest.raises(SystemExit, match=r"did not contain valid UTF-8$"):
        convert_main.main()


@pytest.mark.parametrize(
    ("program", "reason"),
    [("import sys; sys.exit('why')", "why"), ("import os; os.kill(os.getpid(), 9)", "status -9")],
)
def test_a_process_that_fails_leaves_nothing(
    bert: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, program: str, reason: str
) -> None:
    (bert.parent / "failing.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(bert.parent))
    monkeypatch.setattr(slow_tokenizer, "_PROGRAM", "failing")
    with pytest.raises(TokenizerError) as error:
        with_tokenizer(read_model_config(bert), "auto")
    assert str(error.value) == (
        f"the tokenizer of {bert} exists only in slow form (vocab.txt), and cannot be converted: "
        + reason
    )
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda file, _: file.rename(file.with_name("tekken.json")), r"Tekken\), which is not"),
        (lambda file, _: file.unlink(), r"tokenizer\.json is missing from"),
        (
            lambda _, patch: patch.setattr(slow_tokenizer, "find_spec", lambda _: None),
            r"vocab.txt\): pip install 'penstock\[convert\]'",
        ),
        (lambda file, patch: patch.setenv("XDG_CACHE_HOME", str(file)), "written: .*Not a direct"),
    ],
    ids=["tekken", "none", "without the extra", "no cache"],
)
def test_tokenizers_that_are_refused(
    bert: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[..., object], reason: str
) -> None:
    spoil(bert / "vocab.txt", monkeypatch)
    with pytest.raises(TokenizerError, match=reason):
        model_of(bert)


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_byte_level_vocabularies(tmp_path: Path, kind: str) -> None:
    """With a few merges, as GPT-2's."""
    folder = tmp_path / kind
    merges = "h e,l l,he ll,hell o,Ġ w,o r,Ġ a,Ã ¤,e r,1 2,Ġ Ġ,t h".split(",")
    merged = ("".join(pair.split()) for pair in merges)
    tokens = dict.fromkeys([*sorted(ByteLevel.alphabet()), *merged, "<|endoftext|>"])
    folder.mkdir()
    write_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    write_json(folder / "config.json", {"model_type": kind})
    write_json(folder / "tokenizer_config.json", {"unk_token": "<|endoftext|>"})
    convert(folder, tmp_path / "tokenizer.json")
    (ids,) = Tokenizer.load(tmp_path).encode(["hello wä<|endoftext|>"])
    assert memoryview(ids).cast("i").tolist() == [259, 260, 263, 268]


def test_the_comparison_notices(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = bert / "converted.json"
    convert(bert, target)
    slow = BertTokenizerLegacy(str(bert / "vocab.txt"))
    monkeypatch.setattr(BertTokenizerLegacy, "tokenize", lambda _, text: slow._tokenize(text + "."))
    with pytest.raises(ConversionError, match=r"reads .* otherwise once it is converted"):
        convert(bert, target)


@pytest.mark.parametrize("special", [[], SPECIAL, [f"<{n}x>" for n in range(300)]])
def test_there_are_enough_odd_texts(special: list[str]) -> None:
    texts = odd_texts(special)
    assert len(texts) == len(set(texts)) == NUM_TEXTS
