"""Which network interface of this host reaches another one."""

import ctypes
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from server.cluster.address import Address, AddressError

_SIOCGIFCONF = 0x8912
_ENTRY = struct.Struct("16s4x4s16x")  # struct ifreq of an IPv4 address on 64-bit Linux
_MOST_ADDRESSES = 1024
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_LOOPBACK = "lo"


def own_address(master: Address) -> str:
    """The address of this host from which packets reach the master. Raises AddressError."""
    with socket.socket(master.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((master.host, master.port))  # sends nothing
        except OSError as error:
            raise AddressError(f"no way leads to {master}: {error.strerror}") from None
        return probe.getsockname()[0].partition("%")[0]


def interface_of(address: str) -> str:
    """The interface that has an address of this host. Raises AddressError."""
    if ipaddress.ip_address(address).is_loopback:
        return _LOOPBACK
    for name, each in [*_ipv4_addresses(), *_ipv6_addresses()]:
        if each == ipaddress.ip_address(address):
            return name
    raise AddressError(f"no interface of this host has the address {address}")


def check_interface(name: str) -> None:
    """Raises AddressError unless this host has an interface of that name."""
    names = [each for _, each in socket.if_nameindex()]
    if name not in names:
        raise AddressError(f"this host has no interface {name} ({', '.join(names)})")


def _ipv4_addresses() -> list[tuple[str, ipaddress.IPv4Address]]:
    room = bytearray(_ENTRY.size * _MOST_ADDRESSES)
    buffer = (ctypes.c_char * len(room)).from_buffer(room)
    request = bytearray(struct.pack("iP", len(room), ctypes.addressof(buffer)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCGIFCONF, request)
    (used,) = struct.unpack_from("i", request)
    entries = _ENTRY.iter_unpack(bytes(room[:used]))
    # An alias is called eth0:1.
    return [
        (name.rstrip(b"\0").decode().partition(":")[0], ipaddress.IPv4Address(packed))
        for name, packed in entries
    ]


def _ipv6_addresses() -> list[tuple[str, ipaddress.IPv6Address]]:
    file = _IPV6_ADDRESSES
    rows = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(row[5], ipaddress.IPv6Address(bytes.fromhex(row[0]))) for row in rows]
