"""Keys and signatures on the curve P-256, for one self-signed certificate a process.

Python's standard library makes none, and a plugin should need no further package. The arithmetic
takes no care to be constant in time: a key signs once, in its own process, before it serves anybody.

Source: SEC 1 version 2 (group law, ECDSA), SEC 2 version 2 section 2.4.2 (parameters), RFC 6979 (nonce).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
B = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
SIZE_BYTES = 32

Point = tuple[int, int]
_Jacobian = tuple[int, int, int]  # X/Z², Y/Z³; Z 0: the neutral element


def new_key() -> int:
    """A private key, drawn from the system's randomness."""
    return 1 + secrets.randbelow(N - 1)


def public(key: int) -> Point:
    """The public point of a private key."""
    return multiply(key, G)


def sign(key: int, message: bytes) -> tuple[int, int]:
    """The signature (r, s) of `message` with SHA-256.

    Args:
        key: from 1 to N-1.
        message: any bytes.

    Source: SEC 1 section 4.1.3; the nonce is that of RFC 6979 section 3.2.
    """
    digest = hashlib.sha256(message).digest()
    for nonce in _nonces(key, digest):
        r = multiply(nonce, G)[0] % N
        s = pow(nonce, -1, N) * (int.from_bytes(digest) + r * key) % N
        if r and s:
            return r, s
    raise AssertionError("sign: the nonces ended")


def multiply(k: int, point: Point) -> Point:
    """`k` times `point`, for `k` from 1 to N-1 and a point of the curve."""
    total: _Jacobian = (1, 1, 0)
    for bit in bin(k)[2:]:
        total = _double(total)
        if bit == "1":
            total = _add(total, point)
    x, y, z = total
    inverse = pow(z, -1, P)
    return x * inverse**2 % P, y * inverse**3 % P


def _double(a: _Jacobian) -> _Jacobian:
    x, y, z = a
    yy = y * y % P
    s = 4 * x * yy % P
    m = 3 * (x - z * z) * (x + z * z) % P  # the curve's a is -3
    x3 = (m * m - 2 * s) % P
    return x3, (m * (s - x3) - 8 * yy * yy) % P, 2 * y * z % P


def _add(a: _Jacobian, b: Point) -> _Jacobian:
    """The sum of `a` and an affine point that is neither the same nor opposite.

    In `multiply` it never is: before an addition `a` is 2m times the point and 2m + 1 <= k < N.
    """
    x, y, z = a
    if not z:
        return b[0], b[1], 1
    zz = z * z % P
    h = (b[0] * zz - x) % P
    r = (b[1] * zz * z - y) % P
    assert h
    hh = h * h % P
    v = x * hh % P
    x3 = (r * r - h * hh - 2 * v) % P
    return x3, (r * (v - x3) - y * h * hh) % P, z * h % P


def _nonces(key: int, digest: bytes):
    """Nonces from 1 to N-1, the same always for a key and a digest."""
    seed = key.to_bytes(SIZE_BYTES) + (int.from_bytes(digest) % N).to_bytes(SIZE_BYTES)
    k, v = bytes(SIZE_BYTES), b"\x01" * SIZE_BYTES
    for mark in (b"\x00", b"\x01"):
        k = hmac.digest(k, v + mark + seed, "sha256")
        v = hmac.digest(k, v, "sha256")
    while True:
        v = hmac.digest(k, v, "sha256")
        nonce = int.from_bytes(v)
        if 0 < nonce < N:
            yield nonce
        k = hmac.digest(k, v + b"\x00", "sha256")
        v = hmac.digest(k, v, "sha256")
