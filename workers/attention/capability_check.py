"""Checks the capabilities of an attention backend against the needs of a model."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution

import torch

from workers.attention.base import AttentionNeeds, Capabilities
from workers.contract.model_config import AttentionKind


def unmet_need(capabilities: Capabilities, needs: AttentionNeeds) -> str:
    """The first need that is not met, as text; "" if all are met.

    A missing package counts as an unmet need. The GPU is queried last, and only if all else fits.
    """
    device = needs.device.partition(":")[0]
    if needs.paged and not capabilities.causal_paged:
        return "no causal attention over a paged cache"
    if not needs.paged and not capabilities.bidirectional:
        return "no bidirectional attention"
    if missing := _unmet_kind(capabilities, needs.kind):
        return missing
    if device not in capabilities.devices:
        return f"not for device {device!r}"
    if needs.dtype not in capabilities.dtypes:
        return f"not for {needs.dtype}"
    if capabilities.head_dims is not None and needs.head_dim not in capabilities.head_dims:
        return f"head size {needs.head_dim} is not {_one_of(capabilities.head_dims)}"
    if needs.paged and needs.block_size % capabilities.page_multiple:
        return f"block size {needs.block_size} is no multiple of {capabilities.page_multiple}"
    package = capabilities.requires
    if package and not _installed(package.name):
        return f"package {package.name} is not installed ({package.source})"
    return _unmet_compute(capabilities.compute_majors, needs.device)


def _unmet_kind(capabilities: Capabilities, kind: AttentionKind) -> str:
    windows = capabilities.causal_windows if kind.causal else capabilities.bidirectional_windows
    if kind.window is not None and not windows:
        return "no windows"
    if kind.softcap is not None and not capabilities.softcap:
        return "no softcap"
    if kind.position_bias is not None and not capabilities.position_bias:
        return "no position bias"
    return ""


def _one_of(allowed: Sequence[int]) -> str:
    if isinstance(allowed, range):
        return f"a multiple of {allowed.step} up to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _unmet_compute(majors: tuple[int, ...] | None, device: str) -> str:
    if majors is None:
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    if major in majors:
        return ""
    known = ", ".join(f"{number}.x" for number in majors)
    return f"the GPU's compute capability {major}.{minor} is none of {known}"
