"""The secret's file: what is in it, and who may read it."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.cluster.secret import read_cluster_keys
from server.settings.settings import SettingsError

SECRET = b"0123456789abcdef"
USER, GROUP, MORE_GROUP = 10001, 10002, 10003


def write(file: Path, secret: bytes, mode: int = 0o600) -> str:
    file.write_bytes(secret)
    file.chmod(mode)
    return str(file)


@contextmanager
def as_user() -> Generator[None]:
    """This process is USER for a while, of GROUP and of MORE_GROUP."""
    groups = os.getgroups()
    os.setgroups([MORE_GROUP])
    os.setegid(GROUP)
    os.seteuid(USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
@pytest.mark.parametrize(
    ("owner", "group", "mode", "taken"),
    [
        (0, MORE_GROUP, 0o440, True),  # as Kubernetes mounts a Secret
        (0, GROUP, 0o640, True),
        (0, MORE_GROUP, 0o444, False),
        (0, MORE_GROUP, 0o460, False),
        (0, 0, 0o444, False),
        (USER, GROUP, 0o440, False),
        (USER, 0, 0o400, True),
    ],
)
def test_a_file_of_root_may_be_read_by_the_user_s_group(
    owner: int, group: int, mode: int, taken: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        file = write(Path(folder, "secret"), SECRET, mode)
        os.chown(file, owner, group)
        with as_user():
            if taken:
                read_cluster_keys(file, "--x")
            else:
                with pytest.raises(SettingsError, match="others than its owner may read"):
                    read_cluster_keys(file, "--x")
