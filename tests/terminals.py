"""A pseudo terminal that a command writes to, and all that it wrote there."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from contextlib import suppress


def terminal(width: int | None = None) -> tuple[int, int]:
    """(master, slave) of a terminal with so many columns; 0 are a terminal that tells none."""
    master, slave = pty.openpty()
    if width is not None:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    return master, slave


def written_to(master: int, slave: int) -> str:
    """What a terminal gets until all who were given its slave have left; both ends are closed."""
    os.close(slave)
    seen = b""
    with suppress(OSError):  # how a pseudo terminal ends
        while piece := os.read(master, 65536):
            seen += piece
    os.close(master)
    return seen.decode()
