"""Selects the attention backends of a model on a device, one a kind of layer."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property, partial
from importlib.metadata import distributions
from pkgutil import resolve_name
from textwrap import shorten

import numpy as np
import torch

from workers.attention.base import (
    QKV,
    AttentionBackend,
    AttentionNeeds,
    Capabilities,
    LayerCache,
)
from workers.attention.fp8_numbers import FP8, packed
from workers.contract.attention_backends import AttentionBackendName
from workers.contract.messages import EncodeStep
from workers.contract.model_config import DisentangledBias
from workers.device.choices import Choices, version_of
from workers.device.timing import Stopwatch
from workers.step.packed_step import PackedStep
from workers.step.paged_step import PagedStep
from workers.step.rows import StepRows
from workers.step.slot_table import SlotTable

_BACKENDS: dict[str, tuple[str, ...]] = {
    name.value: name.implementations for name in AttentionBackendName if name.implementations
}
_AUTO: dict[str, tuple[str, ...]] = {
    kind: tuple(name.value for name in AttentionBackendName if kind in name.auto_devices)
    for kind in ("cpu", "cuda")
}

_logger = logging.getLogger(__name__)


class AttentionBackendError(ValueError):
    """No backend, or not the one asked for, can serve the model. The message names what can."""


def select_backends(
    name: str, needs: Sequence[AttentionNeeds], choices: Choices
) -> list[AttentionBackend]:
    """`select_backend` for each kind of layer. The backends may differ."""
    return [select_backend(name, own, choices) for own in needs]


def select_backend(name: str, needs: AttentionNeeds, choices: Choices) -> AttentionBackend:
    """Select the backend called `name`, or for "auto" the fastest one that meets `needs`.

    On CUDA that is one of the `choices`: every candidate runs a few probe steps of the model's
    shape, and one that fails is skipped with a warning. They compile the kernels of the chosen one.
    Raises AttentionBackendError if none is left.
    """
    kind = needs.device.partition(":")[0]
    names = _AUTO.get(kind, ()) if name == "auto" else (name,)
    candidates = [(known, each) for known in names for each in implementations(known)]
    unmet = [unmet_need(each.capabilities, needs) for _, each in candidates]
    fitting = [each for each, why in zip(candidates, unmet, strict=True) if not why]
    if not fitting:
        reasons = [f"{each.label}: {why}" for (_, each), why in zip(candidates, unmet, strict=True)]
        raise AttentionBackendError(
            f"attention backend {name!r} cannot do {_described(needs)} on {needs.device!r} in "
            f"{needs.dtype}: {'; '.join([*reasons, _alternatives(needs)])}"
        )
    if kind != "cuda":
        return fitting[0][1](needs)
    probe = Probe(needs)
    try:
        return _chosen(name, fitting, probe, choices)
    finally:
        del probe
        torch.cuda.empty_cache()  # Frees the probe's tensors before free memory is measured.


def implementations(name: str) -> list[type[AttentionBackend]]:
    """The backends called `name`, best first, imported now."""
    return [resolve_name(path) for path in _BACKENDS[name]]


Fitting = Sequence[tuple[str, type[AttentionBackend]]]
"""Implementations that meet the needs, each with its name."""


def _chosen(name: str, fitting: Fitting, probe: "Probe", choices: Choices) -> AttentionBackend:
    """The fastest of the `fitting`, compiled."""
    needs, fastest = probe.needs, partial(_fastest, name, fitting, probe)
    able = [
        (each.__name__, required and version_of(required[0]))
        for _, each in fitting
        for required in [each.capabilities.requires]
    ]
    device = torch.device(needs.device)
    chosen = choices.get("attention backend", str, fastest, device, able, needs)
    known, implementation = next(each for each in fitting if each[1].__name__ == chosen)
    _logger.info("attention backend %s for %s", known, _described(needs))
    return probe.run(implementation)


def _fastest(name: str, fitting: Fitting, probe: "Probe", watch: Stopwatch) -> str:
    """The class of the fastest of the `fitting`, each name by its first implementation that works.
    Raises AttentionBackendError if none does."""
    needs = probe.needs
    passed: dict[str, AttentionBackend] = {}
    failures: list[str] = []
    for known, implementation in fitting:
        if known in passed:
            continue
        try:
            passed[known] = probe.run(implementation)
        except Exception as error:
            reason = shorten(f"{type(error).__name__}: {error}", _MAX_REASON)
            failures.append(f"{implementation.label} fails: {reason}")
            _logger.warning("attention backend %s", failures[-1])
            watch.failed = True
    if not passed:
        raise AttentionBackendError(
            f"attention backend {name!r} fails on {needs.device!r} ({'; '.join(failures)}); "
            f"{_alternatives(needs, {known for known, _ in fitting})}"
        )
    best = next(iter(passed))
    if len(passed) > 1:
        times = {known: probe.times(backend, watch) for known, backend in passed.items()}
        _logger.info("attention backends, measured: %s", _table(times))
        best = min(times, key=lambda known: sum(times[known].values()))
    return type(passed[best]).__name__


def _alternatives(needs: AttentionNeeds, tried: Set[str] = frozenset()) -> str:
    """Text that names the backends, other than `tried`, that meet `needs`."""
    able = [
        name
        for name in _BACKENDS
        if name not in tried
        and not all(unmet_need(each.capabilities, needs) for each in implementations(name))
    ]
    return f"these would do: {', '.join(able)}" if able else "no other would do"


def _described(needs: AttentionNeeds) -> str:
    features = ("window", "softcap", "position_bias", "sinks")
    present = [name for name in features if getattr(needs.kind, name) not in (None, False)]
    return " with ".join(
        [f"{'causal paged' if needs.paged else 'bidirectional'} attention", *present]
    )


def _table(times: Mapping[str, Mapping[str, float]]) -> str:
    """Times by backend in one line, microseconds."""
    return "; ".join(
        f"{name} " + ", ".join(f"{step} {time * 1e6:.0f} µs" for step, time in own.items())
        for name, own in times.items()
    )


def unmet_need(able: Capabilities, needs: AttentionNeeds) -> str:
    """The first need that is not met, as text, or "" if all are met."""
    return next((why for why, met in _needs_met(able, needs) if not met), "")


def _needs_met(able: Capabilities, needs: AttentionNeeds) -> Iterator[tuple[str, bool]]:
    """Each need, as the text of its lack, and whether it is met. The GPU is queried last."""
    kind, device = needs.kind, needs.device.partition(":")[0]
    windows = able.causal_windows if kind.causal else able.bidirectional_windows
    yield "no causal attention over a paged cache", able.causal_paged or not needs.paged
    yield "no bidirectional attention", able.bidirectional or needs.paged
    yield "no windows", windows or kind.window is None
    yield "no softcap", able.softcap or kind.softcap is None
    yield "no attention sinks", (able.sinks and needs.paged) or not kind.sinks
    bias = kind.position_bias
    if isinstance(bias, DisentangledBias):
        yield "no disentangled attention", able.disentangled
    else:
        yield "no position bias", able.position_bias or bias is None
    yield "no tokens hidden from all", able.unattended or not needs.unattended
    yield f"not for device {device!r}", device in able.devices
    yield f"not for {needs.dtype}", needs.dtype in able.dtypes
    cached = "an FP8 KV cache" if needs.fp8_cache else "a KV cache of the model's dtype"
    yield f"not for {cached} (kv_cache_dtype)", needs.fp8_cache in able.fp8_cache
    size, sizes = needs.head_dim, able.head_dims
    yield f"head size {size} is not supported", sizes is None or size in sizes
    pages = f"block size {needs.block_size} is no multiple of {able.page_multiple}"
    yield pages, not (needs.paged and needs.block_size % able.page_multiple)
    if able.requires:
        package, source = able.requires
        installed = any(distributions(name=package))
        yield f"package {package} is not installed ({source})", installed
    if able.compute_majors:
        major, minor = torch.cuda.get_device_capability(needs.device)
        known = ", ".join(f"{number}.x" for number in able.compute_majors)
        why = f"the GPU's compute capability {major}.{minor} is none of {known}"
        yield why, major in able.compute_majors
    if needs.fp8_cache and device == "cuda":
        major, minor = torch.cuda.get_device_capability(needs.device)
        why = f"the GPU's compute capability {major}.{minor} has no FP8, as 8.9 and later have"
        yield why, (major, minor) >= (8, 9)


_PAGED: dict[str, list[tuple[int, int]]] = {
    "decode": [(1023, 1)] * 64,
    "chunk": [(4096, 4096)],
    "short prompts": [(0, 32)] * 320,
}
"""A decoder's steps as on a busy server: rows of (cached tokens, queries). For more than 256 rows
flash-attn-4 compiles another variant, for seconds: here, and not during a request."""

_GROUPED = [*[(1023, 1)] * 64, *[(1023, 4)] * 16]
"""Rows that share prefixes, the first 64 one and the others one: compiled, but not timed."""

_BIDIRECTIONAL: dict[str, list[tuple[int, int]]] = {
    "long texts": [(0, 2048)] * 2,
    "short texts": [(0, 32)] * 320,
}
_MAX_REASON = 400
"""Characters of an error message. A compiler's can fill pages."""


