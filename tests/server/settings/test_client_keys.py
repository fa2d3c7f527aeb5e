"""Who is let in, and what follows from whose a request is."""

import pytest

from server.settings.api_keys import ALL_KEYS, ANYBODY, ClientKey, ClientKeys, GivenKey, hashed
from tests.server.support import api_keys

SECRET = "5e" * 32


@pytest.mark.parametrize("header", [b"Bearer one", b"bearer two", b"BEARER  two ", b"Bearer two\t"])
def test_every_key_opens(header: bytes) -> None:
    assert ClientKeys(api_keys("one", "two")).find(header) is not None


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
        b"Bearer " + api_keys("one")[0].digest.encode(),
        b"Bearer " + b"x" * 60_000,
    ],
)
def test_nothing_else_opens(header: bytes) -> None:
    assert ClientKeys(api_keys("one", "two")).find(header) is None


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
    salts = [client(keys, text).salted("own") for text in "abcd"]
    assert len(set(salts)) == 3
    assert salts[1] == salts[2]
    assert all(salt.endswith("own") for salt in salts)
    assert ClientKeys(hashed(given), "00" * 32).find(b"Bearer a") != client(keys, "a")
    shared = ClientKeys(hashed(given), SECRET, (ALL_KEYS,))
    assert {client(shared, text).salted("own") for text in "abcd"} == {"own"}


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
