"""Panics of libraries that are written in Rust."""

_MODULE = "pyo3_runtime"
"""Each library has a `PanicException` of its own, which no module exports."""


class PanicError(Exception):
    """A panic, as an Exception: PyO3's own class is a BaseException, like KeyboardInterrupt."""


def as_exception(error: BaseException) -> Exception:
    """Return `error` itself if it is an Exception, or a PanicError in place of a panic.

    Raises `error` if it is neither: KeyboardInterrupt, for one, ends more than a call.
    """
    if isinstance(error, Exception):
        return error
    if type(error).__module__ == _MODULE:
        return PanicError(" ".join(str(error).split()))
    raise error
