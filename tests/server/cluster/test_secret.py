"""The secret's file: what is in it, and who may read it."""

import os
from pathlib import Path

import pytest

from server.cluster.secret import read_cluster_keys
from server.settings.settings import SettingsError

SECRET = b"0123456789abcdef"


def write(file: Path, secret: bytes, mode: int = 0o600) -> str:
    file.write_bytes(secret)
    file.chmod(mode)
    return str(file)


def test_every_holder_derives_the_same_keys(tmp_path: Path) -> None:
    first, second = (
        write(tmp_path / name, SECRET + end) for name, end in (("a", b""), ("b", b"\n"))
    )
    other = write(tmp_path / "other", SECRET[::-1])
    keys, same, others = (read_cluster_keys(file, "--x") for file in (first, second, other))
    assert keys == same
    assert not {keys.listener, keys.connector} & {others.listener, others.connector}
    assert keys.listener != keys.connector


@pytest.mark.parametrize(
    ("secret", "mode", "reason"),
    [
        (SECRET, 0o640, "others than its owner may read {file}: chmod 600 {file}"),
        (SECRET, 0o604, "others than its owner may read {file}: chmod 600 {file}"),
        (SECRET[1:], 0o600, "the secret in {file} has 15 bytes, not 16 to 4096: openssl rand"),
        (b"\n" * 100, 0o600, "the secret in {file} has 0 bytes"),
        (b"x" * 4097, 0o600, "the secret in {file} has 4097 bytes"),
    ],
)
def test_a_file_that_is_no_secret(tmp_path: Path, secret: bytes, mode: int, reason: str) -> None:
    file = write(tmp_path / "secret", secret, mode)
    with pytest.raises(SettingsError) as caught:
        read_cluster_keys(file, "--cluster-secret-file")
    assert str(caught.value).startswith(f"--cluster-secret-file: {reason.format(file=file)}")


@pytest.mark.parametrize(
    ("name", "reason"), [("", "Is a directory"), ("none", "No such file"), ("a\0b", "null byte")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"cannot be read: .*{reason}"):
        read_cluster_keys(os.path.join(tmp_path, name), "--x")  # noqa: PTH118 (a NUL)