class Probe:
    """Steps, and a KV cache filled for them, the same for every backend."""

    def __init__(self, needs: AttentionNeeds) -> None:
        self.needs = needs
        self._device = torch.device(needs.device)
        self._random = torch.Generator(self._device).manual_seed(0)
        kinds = _PAGED if needs.paged else _BIDIRECTIONAL
        self.steps = {kind: self._step(rows) for kind, rows in kinds.items()}
        tokens = max(step.num_tokens for step in self.steps.values())
        self._queries = self._normal(tokens, needs.num_heads, needs.head_dim)
        self._keys = self._normal(tokens, needs.num_kv_heads, needs.head_dim)

    @torch.inference_mode()
    def run(self, implementation: type[AttentionBackend]) -> AttentionBackend:
        """Build the backend and run every step once, which compiles its kernels. Raises what goes
        wrong, and ArithmeticError for values that are not finite."""
        backend = implementation(self.needs)
        for kind, step in self.steps.items():
            if not bool(self.attend(backend, step)().isfinite().all()):
                raise ArithmeticError(f"{kind}: not finite")
        if self.needs.paged and backend.capabilities.prefix_groups:
            self.attend(backend, self._grouped_step())()
        return backend

    @torch.inference_mode()
    def times(self, backend: AttentionBackend, watch: Stopwatch) -> dict[str, float]:
        """The backend's seconds for one layer of each kind of step."""
        return {
            kind: watch.seconds(self.attend(backend, step)) for kind, step in self.steps.items()
        }

    def attend(
        self, backend: AttentionBackend, step: PagedStep | PackedStep
    ) -> Callable[[], torch.Tensor]:
        """Plan a step and fill the cache. Each call attends for one layer, [T, H, D]."""
        qkv = QKV(self._queries, self._keys, self._keys).first(step.num_tokens)
        if isinstance(step, PackedStep):
            packed = backend.plan_packed(step)
            return lambda: backend.attend_packed(qkv, packed)
        plan, cache = backend.plan_paged(step), self._cache
        backend.write_kv(qkv, cache, step.kv_indices)
        sinks = None
        if self.needs.kind.sinks:
            sinks = torch.zeros(self.needs.num_heads, device=self._device)
        return lambda: backend.attend_paged(qkv, cache, plan, sinks=sinks)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(
            shape, generator=self._random, device=self._device, dtype=self.needs.dtype
        )

    @cached_property
    def _cache(self) -> LayerCache:
        """Filled, and large enough for the largest paged step."""
        needs, size = self.needs, self.needs.block_size
        steps = [*_PAGED.values(), _GROUPED]
        blocks = max(len(rows) * -(-max(map(sum, rows)) // size) for rows in steps)
        shape = (blocks, size, needs.num_kv_heads, needs.head_dim)
        keys, values = self._normal(*shape), self._normal(*shape)
        if not needs.fp8_cache:
            return LayerCache(keys, values)
        ones = torch.ones(blocks, needs.num_kv_heads, size, device=self._device)
        return LayerCache(keys.to(FP8), values.to(FP8), packed(ones, ones))

    def _step(self, rows: Sequence[tuple[int, int]]) -> PagedStep | PackedStep:
        """A step of these rows. A paged row r is in slot r, and all have as many blocks."""
        cached, lens = np.array(rows, np.int32).T
        tokens = np.zeros(int(lens.sum()), np.int32)
        if not self.needs.paged:
            message = EncodeStep(step=0, tokens=tokens.tobytes(), query_lens=lens.tobytes())
            return PackedStep.of(message, self._device)
        slots = np.arange(len(rows), dtype=np.int32)
        step_rows = StepRows.over(slots, lens, cached)
        return PagedStep.of(step_rows, tokens, self._slot_table(step_rows))

    def _grouped_step(self) -> PagedStep:
        """A step of `_GROUPED`, whose groups share their first rows' blocks."""
        prefix = 1023 // self.needs.block_size * self.needs.block_size
        step = self._step(_GROUPED)
        assert isinstance(step, PagedStep), "of a decoder"
        return replace(step, groups=np.array([(0, 64, prefix), (64, 16, prefix)], np.int32))

    def _slot_table(self, rows: StepRows) -> SlotTable:
        count, size = len(rows.slots), self.needs.block_size
        pages = -(-int(rows.contexts.max()) // size)
        blocks = np.arange(count * pages)
        table = SlotTable(count, pages, size, 0, self._device)
        updates = np.stack([*np.divmod(blocks, pages), blocks], axis=1, dtype=np.int32)
        table.update(updates.tobytes())
        return table
