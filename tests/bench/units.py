"""How numbers are written."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Write a time.

    >>> seconds(1.234), seconds(0.0567), seconds(2.5e-6), seconds(0.9999)
    ('1.23 s', '56.7 ms', '2.50 us', '1.00 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * size:
            return f"{three(value / size)} {unit}"
    return f"{three(value * 1e6)} us"


def three(value: float) -> str:
    """Write a number with three digits, but no more than two behind the point.

    >>> three(0.0123), three(1), three(12.34), three(999.6)
    ('0.01', '1.00', '12.3', '1000')
    """
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def of_bytes(nbytes: int) -> str:
    """Write a number of bytes.

    >>> of_bytes(4), of_bytes(65_536), of_bytes(5_000_000)
    ('4 B', '64 KiB', '5 MB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    if nbytes % 1024 == 0 and nbytes < 1 << 20:
        return f"{nbytes // 1024} KiB"
    return f"{nbytes / 1e6:g} MB"
