"""`penstock batch` where no engine comes up: what cannot work fails before any work."""

from pathlib import Path

import pytest

from server import cli
from tests.server.batches.requests_file import line, write


@pytest.mark.parametrize(
    ("source", "output", "flags", "says"),
    [
        ("in.jsonl", "none/out", [], "cannot be written: No such file"),
        ("in.jsonl", ".", [], "is a folder"),
        ("in.jsonl", "in.jsonl", [], "is the input"),
        ("none", "out", [], "cannot be read: No such file"),
        ("in.jsonl", "complete", ["--resume"], "is complete: there is no"),
        ("in.jsonl", "begun", [], "--resume"),
    ],
)
def test_a_job_that_cannot_work_says_why(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    output: str,
    flags: list[str],
    says: str,
) -> None:
    write(tmp_path, line("a"))
    (tmp_path / "complete").touch()
    (tmp_path / "begun.part").write_text("something\n")
    files = ["-i", str(tmp_path / source), "-o", str(tmp_path / output)]
    assert cli.main(["batch", *files, *flags]) == 1
    said, complained = capsys.readouterr()
    assert (said, complained.count("\n")) == ("", 1)
    assert says in complained


def test_a_daemon_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["-i", str(write(tmp_path, line("a"))), "-o", str(tmp_path / "out.jsonl")]
    assert cli.main(["batch", *files, "--url", "http://127.0.0.1:9"]) == 1
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err


def test_a_file_without_lines_starts_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-i", str(write(tmp_path)), "-o", str(tmp_path / "out.jsonl")]
    assert cli.main(["batch", *arguments]) == 0
    assert (tmp_path / "out.jsonl").read_text() == ""
    assert capsys.readouterr().out.startswith("0 requests (0 failed)")
