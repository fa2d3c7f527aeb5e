"""API keys and the certificate, read when the daemon starts and again after SIGHUP."""

import logging
import ssl
import stat
from pathlib import Path

from server.settings.api_keys import (
    APIKey,
    APIKeyError,
    GivenKey,
    checked_key,
    hashed,
    read_key_file,
)
from server.settings.settings import API_KEY_VARIABLE, TLS, ServeCommand, SettingsError

_log = logging.getLogger("penstock")


class Credentials:
    """The contents of key files, certificate and private key, each as it could last be used."""

    def __init__(self, command: ServeCommand) -> None:
        """Read all files. Raises SettingsError."""
        self._settings = command.settings
        self._names = command.setting_names
        try:  # that of the command line was checked there
            key = command.api_key
            self._own_key = [] if key is None else [GivenKey(checked_key(key))]
        except APIKeyError as error:
            raise SettingsError(f"{API_KEY_VARIABLE}: {error}") from None
        self._of_file = {file: self._read_keys(file) for file in self._settings.api_key_files}
        self.tls = self._read_tls()
        secrets = [*self._settings.api_key_files, *([self.tls.key] if self.tls else [])]
        if shown := [file for file in secrets if Path(file).stat().st_mode & stat.S_IROTH]:
            _log.warning("every user of this machine can read %s", ", ".join(shown))

    @property
    def api_keys(self) -> tuple[APIKey, ...]:
        of_files = [key for keys in self._of_file.values() for key in keys]
        return hashed([*self._own_key, *of_files])

    def read_again(self) -> None:
        """Read all files again. One that cannot be used is logged, and stays in force as it was."""
        faults = 0
        for file in self._of_file:
            try:
                # A shell's `<(command)` can be read once, and a named pipe may never answer.
                if Path(file).is_fifo():
                    where = self._names.of("api_key_files")
                    raise SettingsError(f"{where}: {file} is a pipe, which is not read again")
                self._of_file[file] = self._read_keys(file)
            except SettingsError as error:
                faults += 1
                _log.warning("%s; its former keys stay valid", error)
        if self.tls is not None:
            try:
                self._read_tls()
            except SettingsError as error:
                faults += 1
                _log.warning("%s; the former certificate stays in use", error)
        if not faults:
            _log.info("key files and certificates have been read again")

    def _read_keys(self, file: str) -> list[GivenKey]:
        try:
            return read_key_file(Path(file))
        except APIKeyError as error:
            raise SettingsError(f"{self._names.of('api_key_files')}: {error}") from None

    def _read_tls(self) -> TLS | None:
        cert, key = self._settings.tls_cert, self._settings.tls_key
        if cert is None and key is None:
            return None
        if key is None:
            raise SettingsError(f"{self._names.of('tls_cert')}: there is no key beside it")
        if cert is None:
            raise SettingsError(f"{self._names.of('tls_key')}: there is no certificate beside it")
        try:
            server_context(Path(cert), Path(key))
        except TLSError as error:
            raise SettingsError(f"{self._names.of(error.key)}: {error}") from None
        return TLS(cert=cert, key=key)


class TLSError(ValueError):
    """A certificate and a key that cannot be used. `key` is the setting at fault."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """A server's context with what the files hold now. Raises TLSError unless they are PEM and
    belong together. Nobody could type an encrypted key's passphrase."""
    if b"-----BEGIN CERTIFICATE-----" not in _content("tls_cert", cert):
        raise TLSError("tls_cert", f"{cert} holds no PEM certificate")
    secret = _content("tls_key", key)
    if b"PRIVATE KEY-----" not in secret:
        raise TLSError("tls_key", f"{key} holds no PEM private key")
    if b"ENCRYPTED" in secret:
        raise TLSError("tls_key", f"{key} is encrypted; `openssl pkey` writes it without")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TLSError("tls_key", f"{key} is not the key of {cert}") from None
        raise TLSError("tls_cert", f"{cert} and {key} are not valid: {error.reason}") from None
    return context


def _content(key: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TLSError(key, f"{file} cannot be read: {error.strerror}") from None
