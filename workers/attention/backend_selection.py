"""Selects the attention backends of a model on a device, one a kind of layer."""

import logging
from collections.abc import Sequence, Set
from importlib import import_module

import torch

from workers.attention.base import AttentionBackend, AttentionNeeds
from workers.attention.capability_check import unmet_need
from workers.attention.probe import Probe, Probed, ProbeError
from workers.contract.attention_backends import AttentionBackendName

_BACKENDS: dict[str, tuple[str, ...]] = {
    name.value: name.implementations for name in AttentionBackendName if name.implementations
}
_AUTO: dict[str, tuple[str, ...]] = {
    kind: tuple(name.value for name in AttentionBackendName if kind in name.auto_devices)
    for kind in ("cpu", "cuda")
}

_logger = logging.getLogger(__name__)


class AttentionBackendError(ValueError):
    """No such backend, or it cannot serve the model; the message names those that can."""


def select_backends(name: str, needs: Sequence[AttentionNeeds]) -> list[AttentionBackend]:
    """`select_backend` for each kind of layer; the backends may differ."""
    return [select_backend(name, own) for own in needs]


def select_backend(name: str, needs: AttentionNeeds) -> AttentionBackend:
    """The backend called `name`; for "auto" the fastest one that meets `needs`.

    On CUDA every candidate first runs a few probe steps of the model's shape, which compiles its
    kernels; one that fails is skipped with a warning. Raises AttentionBackendError if none is left:
    for a backend requested by name, that is its own failure.
    """
    kind = needs.device.partition(":")[0]
    if name != "auto" and name not in _BACKENDS:
        raise AttentionBackendError(
            f"no attention backend {name!r} for {_describe(needs)}; {_alternatives(needs)}"
        )
    names = _AUTO.get(kind, ()) if name == "auto" else (name,)
    candidates = [(known, path) for known in names for path in _BACKENDS[known]]
    fitting = [(known, path) for known, path in candidates if not _unmet_need(path, needs)]
    if not fitting:
        why = "" if name == "auto" else f" ({_unmet_needs(name, needs)})"
        raise AttentionBackendError(
            f"attention backend {name!r} cannot do {_describe(needs)}{why}; {_alternatives(needs)}"
        )
    if kind != "cuda":
        return _implementation(fitting[0][1])(needs)
    backend = _fastest(name, fitting, needs)
    torch.cuda.empty_cache()  # Frees the probe's tensors before free memory is measured.
    return backend


def _fastest(
    name: str, fitting: Sequence[tuple[str, str]], needs: AttentionNeeds
) -> AttentionBackend:
    """The fastest backend in the probe; each name enters with its first implementation that works.

    `fitting` are pairs of a name and an implementation's path.
    """
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
            f"{_alternatives(needs, tried)}"
        )
    best = min(passed, key=lambda known: sum(passed[known].milliseconds.values()))
    kind = _describe_kind(needs)
    _logger.info("attention backend %s for %s; measured %s", best, kind, _table(passed))
    return passed[best].backend


def _implementation(path: str) -> type[AttentionBackend]:
    module, _, attribute = path.partition(":")
    backend: type[AttentionBackend] = getattr(import_module(module), attribute)
    return backend


def _unmet_need(path: str, needs: AttentionNeeds) -> str:
    return unmet_need(_implementation(path).capabilities, needs)


def _unmet_needs(name: str, needs: AttentionNeeds) -> str:
    """Why no implementation of a name fits, one by one if the reasons differ."""
    reasons = {_label(path): _unmet_need(path, needs) for path in _BACKENDS[name]}
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{label}: {reason}" for label, reason in reasons.items())


def _label(path: str) -> str:
    """The name of an implementation in messages: the last part of its module's name."""
    return path.partition(":")[0].rpartition(".")[2]


def _alternatives(needs: AttentionNeeds, tried: Set[str] = frozenset()) -> str:
    """Text that names the backends, other than `tried`, that meet `needs`."""
    able = [
        name
        for name, paths in _BACKENDS.items()
        if name not in tried and not all(_unmet_need(path, needs) for path in paths)
    ]
    return f"these would do: {', '.join(able)}" if able else "no other would do"


def _describe(needs: AttentionNeeds) -> str:
    return f"{_describe_kind(needs)} on {needs.device!r} in {needs.dtype}"


def _describe_kind(needs: AttentionNeeds) -> str:
    kind = needs.kind
    features = [
        "" if kind.window is None else f"a window of {kind.window}",
        "" if kind.softcap is None else "a softcap",
        "" if kind.position_bias is None else "a position bias",
    ]
    text = f"{'causal paged' if needs.paged else 'bidirectional'} attention"
    present = " and ".join(feature for feature in features if feature)
    return f"{text} with {present}" if present else text


def _table(passed: dict[str, Probed]) -> str:
    """Times by backend in one line, microseconds."""
    rows = (
        f"{name} "
        + ", ".join(f"{step} {time * 1000:.0f} µs" for step, time in row.milliseconds.items())
        for name, row in passed.items()
    )
    return "; ".join(rows)
