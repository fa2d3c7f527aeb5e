"""Certificates and keys that cannot be used are told apart, in one line, before anything starts."""

from pathlib import Path

import pytest

from server.daemon.credentials import TLSError, server_context
from tests.server.certificates import encrypt_key, make_certificate


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


def fault(cert: Path, key: Path) -> TLSError:
    with pytest.raises(TLSError) as caught:
        server_context(cert, key)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_chain_and_its_key_in_one_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(pair[1].read_bytes() + pair[0].read_bytes())
    server_context(both, both)


def test_files_that_are_not_there(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    gone = tmp_path / "gone"
    assert (fault(gone, key).key, fault(cert, gone).key) == ("tls_cert", "tls_key")
    assert str(fault(gone, key)) == f"{gone} cannot be read: No such file or directory"
    assert str(fault(tmp_path, key)) == f"{tmp_path} cannot be read: Is a directory"


def test_files_that_hold_something_else(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    assert str(fault(key, key)) == f"{key} holds no PEM certificate"
    assert str(fault(cert, cert)) == f"{cert} holds no PEM private key"
    broken = tmp_path / "broken.crt"
    broken.write_bytes(cert.read_bytes()[:100])
    assert str(fault(broken, key)).startswith(f"{broken} and {key} are not valid: ")


def test_a_key_of_another_certificate(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, other = make_certificate(tmp_path, "other")
    error = fault(pair[0], other)
    assert (error.key, str(error)) == ("tls_key", f"{other} is not the key of {pair[0]}")


def test_nobody_is_asked_for_a_passphrase(pair: tuple[Path, Path], tmp_path: Path) -> None:
    encrypted = encrypt_key(pair[1], tmp_path / "encrypted.key")
    assert f"{encrypted} is encrypted" in str(fault(pair[0], encrypted))
