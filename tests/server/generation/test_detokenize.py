import codecs
import functools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine_core.tokenization.tokenizer import Tokenizer
from server.generation.choice import CONTEXT_TOKENS, Detokenizer
from tests.server.support import WORDS


@functools.cache
def sentencepiece(family: str) -> Tokenizer:
    """A space is part of the token after it, rare characters are bytes. Texts of `llama` begin with
    a space that is not theirs, those of `gemma` do not."""
    llama = family == "llama"
    raw = RawTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if llama else "never")
    own = [decoders.Strip(" ", 1, 0)] if llama else []
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *own]
    )
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", *every_byte], show_progress=False
    )
    raw.train_from_iterator([WORDS[0], WORDS[1]], trainer)
    # The trainer knows no other way to add bytes than as special tokens, which have no text.
    trained = json.loads(raw.to_str())
    trained["added_tokens"] = []
    return Tokenizer(RawTokenizer.from_str(json.dumps(trained)))


@pytest.fixture(scope="module", params=["byte-level", "llama", "gemma"])
def any_tokenizer(request, tokenizer: Tokenizer) -> Tokenizer:
    return tokenizer if request.param == "byte-level" else sentencepiece(request.param)


def detokenize(tokenizer: Tokenizer, context: list[int], ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, list(context))
    return [detokenizer.step(token) for token in ids]


def spelled(tokenizer: Tokenizer, ids: list[int], family: str) -> bytes:
    """What the vocabulary's entries say of the bytes of a sentencepiece text."""
    entries = [tokenizer.token_bytes.entry(token) for token in ids]
    bytes_of = [
        bytes([int(entry[3:5], 16)])
        if re.fullmatch("<0x..>", entry)
        else entry.replace("▁", " ").encode()
        for entry in entries
    ]
    return b"".join(bytes_of).removeprefix(b" " if family == "llama" else b"")


BYTES_OF_LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}


@given(data=st.data())
def test_pieces_are_the_text_of_all_bytes_but_half_a_character_at_the_end(tokenizer, data):
    size = tokenizer.raw.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    letters = "".join(tokenizer.token_bytes.entry(token) for token in ids if token > 1)
    whole = bytes(BYTES_OF_LETTERS[letter] for letter in letters)
    expected, _ = codecs.utf_8_decode(whole, "replace", False)
    assert "".join(detokenize(tokenizer, [], ids)) == expected


@pytest.mark.parametrize("family", ["llama", "gemma"])
@given(data=st.data())
def test_bytes_that_are_no_text_lose_nothing_beside_them(family, data):
    tokenizer = sentencepiece(family)
    byte, any_token = st.integers(1, 256), st.integers(0, tokenizer.raw.get_vocab_size() - 1)
    ids = data.draw(st.lists(st.one_of(byte, any_token), max_size=20))
    whole = spelled(tokenizer, ids, family)
    assert tokenizer.decode(ids) == whole.decode(errors="replace")
    certain, _ = codecs.utf_8_decode(whole, "replace", False)
    assert "".join(detokenize(tokenizer, [], ids)) == certain
    cut = data.draw(st.integers(0, len(ids)))
    context = ids[:cut][-CONTEXT_TOKENS:]
    before, _ = codecs.utf_8_decode(spelled(tokenizer, ids[:cut], family), "replace", False)
    assert before + "".join(detokenize(tokenizer, context, ids[cut:])) == certain


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        (b"\xe4", "�"),
        (b"\xe4\xb8", "�"),
        (b"\xe4\xff", "��"),
        (b"\xe4\n", "�\n"),
        (b"\xe4\xe4\xb8\xad", "�中"),
        (b"\xf0\x9f\xf0\x9f\x98\x80\x80", "�😀�"),
        ("中".encode() + b"\xe4", "中�"),
    ],
)
@pytest.mark.parametrize("family", ["llama", "gemma"])
def test_good_text_beside_bad_bytes(family, noise, told):
    tokenizer = sentencepiece(family)
    words = tokenizer.raw.encode("a lazy dog.", add_special_tokens=False).ids
    ids = [*words, *(tokenizer.raw.token_to_id(f"<0x{byte:02X}>") for byte in noise), *words]
    second = " a lazy dog." if family == "llama" else "a lazy dog."
    assert "".join(detokenize(tokenizer, [], ids)) == f"a lazy dog.{told}{second}"
    assert tokenizer.decode(ids) == f"a lazy dog.{told}{second}"


@given(text=st.text(alphabet="aü漢🎉\ufffd\0 \n", max_size=12))
def test_wherever_a_text_is_cut_half_a_character_belongs_to_the_second_part(any_tokenizer, text):
    text = "a" + text  # the space of Metaspace
    encoded = any_tokenizer.raw.encode(text, add_special_tokens=False)
    assert "".join(detokenize(any_tokenizer, [], encoded.ids)) == text
    for place, (begin, _) in enumerate(encoded.offsets):
        before, after = encoded.ids[:place], encoded.ids[place:]
        assert "".join(detokenize(any_tokenizer, [], before)) == text[:begin]
        if place > 0:
            assert "".join(detokenize(any_tokenizer, before, after)) == text[begin:]


def test_half_a_character_behind_a_space_in_one_token(tokenizer):
    ids = tokenizer.raw.encode("a \U0001f600", add_special_tokens=False).ids
    assert tokenizer.token_bytes.entry(ids[1]) == "ĠðŁ"
    assert {"".join(detokenize(tokenizer, [], ids[:end])) for end in (2, 3)} == {"a "}
    assert "".join(detokenize(tokenizer, ids[:2], ids[2:])) == "\U0001f600"


def test_special_tokens_have_no_text(tokenizer):
    assert "".join(detokenize(tokenizer, [], [0, 1, 0])) == ""


@pytest.mark.parametrize(
    "decoder",
    [None, decoders.WordPiece(), decoders.Metaspace(), decoders.ByteLevel(), decoders.Fuse()],
    ids=lambda decoder: type(decoder).__name__,
)
@pytest.mark.parametrize("skips", [False, True])
@given(data=st.data())
def test_texts_are_those_of_every_other_decoder(decoder, skips, data):
    entries = "a ▁a ##a b ▁ . don ' t Ġ é 漢 \ufffd ▁\ufffd".split()
    raw = RawTokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}, "a"))
    raw.decoder = decoder
    raw.add_special_tokens(["<s>", "b"])
    # One id has no token. The last one ends any character.
    ids = [*data.draw(st.lists(st.integers(0, len(entries) + 2), max_size=12)), entries.index(".")]
    pieces = Detokenizer(Tokenizer(raw), [], skip_special_tokens=skips)
    assert "".join(map(pieces.step, ids)) == raw.decode(ids, skip_special_tokens=skips)
