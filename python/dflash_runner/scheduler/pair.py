"""The key and the certificate that the host made for the one connection with this process."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass, field

VARIABLE = "DFLASH_RUNNER_PAIR_FD"  # agrees with plugins/scheduler/host/tls.go
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A private key and its certificate, both PEM."""

    key: bytes = field(repr=False)
    certificate: bytes

    @property
    def announced(self) -> str:
        """The certificate as the handshake carries it: DER in base64, without padding."""
        return b"".join(self.certificate.split(b"\n")[1:-2]).decode().rstrip("=")


def take(environment: MutableMapping[str, str]) -> Pair:
    """The pair, from the pipe that the host filled; it can be read this one time.

    Args:
        environment: names the pipe's descriptor under `VARIABLE`, which is removed.

    Raises:
        RuntimeError: there is no pair in it.
    """
    fd = int(environment.pop(VARIABLE))
    with os.fdopen(fd, "rb") as pipe:
        text = pipe.read()
    at = text.find(_CERTIFICATE)
    if at <= 0:
        raise RuntimeError(
            f"start plugin: pair of descriptor {fd}: want a key and a certificate, got {len(text)} bytes"
        )
    return Pair(key=text[:at], certificate=text[at:])
