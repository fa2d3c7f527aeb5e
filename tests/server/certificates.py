"""A self-signed certificate for loopback, made by openssl."""

import ssl
import subprocess
from pathlib import Path


def make_certificate(
    folder: Path, name: str = "server", hosts: tuple[str, ...] = ("localhost",)
) -> tuple[Path, Path]:
    """(certificate, key): new files in `folder`, in PEM. It is for `hosts` and 127.0.0.1."""
    names = ",".join(f"DNS:{host}" for host in hosts)
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-days", "2", "-noenc", "-subj", "/CN=localhost"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", f"subjectAltName={names},IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def encrypt_key(key: Path, target: Path) -> Path:
    """`target`: the same key behind a passphrase."""
    command = ["openssl", "pkey", "-in", str(key), "-out", str(target), "-aes256"]
    subprocess.run([*command, "-passout", "pass:secret"], check=True, capture_output=True)
    return target


def unverified_context() -> ssl.SSLContext:
    """For a client that trusts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
