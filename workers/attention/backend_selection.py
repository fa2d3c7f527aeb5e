"""Attention backends by name, and the choice of one for a model on a device."""

import logging
from collections.abc import Sequence
from importlib import import_module

import torch

from workers.attention.base import AttentionBackend, AttentionNeeds
from workers.attention.capability_check import unmet_need
from workers.attention.probe import Probe, Probed, ProbeError

_BACKENDS: dict[str, tuple[str, ...]] = {
    "flash_attn": (
        "workers.attention.backends.flash_attn4:FlashAttention4Backend",
        "workers.attention.backends.flash_attn3:FlashAttention3Backend",
        "workers.attention.backends.flash_attn2:FlashAttention2Backend",
    ),
    "triton": ("workers.attention.backends.triton:TritonBackend",),
    "flashinfer": ("workers.attention.backends.flashinfer:FlashInferBackend",),
    "xformers": ("workers.attention.backends.xformers:XformersBackend",),
    "sdpa": ("workers.attention.backends.sdpa:SdpaBackend",),
    "naive": ("workers.attention.backends.naive:NaiveBackend",),
}
"""The implementations of each name, best first; imported when they are asked about."""

_AUTO: dict[str, tuple[str, ...]] = {
    "cpu": ("sdpa",),
    "cuda": ("flash_attn", "triton", "flashinfer", "xformers", "sdpa"),
}
"""What "auto" tries on a kind of device, preferred first. Never the control group."""

_logger = logging.getLogger(__name__)


class AttentionBackendError(ValueError):
    """No such backend, or it cannot do what the model needs; one line names those that can."""


def select_backend(name: str, needs: AttentionNeeds) -> AttentionBackend:
    """The backend called `name`, or with "auto" the fastest one that does what `needs` asks.

    On CUDA every candidate first runs a few probe steps of the model's shape, which compiles its
    kernels; one that fails there is passed over with a warning. Raises AttentionBackendError where
    none is left, which for a backend asked for by name is its own failure.
    """
    kind = needs.device.partition(":")[0]
    if name != "auto" and name not in _BACKENDS:
        raise AttentionBackendError(
            f"no attention backend {name!r} for {_describe(needs)}; {_would_do(needs)}"
        )
    names = _AUTO.get(kind, ()) if name == "auto" else (name,)
    fitting = [(known, path) for known in names for path in _BACKENDS[known]]
    fitting = [(known, path) for known, path in fitting if not _unmet_need(path, needs)]
    if not fitting:
        why = "" if name == "auto" else f" ({_unmet_needs(name, needs)})"
        raise AttentionBackendError(
            f"attention backend {name!r} cannot do {_describe(needs)}{why}; {_would_do(needs)}"
        )
    if kind != "cuda":
        return _implementation(fitting[0][1])(needs)
    backend = _fastest(name, fitting, needs)
    torch.cuda.empty_cache()  # of the probe's tensors, before anyone asks how much memory is free
    return backend


def _fastest(
    name: str, fitting: Sequence[tuple[str, str]], needs: AttentionNeeds
) -> AttentionBackend:
    """Of each name the first implementation that passes the probe, and of those the fastest."""
    probe = Probe(needs)
    passed: dict[str, Probed] = {}
    failures: list[str] = []
    for known, path in fitting:
        if known in passed:
            continue
        try:
            passed[known] = probe.run(_implementation(path))
        except ProbeError as error:
            failures.append(f"{_label(path)}: {error}")
            _logger.warning("attention backend %s fails, passed over: %s", _label(path), error)
    if not passed:
        tried = {known for known, _ in fitting}
        raise AttentionBackendError(
            f"attention backend {name!r} fails on {needs.device!r} ({'; '.join(failures)}); "
            f"{_would_do(needs, tried)}"
        )
    best = min(passed, key=lambda known: sum(passed[known].milliseconds.values()))
    _logger.info("attention backend %s; measured %s", best, _table(passed))
    return passed[best].backend


def _implementation(path: str) -> type[AttentionBackend]:
    module, _, attribute = path.partition(":")
    backend: type[AttentionBackend] = getattr(import_module(module), attribute)
    return backend


def _unmet_need(path: str, needs: AttentionNeeds) -> str:
    return unmet_need(_implementation(path).capabilities, needs)


def _unmet_needs(name: str, needs: AttentionNeeds) -> str:
    """Why none of a name's implementations fits, each by itself where they differ."""
    reasons = {_label(path): _unmet_need(path, needs) for path in _BACKENDS[name]}
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{label}: {reason}" for label, reason in reasons.items())


def _label(path: str) -> str:
    """An implementation in messages: the last part of its module's name."""
    return path.partition(":")[0].rpartition(".")[2]


def _would_do(needs: AttentionNeeds, tried: frozenset[str] | set[str] = frozenset()) -> str:
    able = [
        name
        for name, paths in _BACKENDS.items()
        if name not in tried and not all(_unmet_need(path, needs) for path in paths)
    ]
    return f"these would do: {', '.join(able)}" if able else "no other would do"


def _describe(needs: AttentionNeeds) -> str:
    kind = "causal paged" if needs.paged else "bidirectional"
    return f"{kind} attention on {needs.device!r} in {needs.dtype}"


def _table(passed: dict[str, Probed]) -> str:
    """Times by backend in one line, microseconds."""
    rows = (
        f"{name} "
        + ", ".join(f"{step} {time * 1000:.0f} µs" for step, time in row.milliseconds.items())
        for name, row in passed.items()
    )
    return "; ".join(rows)
