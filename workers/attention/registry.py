"""Attention backends by name; only the one that is chosen gets imported."""

from importlib import import_module

from workers.attention.base import AttentionBackend, AttentionNeeds

_BACKENDS: dict[str, str] = {
    "sdpa": "workers.attention.sdpa:SdpaBackend",
    "naive": "workers.attention.naive:NaiveBackend",
}
_BY_PREFERENCE = ("sdpa",)
"""What "auto" tries, best first. The control group is never chosen by itself."""


class AttentionBackendError(ValueError):
    """No such backend, or it cannot do what the model needs; one line names those that can."""


def select_backend(name: str, needs: AttentionNeeds) -> AttentionBackend:
    """The backend called `name`, or with "auto" the best one that does what `needs` asks.

    Raises AttentionBackendError.
    """
    if name == "auto":
        name = next((known for known in _BY_PREFERENCE if not _misfit(known, needs)), "auto")
    if name not in _BACKENDS:
        raise AttentionBackendError(
            f"no attention backend {name!r} for {_describe(needs)}; {_would_do(needs)}"
        )
    if misfit := _misfit(name, needs):
        raise AttentionBackendError(
            f"attention backend {name!r} does not support {misfit}; {_would_do(needs)}"
        )
    return _backend_class(name)(needs)


def _backend_class(name: str) -> type[AttentionBackend]:
    module, _, attribute = _BACKENDS[name].partition(":")
    backend: type[AttentionBackend] = getattr(import_module(module), attribute)
    return backend


def _misfit(name: str, needs: AttentionNeeds) -> str:
    """The first need that the backend does not meet, "" where it meets them all."""
    capabilities = _backend_class(name).capabilities
    device = needs.device.partition(":")[0]
    if needs.paged and not capabilities.causal_paged:
        return "causal attention over a paged cache"
    if not needs.paged and not capabilities.bidirectional:
        return "bidirectional attention"
    if device not in capabilities.devices:
        return f"device {device!r}"
    if needs.dtype not in capabilities.dtypes:
        return str(needs.dtype)
    return ""


def _would_do(needs: AttentionNeeds) -> str:
    able = [name for name in _BACKENDS if not _misfit(name, needs)]
    return f"these would do: {', '.join(able)}" if able else "no other would do"


def _describe(needs: AttentionNeeds) -> str:
    kind = "causal paged" if needs.paged else "bidirectional"
    return f"{kind} attention on {needs.device!r} in {needs.dtype}"
