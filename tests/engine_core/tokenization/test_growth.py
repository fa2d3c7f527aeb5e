"""Reading tokenizers, and how many times longer one may make texts: what is refused, and that the
bound is one."""

import base64
import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer as RawTokenizer

from engine_core.tokenization.growth import check_growth
from engine_core.tokenization.tokenizer import Tokenizer, TokenizerError, as_exception
from server.demo import EMBEDDER_NAME, demo_models
from server.models.text_bound import TextBound
from tests.engine_core.configs import MODEL

WORDS = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
TEXT_A = {"Sequence": {"id": "A", "type_id": 0}}


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


BLANKS, TEN_LETTERS = replace(" {2,}", " ", "Regex"), replace("a", "a" * 10)


def tokenizer_json(**parts: Any) -> bytes:
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    fixed: dict[str, Any] = {"version": "1.0", "added_tokens": [], "model": WORDS}
    return json.dumps(fixed | dict.fromkeys(names) | parts).encode()


def several(*rules: dict[str, Any], kind: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", kind: list(rules)}


def charsmap(longest: int) -> dict[str, Any]:
    data = (4).to_bytes(4, "little") + b"trie" + b"a\0" + b"b" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}


def special(count: int) -> dict[str, Any]:
    piece = {"SpecialToken": {"id": "S", "type_id": 0}}
    token = {"id": "S", "ids": [1] * count, "tokens": ["?"] * count}
    template = {"single": [piece, TEXT_A], "pair": [piece, TEXT_A]}
    return {"type": "TemplateProcessing", "special_tokens": {"S": token}, **template}


@pytest.mark.parametrize(
    ("parts", "growth"),
    [
        ({}, 1),
        ({"normalizer": {"type": "NFC"}, "pre_tokenizer": BYTES, "decoder": BYTES}, 2),
        ({"normalizer": several(replace("``", '"'), {"type": "NFKD"}, {"type": "Lowercase"})}, 1),
        ({"normalizer": several({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))}, 12),
        ({"normalizer": several(charsmap(33), replace(" {2,}", "▁", "Regex"))}, 4),
        ({"normalizer": several({"type": "NFKD"}, charsmap(33), BLANKS),
          "pre_tokenizer": several(METASPACE, kind="pretokenizers")}, 8),
        ({"normalizer": several(replace(" ", "▁"), {"type": "NFKC"})}, 33),
        ({"post_processor": special(3)}, 1),
    ],
    ids="none bytes lowercase llama xlm-r albert form-behind template".split(),
)  # fmt: skip
def test_the_rules_of_published_tokenizers(parts: dict[str, Any], growth: float) -> None:
    assert check_growth(tokenizer_json(**parts)) == growth


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"normalizer": several(*[TEN_LETTERS] * 6)}, "normalizer and pre_tokenizer may make a"),
        ({"normalizer": several(*[several(TEN_LETTERS)] * 6)}, "more than 1000 times longer"),
        ({"normalizer": replace("a", "b" * 1001)}, "more than 1000 times"),
        ({"normalizer": replace(".", "b" * 1000, "Regex")}, "more than 1000 times"),
        ({"normalizer": replace("", "b" * 1000)}, "more than 1000 times"),
        ({"normalizer": {"pattern": {"String": "a"}, "content": "b" * 1001}}, "more than 1000"),
        ({"normalizer": {"type": "Prepend", "prepend": "b" * 1000}}, "more than 1000 times"),
        ({"normalizer": {"prepend": "b" * 1000}}, "more than 1000 times"),
        ({"normalizer": several(*[{"type": "ByteLevel"}] * 20)}, "more than 1000 times"),
        ({"pre_tokenizer": several(*[BYTES] * 20, kind="pretokenizers")}, "more than 1000 times"),
        ({"pre_tokenizer": several(*[METASPACE] * 9, kind="pretokenizers")}, "more than 1000"),
        ({"normalizer": charsmap(10**5)}, "more than 1000 times"),
        ({"normalizer": several(*[charsmap(33)] * 9)}, "more than 1000 times"),
        ({"normalizer": several(*[replace("l", "ﷺ"), {"type": "NFKD"}] * 4)}, "more than 1000"),
        ({"normalizer": several(*[{"type": "Strip"}] * 1001)}, "normalizer has 1001 rules"),
        ({"decoder": several(*[TEN_LETTERS] * 6, kind="decoders")}, "decoder may make a text"),
        ({"post_processor": special(1) | {"single": [TEXT_A, TEXT_A]}}, "repeats a text"),
        ({"post_processor": special(501)}, "post_processor adds 1002 tokens"),
        ({"post_processor": several(*[special(100)] * 6, kind="processors")}, "adds 1200 tokens"),
        ({"model": WORDS | {"continuing_subword_prefix": "#" * 65}}, "model adds 65 characters"),
        ({"model": WORDS | {"end_of_word_suffix": "#" * 65}}, "model adds 65 characters"),
    ],
)
def test_a_tokenizer_that_multiplies(parts: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json(**parts))
    with pytest.raises(TokenizerError, match=reason) as raised:
        Tokenizer.load(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}/tokenizer.json cannot be read: its ")


