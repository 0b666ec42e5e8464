"""The least that a worker could do: send back every packet that comes on the inherited socket.

`python echo.py FD`: what `bench dispatch` measures a worker's order and reply beside.
"""

from __future__ import annotations

import socket
import sys

_LARGEST_BYTES = 65536


def main() -> None:
    """Echo until the other end is closed."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        buffer = bytearray(_LARGEST_BYTES)
        view = memoryview(buffer)
        while size := connection.recv_into(buffer):
            connection.send(view[:size])


if __name__ == "__main__":
    main()
