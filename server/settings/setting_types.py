"""Types of settings: their ranges, and functions that read them from a flag's text.

The functions raise argparse.ArgumentTypeError, which says what the text should have been.
"""

import argparse
import re
from typing import Annotated

from msgspec import Meta

from server.settings.api_keys import APIKeyError, checked_key

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
ZeroOrOne = Annotated[int, Meta(ge=0, le=1)]
Bytes = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0, le=10**6)]
Share = Annotated[float, Meta(gt=0, le=1)]
Port = Annotated[int, Meta(ge=0, le=65_535)]
Text = Annotated[str, Meta(min_length=1)]
PriorityRange = tuple[
    Annotated[int, Meta(ge=-(2**63), le=0)], Annotated[int, Meta(ge=0, le=2**63 - 1)]
]

_BYTE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def parse_positive(text: str) -> int:
    """A whole number above 0, of at most 31 bits."""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def parse_zero_or_one(text: str) -> int:
    """0 or 1."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 0 nor 1")
    return int(text)


def parse_stage_layers(text: str) -> tuple[int, ...]:
    """Numbers of layers, each above 0, separated by commas: one for each pipeline stage."""
    numbers = [number.strip() for number in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,8}", number, re.ASCII) for number in numbers):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of layers above 0 for each stage, such as 9,8,8,7"
        )
    return tuple(map(int, numbers))


def parse_names(text: str) -> tuple[str, ...]:
    """One name, or several separated by commas."""
    return tuple(name.strip() for name in text.split(","))


def parse_port(text: str) -> int:
    """0 to 65535."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def parse_seconds(text: str) -> float:
    """0 to a million, with or without decimals."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) > 10**6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)


def parse_priority_range(text: str) -> tuple[int, int]:
    """`-1:1`: the lowest and the highest priority, with 0 between them."""
    match = re.fullmatch(r"(0|-[0-9]{1,19}):([0-9]{1,19})", text)
    low, high = (int(match[1]), int(match[2])) if match else (1, 0)
    if not -(2**63) <= low <= 0 <= high < 2**63:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a range of priorities that contains 0, such as -1:1"
        )
    return low, high


def parse_share(text: str) -> float:
    """Above 0, at most 1."""
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction (above 0, at most 1)")
    return float(text)


def parse_size(text: str) -> int:
    """`2GiB`, `512 MB`, `1.5g` or a plain number of bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kmg]i?)?b?", text.lower())
    number = float(match[1]) * _BYTE_UNITS[match[2] or ""] if match else 0
    if not 1 <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 2GiB or 512MB")
    return int(number)


def parse_device(text: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,4})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda or cuda:N")
    return text


def parse_origin(text: str) -> str:
    """`https://chat.example.org`, as a browser sends it in `Origin`; `*` for any."""
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an origin, such as https://chat.example.org (lower case, no path)"
        )
    return text


def parse_traces_endpoint(text: str) -> str:
    """`http://collector:4318/v1/traces`; a name and a password in it would be logged."""
    if not re.fullmatch(r"https?://[^\s/?#@]+/\S*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a URL for OTLP over HTTP, such as http://localhost:4318/v1/traces"
        )
    return text


def parse_api_key(text: str) -> str:
    """A key that an HTTP header can carry. Error messages do not show it."""
    try:
        return checked_key(text)
    except APIKeyError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
