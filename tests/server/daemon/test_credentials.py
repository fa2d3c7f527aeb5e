"""Key files and certificates that are read again: what is bad changes nothing, and is named."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from server.daemon.credentials import Credentials
from server.settings.settings import ModelSettings, ServeCommand, Settings, SettingsError
from tests.server.certificates import make_certificate
from tests.server.support import api_keys


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "first.keys", tmp_path / "second.keys"
    for file, key in ((first, "one\n"), (second, "two\n")):
        file.write_text(key)
        file.chmod(0o600)
    return first, second


def command_of(*key_files: Path, tls: tuple[Path, Path] | None = None) -> ServeCommand:
    pair = dict(zip(("tls_cert", "tls_key"), map(str, tls or ()), strict=False))
    files, models = tuple(map(str, key_files)), (ModelSettings(model="m"),)
    settings = Settings(models=models, api_key_files=files, **pair)
    return ServeCommand(settings=settings, api_key="own")


def test_keys_come_and_go(files: tuple[Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    credentials = Credentials(command_of(*files))
    assert credentials.api_keys == api_keys("own", "one", "two")
    files[0].write_text("three\ntwo\n")
    with caplog.at_level(logging.INFO):
        credentials.read_again()
    assert credentials.api_keys == api_keys("own", "three", "two")
    assert caplog.messages == ["key files and certificates have been read again"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        ("# none\n", "holds no key"),
        ("fine\nnot fine\n", "weight=NUMBER (from 0.01 to 100)"),
        ("pipe", "is a pipe, which is not read again"),
    ],
)
def test_a_bad_key_file_keeps_its_keys_and_one_line_names_it(
    files: tuple[Path, Path], caplog: pytest.LogCaptureFixture, content: str | None, reason: str
) -> None:
    credentials = Credentials(command_of(*files))
    bad, good = files
    good.write_text("new\n")
    bad.unlink()
    if content == "pipe":
        os.mkfifo(bad)  # which nobody writes: a read would never return
    elif content is not None:
        bad.write_text(content)
    credentials.read_again()
    assert credentials.api_keys == api_keys("own", "one", "new")
    (line,) = caplog.messages
    assert line.startswith("--api-key-file: ")
    assert str(bad) in line
    assert f"{reason}; its former keys stay valid" in line
    assert "fine\n" not in line


def test_a_pair_that_does_not_fit_is_not_renewed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = make_certificate(tmp_path)
    credentials = Credentials(command_of(tls=(cert, key)))
    shutil.copy(make_certificate(tmp_path, "other")[1], key)
    credentials.read_again()
    assert caplog.messages == [
        f"--tls-key: {key} is not the key of {cert}; the former certificate stays in use"
    ]


def test_a_start_needs_all_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="gone cannot be read"):
        Credentials(command_of(*files, tmp_path / "gone"))


def test_files_that_every_user_can_read_are_named_once(
    files: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = make_certificate(tmp_path)
    for file, mode in ((files[0], 0o644), (files[1], 0o640), (cert, 0o644), (key, 0o604)):
        file.chmod(mode)
    credentials = Credentials(command_of(*files, tls=(cert, key)))
    credentials.read_again()
    assert caplog.messages == [f"every user of this machine can read {files[0]}, {key}"]
