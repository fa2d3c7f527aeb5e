"""Attention backends by name: the one table that settings, command line and workers read."""

from enum import StrEnum
from typing import Self


class AttentionBackendName(StrEnum):
    """The values of the setting `attention_backend`, in order of preference.

    implementations  "module:class" of each, best first; imported only when the name is considered
    auto_devices     kinds of devices on which "auto" considers the name
    """

    implementations: tuple[str, ...]
    auto_devices: tuple[str, ...]

    def __new__(
        cls, name: str, implementations: tuple[str, ...] = (), auto_devices: tuple[str, ...] = ()
    ) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.implementations, member.auto_devices = implementations, auto_devices
        return member

    # A message quotes the name, not the member.
    __repr__ = str.__repr__

    AUTO = "auto"
    FLASH_ATTN = (
        "flash_attn",
        (
            "workers.attention.backends.flash_attn:FlashAttention4Backend",
            "workers.attention.backends.flash_attn_fp8:FlashAttention4FP8Backend",
            "workers.attention.backends.flash_attn:FlashAttention3Backend",
            "workers.attention.backends.flash_attn:FlashAttention2Backend",
        ),
        ("cuda",),
    )
    TRITON = "triton", ("workers.attention.backends.triton:TritonBackend",), ("cuda",)
    FLASHINFER = (
        "flashinfer",
        ("workers.attention.backends.flashinfer:FlashInferBackend",),
        ("cuda",),
    )
    SDPA = "sdpa", ("workers.attention.backends.sdpa:SdpaBackend",), ("cpu", "cuda")
    NAIVE = "naive", ("workers.attention.backends.naive:NaiveBackend",)
