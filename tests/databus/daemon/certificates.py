"""Certificates for tests: an authority, and what it signs for this machine."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
_END = _BEGIN + datetime.timedelta(days=3)


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files; the key may be read by its user alone."""

    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """The server's settings."""
        return {"tls_cert": str(self.cert), "tls_key": str(self.key)}


def make_certificates(
    folder: Path, name: str = "localhost", *, is_expired: bool = False
) -> Certificates:
    """Make an authority and a certificate for `name` and 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _name(f"authority of {folder.name}")
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    ca = (
        _builder(authority, authority, authority_key)
        .add_extension(constraints, critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    end = _BEGIN + datetime.timedelta(days=1) if is_expired else _END
    cert = (
        _builder(_name(name), authority, key, end)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    made.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    made.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    made.key.touch(0o600)
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    end: datetime.datetime = _END,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(end)
    )
