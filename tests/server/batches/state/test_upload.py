from pathlib import Path

import pytest

from engine_core.refusal import RefusalError
from server.batches.state.stored_files import Upload

BOUNDS = {"max_bytes": 10, "max_lines": 2, "left_bytes": 8}


def test_an_upload_is_what_was_written(tmp_path: Path) -> None:
    upload = Upload(tmp_path / "a", **BOUNDS)
    upload.write(b"one\n")
    upload.write(b"two\n")
    upload.commit()
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\n"
    assert upload.num_bytes == 8


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([b"12345678901"], "body_too_large"),
        ([b"123456789"], "quota_exceeded"),
        ([b"\n"] * 3, "too_large"),
    ],
)
def test_a_bound_that_is_broken_is_named(tmp_path: Path, parts: list[bytes], code: str) -> None:
    upload = Upload(tmp_path / "a", **BOUNDS)
    *good, last = parts
    for part in good:
        upload.write(part)
    with pytest.raises(RefusalError) as refused:
        upload.write(last)
    assert (refused.value.code, refused.value.param) == (code, "file")
    upload.discard()
    assert not (tmp_path / "a").exists()
