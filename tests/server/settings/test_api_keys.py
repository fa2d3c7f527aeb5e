"""Where keys come from, what may be one, and what each lets a client do."""

import hashlib
from pathlib import Path

import pytest

from server.settings.api_keys import (
    ALL_KEYS,
    ANYBODY,
    APIKeyError,
    ClientKey,
    ClientKeys,
    GivenKey,
    checked_key,
    hashed,
    read_key_file,
)
from tests.server.support import api_keys

SECRET = "5e" * 32


def write(folder: Path, content: bytes) -> Path:
    file = folder / "keys"
    file.write_bytes(content)
    return file


def test_keys_of_a_file_may_have_a_name_and_a_weight(tmp_path: Path) -> None:
    lines = b"# ours\n\nalpha\r\n  beta  \n\t# theirs\ngam#ma\n"
    lines += b"name=shop weight=2.5 delta\nweight=1 epsilon\nname=null zeta\nname=x=y"
    assert read_key_file(write(tmp_path, lines)) == [
        GivenKey("alpha"),
        GivenKey("beta"),
        GivenKey("gam#ma"),
        GivenKey("delta", "shop", 2.5),
        GivenKey("epsilon"),
        GivenKey("zeta", "null"),
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
        (b"text=x key", "before the key there may be name=NAME"),
        (b"=x key", "before the key there may be name=NAME"),
        (b"weight=0 key", "weight=NUMBER .from 0.01 to 100"),
        (b"weight=nan key", "weight=NUMBER .from 0.01 to 100"),
        (b"weight=much key", "weight=NUMBER .from 0.01 to 100"),
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


@pytest.mark.parametrize(
    ("headers", "opens"),
    [
        ((b"Bearer one", b"bearer two", b"BEARER  two ", b"Bearer two\t"), True),
        ((b"", b"one", b"Basic one", b"Bearer", b"Bearer ", b"Bearerone", b"Bearer on"), False),
        ((b"Bearer one two", b"Bearer one,two", b"Bearer one\xff"), False),
        ((b"Bearer " + b"x" * 60_000,), False),
        ((b"Bearer " + api_keys("one")[0].digest.encode(),), False),
    ],
)
def test_every_key_opens_and_nothing_else(headers: tuple[bytes, ...], opens: bool) -> None:
    keys = ClientKeys(api_keys("one", "two"))
    assert [keys.find(header) is not None for header in headers] == [opens] * len(headers)


def test_without_keys_everyone_is_let_in() -> None:
    assert ClientKeys(()).find(b"") is ANYBODY
    assert ClientKeys(()).find(b"Bearer whatever") is ANYBODY


def client(keys: ClientKeys, text: str) -> ClientKey:
    found = keys.find(f"Bearer {text}".encode())
    assert found is not None
    return found


def test_keys_share_no_prefixes_unless_they_are_named() -> None:
    given = [GivenKey(text, name) for text, name in zip("abcd", "ABCD", strict=True)]
    keys = ClientKeys(hashed(given), SECRET, ("B", "C"))
    salts = [client(keys, text).salt for text in "abcd"]
    assert len(set(salts)) == 3
    assert salts[1] == salts[2]
    assert ClientKeys(hashed(given), "00" * 32).find(b"Bearer a") != client(keys, "a")
    shared = ClientKeys(hashed(given), SECRET, (ALL_KEYS,))
    assert {client(shared, text).salt for text in "abcd"} == {""}


def test_each_of_several_keys_has_a_share_by_its_weight() -> None:
    keys = ClientKeys(hashed([GivenKey("a", weight=2.0), GivenKey("b")]), SECRET)
    a, b = client(keys, "a").share, client(keys, "b").share
    assert (a.weight, b.weight) == (2.0, 1.0)
    assert len({a.number, b.number, 0}) == 3
    keys.replace(api_keys("a"))
    assert client(keys, "a").share.number == 0, "there is nobody to share with"


def test_keys_of_one_name_store_together_and_share_nothing_else() -> None:
    given = [GivenKey("a", "shop"), GivenKey("b", "shop", 2.0), GivenKey("c", "lab"), GivenKey("d")]
    keys = ClientKeys(hashed(given), SECRET)
    a, b, c, d = (client(keys, text) for text in "abcd")
    assert (a.owner, b.owner, c.owner) == ("name:shop", "name:shop", "name:lab")
    assert d.owner == hashed(given)[3].digest
    assert a.salt != b.salt
    assert a.share.number != b.share.number
    assert keys.of_owner("name:shop").salt == a.salt


def test_a_name_that_nobody_gave_owns_nothing() -> None:
    first, second = (ClientKeys(api_keys(*order), SECRET) for order in ("ab", "ba"))
    assert client(first, "a").name == client(second, "b").name == "key-1"
    assert client(first, "a").owner == client(second, "a").owner != client(second, "b").owner
    named = ClientKeys(hashed([GivenKey("c", "key-1"), GivenKey("b")]))
    assert client(named, "c").owner == "name:key-1"


def test_what_is_stored_is_computed_in_the_name_of_its_owner() -> None:
    keys = ClientKeys(api_keys("a", "b"), SECRET)
    of_request = client(keys, "a")
    of_batch = keys.of_owner(of_request.owner)
    assert of_batch.salt == of_request.salt
    assert of_batch.share.number == 0
    keys.replace(api_keys("b"))
    assert keys.of_owner(client(ClientKeys(api_keys("a")), "a").owner).salt == of_request.salt
    assert ClientKeys(()).of_owner("") == ANYBODY
