"""The master's address, and the interface that reaches it."""

import socket
from pathlib import Path

import pytest

from server.cluster import interface
from server.cluster.address import Address, AddressError
from server.cluster.interface import check_interface, interface_of, own_address


@pytest.mark.parametrize(
    ("text", "host", "endpoints"),
    [
        ("127.0.0.1:7000", "127.0.0.1", ["tcp://127.0.0.1:7000", "tcp://127.0.0.1:7002"]),
        ("[::1]:65533", "::1", ["tcp://[::1]:65533", "tcp://[::1]:65535"]),
    ],
)
def test_its_ports_follow_each_other(text: str, host: str, endpoints: list[str]) -> None:
    address = Address.of(text)
    assert (address.host, str(address)) == (host, text)
    assert [address.endpoint(), address.endpoint(2)] == endpoints


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("127.0.0.1:0", "the port of 127.0.0.1:0 is not 1 to 65533"),
        ("127.0.0.1:65534", "is not 1 to 65533: the next two are used, too"),
        ("no.such.host.invalid:7000", "no.such.host.invalid:7000 cannot be looked up"),
        (f"{'x' * 300}:7000", "cannot be looked up"),
    ],
)
def test_an_address_that_is_none(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        Address.of(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7000", "127.9.9.9:7000"])
def test_loopback_is_reached_by_lo(text: str) -> None:
    address = own_address(Address.of(text))
    assert interface_of(address) == "lo"


def test_each_address_is_that_of_one_interface() -> None:
    names = {name for _, name in socket.if_nameindex()}
    found = [*interface._ipv4_addresses(), *interface._ipv6_addresses()]
    assert {name for name, _ in found} <= names
    assert ("lo", "127.0.0.1") in [(name, str(address)) for name, address in found]
    for name, address in found:
        assert interface_of(str(address)) == name


def test_an_address_of_another_host() -> None:
    with pytest.raises(
        AddressError, match=r"no interface of this host has the address 192\.0\.2\.99"
    ):
        interface_of("192.0.2.99")


def test_free_ports_are_of_this_host_alone() -> None:
    address = Address.free("127.0.0.1")
    for port in range(address.port, address.port + 3):
        with socket.socket() as free:
            free.bind(("127.0.0.1", port))
    with pytest.raises(AddressError, match=r"cannot listen on 192\.0\.2\.1: "):
        Address.free("192.0.2.1")


def test_an_interface_that_is_not_there() -> None:
    check_interface("lo")
    with pytest.raises(AddressError, match=r"this host has no interface ib7 \(.*lo"):
        check_interface("ib7")


def test_a_kernel_without_ipv6(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(interface, "_IPV6_ADDRESSES", tmp_path / "none")
    assert interface_of("127.0.0.1") == "lo"
    assert interface._ipv6_addresses() == []
