"""Where keys come from, what may be one, and who is let in."""

import hashlib
from pathlib import Path

import pytest

from server.settings.api_keys import (
    APIKeyError,
    GivenKey,
    checked_key,
    hashed,
    read_key_file,
)


def write(folder: Path, content: bytes) -> Path:
    file = folder / "keys"
    file.write_bytes(content)
    return file


def test_a_key_file(tmp_path: Path) -> None:
    file = write(tmp_path, b"# ours\n\nalpha\r\n  beta  \n\t# theirs\ngam#ma")
    assert read_key_file(file) == [GivenKey("alpha"), GivenKey("beta"), GivenKey("gam#ma")]


def test_keys_with_a_name_and_a_weight(tmp_path: Path) -> None:
    file = write(tmp_path, b"name=shop weight=2.5 alpha\nweight=1 beta\nname=x=y\n")
    assert read_key_file(file) == [
        GivenKey("alpha", "shop", 2.5),
        GivenKey("beta"),
        GivenKey("name=x=y"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key"),
        (b"# only a comment\n\n", "holds no key"),
        (b"good\nsecret key\n", "line 2 of "),
        ("gr\u00fcn".encode(), "line 1 of "),
        (b"nul\0nul", "line 1 of "),
        (b"name= key", "before the key there may be name=NAME"),
        (b"name=all key", "not all or other"),
        (b"owner=me key", "before the key there may be name=NAME"),
        (b"weight=0 key", "weight: a number from 0.01 to 100"),
        (b"weight=nan key", "weight: a number from 0.01 to 100"),
        (b"weight=much key", "weight: a number from 0.01 to 100"),
        (b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_files_without_a_usable_key(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(APIKeyError, match=message) as caught:
        read_key_file(write(tmp_path, content))
    assert "secret" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(APIKeyError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "keys")
    with pytest.raises(APIKeyError, match="cannot be read: Is a directory"):
        read_key_file(tmp_path)


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "\x7f", "é"])
def test_what_no_header_carries_is_no_key(key: str) -> None:
    with pytest.raises(APIKeyError):
        checked_key(key)


def test_only_digests_are_kept() -> None:
    keys = hashed([GivenKey("a", "first"), GivenKey("b"), GivenKey("a", "second")])
    digests = [hashlib.sha256(key).hexdigest() for key in (b"a", b"b")]
    assert [key.digest for key in keys] == digests
    assert [key.name for key in keys] == ["first", "key-2"]
