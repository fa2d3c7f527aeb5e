"""Where keys come from, what may be one, and who is let in."""

import hashlib
from pathlib import Path

import pytest

from server.settings.api_keys import APIKeyError, KeyCheck, checked_key, digests, read_key_file


def write(folder: Path, content: bytes) -> Path:
    file = folder / "keys"
    file.write_bytes(content)
    return file


def test_a_key_file(tmp_path: Path) -> None:
    file = write(tmp_path, b"# ours\n\nalpha\r\n  beta  \n\t# theirs\ngam#ma")
    assert read_key_file(file) == ["alpha", "beta", "gam#ma"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no key"),
        (b"# only a comment\n\n", "holds no key"),
        (b"good\nsecret key\n", "line 2 of "),
        ("gr\u00fcn".encode(), "line 1 of "),
        (b"nul\0nul", "line 1 of "),
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
    assert digests(["a", "b", "a"]) == tuple(
        hashlib.sha256(key).hexdigest() for key in (b"a", b"b")
    )


@pytest.mark.parametrize("header", [b"Bearer one", b"bearer two", b"BEARER  two ", b"Bearer two\t"])
def test_every_key_opens(header: bytes) -> None:
    assert KeyCheck(digests(["one", "two"])).admits(header)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"one",
        b"Basic one",
        b"Bearerone",
        b"Bearer on",
        b"Bearer one two",
        b"Bearer one,two",
        b"Bearer one\xff",
        b"Bearer " + digests(["one"])[0].encode(),
        b"Bearer " + b"x" * 60_000,
    ],
)
def test_nothing_else_opens(header: bytes) -> None:
    assert not KeyCheck(digests(["one", "two"])).admits(header)


def test_without_keys_everyone_is_let_in() -> None:
    assert KeyCheck(()).admits(b"")
    assert KeyCheck(()).admits(b"Bearer whatever")
