"""TLS: the contexts of servers and clients. Nothing older than TLS 1.2."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from databus.conf.settings import HttpSettings
from databus.schemas.errors import SettingsError

NO_TLS = "it does not answer as a server with TLS does: if it has none, its URL begins with http://"
_EXPIRED = 10  # X509_V_ERR_CERT_HAS_EXPIRED


def server_context(settings: HttpSettings) -> ssl.SSLContext | None:
    """Return the TLS context of a server, None for plain HTTP; raises SettingsError."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    _check_key(settings.tls_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password argument, OpenSSL asks for one at the terminal.
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"http.tls_cert {settings.tls_cert}, http.tls_key {settings.tls_key}: {_words(error)}; "
            "give the certificate with its chain and its key without a passphrase, both PEM"
        ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(tls_ca: Path | None, setting: str = "tls_ca") -> ssl.SSLContext:
    """Return the TLS context of a client, which verifies the server's name. Raises SettingsError.

    Without `tls_ca`, the system's certificate authorities are trusted. `setting` is its name.
    """
    try:
        context = ssl.create_default_context(cafile=tls_ca)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{setting} {tls_ca}: {_words(error)}; give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def explain_tls(error: BaseException, ca_setting: str = "tls_ca") -> str:
    """Return advice for a failed connection; empty when TLS is not the cause.

    `ca_setting` names the authorities that are trusted.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "its certificate has expired: renew it"
        return (
            f"its certificate is not trusted: {error.verify_message}; name the authority that "
            f"signed it as {ca_setting}, and the server by a name that is in the certificate"
        )
    is_silent = isinstance(error, TimeoutError) and "handshake" in str(error)
    if is_silent or getattr(error, "reason", "") == "WRONG_VERSION_NUMBER":
        return NO_TLS
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {_words(error)}"
    return ""


def _check_key(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise SettingsError(f"http.tls_key {path}: {_words(error)}") from None
    if mode & stat.S_IRWXO:
        raise SettingsError(f"http.tls_key {path}: others may read it: chmod 600 {path}")


def _words(error: BaseException) -> str:
    """Return an error's text without its location in OpenSSL."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
