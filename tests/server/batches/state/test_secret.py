"""The secret of a state folder stays the same, and is nobody else's to read."""

from pathlib import Path

import pytest

from server.batches.state.secret import KEPT_IN, kept_secret, new_secret


def test_it_is_made_once(tmp_path: Path) -> None:
    made = kept_secret(tmp_path)
    assert kept_secret(tmp_path) == made
    assert made not in (new_secret(), kept_secret(tmp_path / "missing"))
    assert (tmp_path / KEPT_IN).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("found", [b"", b"ab", b"\xff" * 64])
def test_a_spoilt_one_is_made_anew(tmp_path: Path, found: bytes) -> None:
    (tmp_path / KEPT_IN).write_bytes(found)
    made = kept_secret(tmp_path)
    assert made == kept_secret(tmp_path)
    assert made.encode() != found
