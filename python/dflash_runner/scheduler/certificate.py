"""A self-signed pair for the one connection between a host and this process.

Source: RFC 5280 (certificate), RFC 5480 and RFC 5915 (keys), X.690 (DER).
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dflash_runner.scheduler import p256

_YEARS = 5  # as the host's own: nothing outlives the process
_SEQUENCE, _SET, _INTEGER, _BITS, _OCTETS, _OID, _UTF8, _TIME = 0x30, 0x31, 0x02, 0x03, 0x04, 0x06, 0x0C, 0x17
_TRUE = b"\x01\x01\xff"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A private key and its certificate."""

    key_pem: bytes
    certificate_pem: bytes
    certificate_der: bytes


def new_pair(now: datetime | None = None) -> Pair:
    """A pair for the name localhost.

    Args:
        now: when it begins to be valid, less an hour; None: now.
    """
    key = p256.new_key()
    x, y = p256.public(key)
    point = b"\x04" + x.to_bytes(p256.SIZE_BYTES) + y.to_bytes(p256.SIZE_BYTES)
    certificate = _certificate(key, point, now or datetime.now(UTC))
    private = _sequence(
        _integer(1),
        _tagged(_OCTETS, key.to_bytes(p256.SIZE_BYTES)),
        _tagged(0xA0, _oid("1.2.840.10045.3.1.7")),
        _tagged(0xA1, _bits(point)),
    )
    return Pair(
        key_pem=_pem("EC PRIVATE KEY", private),
        certificate_pem=_pem("CERTIFICATE", certificate),
        certificate_der=certificate,
    )


def _certificate(key: int, point: bytes, now: datetime) -> bytes:
    """The certificate of `point`, signed by its own key."""
    by = _sequence(_oid("1.2.840.10045.4.3.2"))  # ecdsa-with-SHA256
    name = _sequence(_attribute("2.5.4.10", "dflash-runner"), _attribute("2.5.4.3", "localhost"))
    algorithm = _sequence(
        _oid("1.2.840.10045.2.1"), _oid("1.2.840.10045.3.1.7")
    )  # id-ecPublicKey, prime256v1
    body = _sequence(
        _tagged(0xA0, _integer(2)),  # version 3
        _integer(1 + secrets.randbits(120)),
        by,
        name,
        _sequence(_time(now - timedelta(hours=1)), _time(now + timedelta(days=365 * _YEARS))),
        name,
        _sequence(algorithm, _bits(point)),
        _tagged(0xA3, _sequence(*_extensions())),
    )
    r, s = p256.sign(key, body)
    return _sequence(body, by, _bits(_sequence(_integer(r), _integer(s))))


def _extensions() -> tuple[bytes, ...]:
    """What the host's TLS asks of a server's certificate that it trusts by itself."""
    usages = _oid("1.3.6.1.5.5.7.3.1"), _oid("1.3.6.1.5.5.7.3.2")  # serverAuth, clientAuth
    return (
        _extension("2.5.29.17", _sequence(_tagged(0x82, b"localhost"))),  # subjectAltName: dNSName
        _extension("2.5.29.19", _sequence(_TRUE), critical=True),  # basicConstraints: cA
        _extension(
            "2.5.29.15", b"\x03\x02\x02\x84", critical=True
        ),  # keyUsage: digitalSignature, keyCertSign
        _extension("2.5.29.37", _sequence(*usages)),
    )


def _extension(oid: str, value: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(oid), _TRUE if critical else b"", _tagged(_OCTETS, value))


def _attribute(oid: str, text: str) -> bytes:
    return _tagged(_SET, _sequence(_oid(oid), _tagged(_UTF8, text.encode())))


def _time(at: datetime) -> bytes:
    return _tagged(_TIME, at.strftime("%y%m%d%H%M%SZ").encode())


def _bits(content: bytes) -> bytes:
    return _tagged(_BITS, b"\x00" + content)


def _integer(value: int) -> bytes:
    return _tagged(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1))


def _oid(dotted: str) -> bytes:
    first, second, *rest = (int(part) for part in dotted.split("."))
    out = bytearray([40 * first + second])
    for part in rest:
        groups = [part & 0x7F]
        while part := part >> 7:
            groups.append(part & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return _tagged(_OID, bytes(out))


def _sequence(*parts: bytes) -> bytes:
    return _tagged(_SEQUENCE, b"".join(parts))


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def _pem(label: str, der: bytes) -> bytes:
    text = base64.b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]).encode()
