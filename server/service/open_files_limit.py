"""How many files a process may have open (RLIMIT_NOFILE): every connection is one."""

import asyncio
import functools
import logging
import resource

from server.settings.server_config import ServerConfig

_ENOUGH = 65_536
# Files that an API process has open besides connections: its own, and more for each model.
_OWN_FILES = 40
_FILES_PER_MODEL = 8

_log = logging.getLogger("penstock")


def raise_open_files_limit() -> None:
    """Raise the limit to the hard limit, 65,536 at most, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def warn_of_few_open_files(config: ServerConfig) -> None:
    """Warn if an API process cannot have a connection for its part of the sequences in flight."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    requests = max(1, config.limits.max_sequences // config.api_workers)
    needed = requests + _OWN_FILES + _FILES_PER_MODEL * len(config.models)
    if soft != resource.RLIM_INFINITY and soft < needed:
        _log.warning(
            "an API process may open %d files, but needs %d to take %d requests at once: "
            "connections beyond will be closed unanswered. Raise the hard limit (ulimit -Hn, "
            "systemd: LimitNOFILE=) or lower --max-sequences",
            *(soft, needed, requests),
        )


def log_if_last(transport: asyncio.Transport) -> None:
    """Log once if a new connection has taken the last file that this process may open.

    A file gets the lowest free number, so the highest is used when no other is free. The event loop
    closes further connections without logging it.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if transport.get_extra_info("socket").fileno() == soft - 1:
        _log_full(soft)


@functools.cache
def _log_full(limit: int) -> None:
    _log.error(
        "all %d files that this process may open are open: new connections are closed unanswered "
        "until others end. Raise the limit (ulimit -n, systemd: LimitNOFILE=)",
        limit,
    )
