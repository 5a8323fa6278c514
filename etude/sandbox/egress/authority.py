"""A certificate authority made for one run: the proxy shows programs a certificate of it for each allowed name.

Its key never leaves the process and is gone with it. Needs the extra `egress` (cryptography).
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from etude.core.errors import EtudeError

_DAYS = 30  # longer than any run of a host


_MOST_CONTEXTS = 256  # kept; `*.name` allows any number of names


def _check_sni(name: str, _: object, shown: str | None, __: object) -> int | None:
    """Ends a handshake that names another host than the tunnel."""
    if shown is not None and shown.lower().removesuffix(".") != name:
        return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
    return None


class CertificateAuthority:
    def __init__(self) -> None:
        try:
            from cryptography import x509
            from cryptography.hazmat.primitives.asymmetric import ec
        except ImportError:
            raise EtudeError("sandboxes with an egress proxy need the extra: pip install 'etude[egress]'") from None
        self._x509 = x509
        self._key: Any = ec.generate_private_key(ec.SECP256R1())
        self._leaf: Any = ec.generate_private_key(ec.SECP256R1())  # one for all names: they are all ours
        self._contexts: dict[str, ssl.SSLContext] = {}
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "etude sandbox egress")])
        self._name = name
        self._certificate = self._sign(name, self._key.public_key(), x509.BasicConstraints(ca=True, path_length=0), [])

    @property
    def pem(self) -> str:
        from cryptography.hazmat.primitives.serialization import Encoding

        return str(self._certificate.public_bytes(Encoding.PEM).decode())

    def context(self, name: str) -> ssl.SSLContext:
        """A server's side of TLS with a certificate for this name, HTTP/1.1 alone."""
        if name not in self._contexts:
            from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

            x509 = self._x509
            subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
            alternative = x509.SubjectAlternativeName([x509.DNSName(name)])
            constraints = x509.BasicConstraints(ca=False, path_length=None)
            certificate = self._sign(subject, self._leaf.public_key(), constraints, [alternative])
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.set_alpn_protocols(["http/1.1"])
            key = self._leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            # `ssl` reads certificates from files only; this one is ours alone, and gone at once.
            with tempfile.NamedTemporaryFile() as file:
                file.write(key + certificate.public_bytes(Encoding.PEM))
                file.flush()
                context.load_cert_chain(Path(file.name))
            # A context is shared by all tunnels to a name, so what it compares with must not be of one tunnel.
            context.sni_callback = partial(_check_sni, name)
            while len(self._contexts) >= _MOST_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
            self._contexts[name] = context
        return self._contexts[name]

    def _sign(self, subject: Any, public: Any, constraints: Any, more: list[Any]) -> Any:
        from cryptography.hazmat.primitives import hashes

        x509, now = self._x509, datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=_DAYS))
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if constraints.ca:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(self._key, hashes.SHA256())
