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


def test_files_that_cannot_be_used(pair: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = pair
    gone, broken = tmp_path / "gone", tmp_path / "broken.crt"
    broken.write_bytes(cert.read_bytes()[:100])
    _, other = make_certificate(tmp_path, "other")
    # Nobody is asked for a passphrase.
    encrypted = encrypt_key(key, tmp_path / "encrypted.key")
    for given, at_fault, words in (
        ((gone, key), "tls_cert", f"{gone} cannot be read: No such file or directory"),
        ((cert, gone), "tls_key", f"{gone} cannot be read: No such file or directory"),
        ((tmp_path, key), "tls_cert", f"{tmp_path} cannot be read: Is a directory"),
        ((key, key), "tls_cert", f"{key} holds no PEM certificate"),
        ((cert, cert), "tls_key", f"{cert} holds no PEM private key"),
        ((broken, key), "tls_cert", f"{broken} and {key} are not valid: "),
        ((cert, other), "tls_key", f"{other} is not the key of {cert}"),
        ((cert, encrypted), "tls_key", f"{encrypted} is encrypted"),
    ):
        error = fault(*given)
        assert error.key == at_fault
        assert str(error).startswith(words)
