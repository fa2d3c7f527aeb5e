"""The secret of a cluster's nodes, in a file that its user alone can read."""

from pathlib import Path

from server.settings.settings import SettingsError
from workers.contract.curve import ClusterKeys

_LEAST_BYTES, _MOST_BYTES = 16, 4096
_OF_OTHERS = 0o077


def read_cluster_keys(file: str, setting: str) -> ClusterKeys:
    """The keys that follow from the secret in `file`. Space around it does not count. Raises
    SettingsError for `setting`."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as source:
            secret = source.read(_MOST_BYTES + 1).strip()
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:  # also a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{setting}: {file} cannot be read: {reason}") from None
    if mode & _OF_OTHERS:
        raise SettingsError(f"{setting}: others than its owner may read {file}: chmod 600 {file}")
    if not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
        raise SettingsError(
            f"{setting}: the secret in {file} has {len(secret)} bytes, not {_LEAST_BYTES} to "
            f"{_MOST_BYTES}: openssl rand -hex 32 > {file}"
        )
    return ClusterKeys.of(secret)
