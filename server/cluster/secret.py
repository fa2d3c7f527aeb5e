"""The secret of a cluster's nodes, in a file that its user alone can read."""

import os
import stat
from pathlib import Path

from server.settings.settings import SettingsError
from workers.contract.curve import ClusterKeys

_LEAST_BYTES, _MOST_BYTES = 16, 4096
_ROOT = 0


def read_cluster_keys(file: str, setting: str) -> ClusterKeys:
    """The keys that follow from the secret in `file`. Space around it does not count. Raises
    SettingsError for `setting`."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as source:
            secret = source.read(_MOST_BYTES + 1).strip()
            status = os.fstat(source.fileno())
    except (OSError, ValueError) as error:  # also a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{setting}: {file} cannot be read: {reason}") from None
    if status.st_mode & _modes_of_others(status):
        raise SettingsError(f"{setting}: others than its owner may read {file}: chmod 600 {file}")
    if not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
        raise SettingsError(
            f"{setting}: the secret in {file} has {len(secret)} bytes, not {_LEAST_BYTES} to "
            f"{_MOST_BYTES}: openssl rand -hex 32 > {file}"
        )
    return ClusterKeys.of(secret)


def _modes_of_others(status: os.stat_result) -> int:
    """The bits of a mode that may not be set. A file of root's may be read by this user's group:
    Kubernetes mounts a Secret so for a user who is not root, and who cannot change it."""
    refused = stat.S_IRWXG | stat.S_IRWXO
    if status.st_uid == _ROOT != os.geteuid() and status.st_gid in {os.getegid(), *os.getgroups()}:
        return refused & ~stat.S_IRGRP
    return refused