def test_added_tokens_are_not_multiplied_either(tmp_path: Path) -> None:
    """The library normalizes them as it reads them."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)
    added = {"id": 2, "content": "a" * 10**5, "normalized": True, **flags}
    data = tokenizer_json(normalizer=several(*[TEN_LETTERS] * 6), added_tokens=[added])
    (tmp_path / "tokenizer.json").write_bytes(data)
    start = time.process_time()
    with pytest.raises(TokenizerError, match="more than 1000 times longer"):
        Tokenizer.load(tmp_path)
    assert time.process_time() - start < 1


def test_of_two_keys_of_one_name_the_library_takes_the_last_too() -> None:
    harmless, none = tokenizer_json().decode(), '"normalizer": null'
    many = f'"normalizer": {json.dumps(several(*[TEN_LETTERS] * 6))}'
    with pytest.raises(ValueError, match="more than 1000 times longer"):
        check_growth(harmless.replace(none, f"{none}, {many}").encode())
    twice = harmless.replace(none, f"{many}, {none}")
    assert check_growth(twice.encode()) == 1
    assert RawTokenizer.from_str(twice).normalizer is None


def test_no_text_grows_more() -> None:
    """Chains of rules by chance, against the library."""
    chance = random.Random(3)
    grown = 0
    for _ in range(300):
        rules = [_rule(chance) for _ in range(chance.randint(1, 4))]
        data = tokenizer_json(normalizer=several(*rules))
        try:
            growth = check_growth(data)
        except ValueError:
            continue
        normalizer: Any = RawTokenizer.from_buffer(data).normalizer
        text = "".join(chance.choices("abcA é", k=50))
        try:
            length = len(normalizer.normalize_str(text).encode())
        except BaseException as error:
            as_exception(error)  # the library panics at some empty matches
            continue
        assert length <= growth * len(text.encode()) * 1.5, rules  # the form of the text itself
        grown += length > 3 * len(text)
    assert grown > 50


def _rule(chance: random.Random) -> dict[str, Any]:
    old = "".join(chance.choices("abc", k=chance.randint(1, 2)))
    new = "".join(chance.choices("abc éﷺ", k=chance.randint(0, 6)))
    return chance.choice(
        [
            replace(old, new),
            replace(chance.choice(["[ab]", "a*", "c+"]), new, "Regex"),
            {"type": "Prepend", "prepend": new},
            {"type": chance.choice(["NFKD", "NFC", "Lowercase"])},
            {"type": "ByteLevel"},
        ]
    )


def test_a_text_that_could_grow_too_long_is_not_tokenized(tmp_path: Path) -> None:
    data = tokenizer_json(normalizer=several(*[TEN_LETTERS] * 3))
    (tmp_path / "tokenizer.json").write_bytes(data)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.growth == 1000
    assert TextBound(tokenizer, 10**6).most_characters == (128 << 20) // 1000


def test_nothing_is_padded_or_truncated_and_special_tokens_can_be_left_out() -> None:
    tokenizer = Tokenizer.load(demo_models()[EMBEDDER_NAME])
    long, short = tokenizer.encode(["word " * 600, "word"])
    assert len(long) // 4 == 602
    assert len(short) // 4 == 3
    (ids,) = tokenizer.encode(["word"], add_special_tokens=False)
    assert tokenizer.decode(np.frombuffer(ids, np.int32).tolist()) == "word"


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model":')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)


def test_made_up_weights_without_a_tokenizer_spell_their_ids(tmp_path: Path) -> None:
    model = msgspec.structs.replace(MODEL, path=str(tmp_path))
    with pytest.raises(TokenizerError):
        Tokenizer.for_model(model, "auto")
    tokenizer = Tokenizer.for_model(model, "dummy")
    (ids,) = tokenizer.encode(["<3> <49> <3>"])
    assert np.frombuffer(ids, np.int32).tolist() == [3, 49, 3]
    assert tokenizer.decode([3, 49, 3]) == "<3> <49> <3>"
