"""The plugin's own pair: published vectors, properties of the curve, and a handshake by another library."""

from __future__ import annotations

import hashlib
import ssl

import pytest
from dflash_runner.scheduler import certificate, p256
from hypothesis import given, settings
from hypothesis import strategies as st

KEY = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721  # RFC 6979 A.2.5
PUBLIC = (
    0x60FED4BA255A9D31C961EB74C6356D68C049B8923B61FA6CE669622E60F29FB6,
    0x7903FE1008B8BC99A41AE9E95628BC64F2F1B20C2D7E9F5177A3C294D4462299,
)
keys = st.integers(1, p256.N - 1)


def on_curve(point: p256.Point) -> bool:
    x, y = point
    return (y * y - (x**3 - 3 * x + p256.B)) % p256.P == 0


def plus(a: p256.Point, b: p256.Point) -> p256.Point:
    """The group law as schools teach it, for points that are neither equal nor opposite."""
    slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, p256.P) % p256.P
    x = (slope**2 - a[0] - b[0]) % p256.P
    return x, (slope * (a[0] - x) - a[1]) % p256.P


@pytest.mark.parametrize(
    ("message", "r", "s"),
    [
        (
            b"sample",
            0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
            0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
        ),
        (
            b"test",
            0xF1ABB023518351CD71D881567B1EA663ED3EFCF6C5132B354F28D3B0B7D38367,
            0x019F4113742A2B14BD25926B49C649155F267E60D3814B4C0CC84250E46F0083,
        ),
    ],
)
def test_signs_as_the_rfc_does(message, r, s):
    assert p256.public(KEY) == PUBLIC
    assert p256.sign(KEY, message) == (r, s)


@given(keys, st.binary(max_size=64))
@settings(max_examples=15, deadline=None)
def test_signatures_verify(key, message):
    """By the other side's equation, SEC 1 section 4.1.4."""
    r, s = p256.sign(key, message)
    w = pow(s, -1, p256.N)
    digest = int.from_bytes(hashlib.sha256(message).digest())
    parts = [(digest * w % p256.N, p256.G), (r * w % p256.N, p256.public(key))]
    a, b = (p256.multiply(k, point) for k, point in parts)
    assert plus(a, b)[0] % p256.N == r


@given(keys.filter(lambda k: k not in (1, p256.N - 1)))
@settings(max_examples=15, deadline=None)
def test_multiples_follow_each_other(k):
    point = p256.multiply(k, p256.G)
    assert on_curve(point)
    assert p256.multiply(p256.N - k, p256.G) == (point[0], p256.P - point[1])
    assert point == p256.G or plus(point, p256.G) == p256.multiply(k + 1, p256.G)


def test_small_multiples():
    """Where the sum is a doubling, or begins from nothing."""
    two = p256.multiply(2, p256.G)
    assert p256.multiply(1, p256.G) == p256.G
    assert plus(two, p256.G) == p256.multiply(3, p256.G)
    assert p256.multiply(p256.N - 1, p256.G) == (p256.G[0], p256.P - p256.G[1])


def context(
    side: ssl._SSLMethod, own: certificate.Pair, trusted: certificate.Pair, directory
) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=trusted.certificate_der)
    file = directory / "pair.pem"
    file.write_bytes(own.key_pem + own.certificate_pem)
    made.load_cert_chain(file)
    return made


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> ssl.SSLObject:
    """The client's end of a connection in memory, both ends verified."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    ends[1].write(b"x")
    assert ends[0].read(1) == b"x"
    return ends[0]


def test_openssl_takes_the_pair(tmp_path):
    """Name, validity and use of the certificate are as TLS wants them, on both sides."""
    host, plugin = certificate.new_pair(), certificate.new_pair()
    server = context(ssl.PROTOCOL_TLS_SERVER, plugin, host, tmp_path)
    said = shake(server, context(ssl.PROTOCOL_TLS_CLIENT, host, plugin, tmp_path)).getpeercert()
    assert said["subjectAltName"] == (("DNS", "localhost"),)
    assert said["version"] == 3
    stranger = context(ssl.PROTOCOL_TLS_CLIENT, certificate.new_pair(), plugin, tmp_path)
    with pytest.raises(ssl.SSLError):
        shake(server, stranger)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(server, context(ssl.PROTOCOL_TLS_CLIENT, host, host, tmp_path))


@given(st.integers(0, 1 << 200))
def test_integers_are_shortest(value):
    der = certificate._integer(value)  # noqa: SLF001
    body = der[2:]
    assert int.from_bytes(body, signed=True) == value
    assert len(body) == 1 or body[0] or body[1] & 0x80  # X.690 8.3.2


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_lengths(size):
    der = certificate._tagged(0x04, bytes(size))  # noqa: SLF001
    if size < 128:
        assert der[:2] == bytes([4, size])
    else:
        count = der[1] & 0x7F
        assert int.from_bytes(der[2 : 2 + count]) == size
        assert der[2]
