"""Types of command-line arguments: each refuses, in words, what it does not mean."""

import argparse
import re

_BYTE_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def port(text: str) -> int:
    """0 to 65535."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def seconds(text: str) -> float:
    """0 or more, with or without decimals."""
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return float(text)


def fraction(text: str) -> float:
    """Above 0, at most 1."""
    if not re.fullmatch(r"\d*\.?\d+", text) or not 0 < float(text) <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction (above 0, at most 1)")
    return float(text)


def size(text: str) -> int:
    """`2GiB`, `512 MB`, `1.5g` or a plain number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmg]i?)?b?", text.lower())
    number = int(float(match[1]) * _BYTE_UNITS[match[2] or ""]) if match else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size, such as 2GiB or 512MB")
    return number


def device(text: str) -> str:
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, cpu, cuda or cuda:N")
    return text
