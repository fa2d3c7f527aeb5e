"""What a group of tasks raises, without the group."""

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def first_error(*kinds: type[Exception]) -> Generator[None]:
    """Around an `asyncio.TaskGroup`: where its tasks failed with errors of these kinds only, the
    first of them is raised alone.

    An error that is raised in an `except*` block is alone in some releases of Python, and in a
    group in others (3.11.2).
    """
    try:
        yield
    except BaseExceptionGroup as group:
        matching, others = group.split(kinds)
        if matching is None or others is not None:
            raise
        raise _first(matching) from None


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    """However deep it stands."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
