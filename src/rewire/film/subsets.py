"""Subsets of ``range(n)`` as bits, in close to the fewest that any code needs if all subsets are equally likely.

A subset is its size, then the gaps between its members in Rice's code: each gap divided by a power of two, the
quotients in unary, then the remainders. Of a subset with more than half of the numbers, those that are missing are
written.
"""

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Bits = NDArray[np.uint8]


class BitWriter:
    """Collects numbers and subsets; ``to_bytes`` returns all of them."""

    def __init__(self) -> None:
        self._parts: list[Bits] = []

    def number(self, value: int) -> None:
        """A small number, in Elias' gamma code of one more: as many zeros as bits follow the leading one.

        >>> writer = BitWriter()
        >>> writer.number(4)  # 5 is 101 in binary, so 00101
        >>> f"{writer.to_bytes()[0]:08b}"
        '00101000'
        """
        length = (value + 1).bit_length()
        digits = [0] * (length - 1) + [int(digit) for digit in f"{value + 1:b}"]
        self._parts.append(np.array(digits, np.uint8))

    def subset(self, members: Positions, n: int) -> None:
        """Sorted numbers below ``n``."""
        self.number(len(members))
        if 2 * len(members) > n:
            members = missing(members, n)
        if not len(members):
            return
        gaps = np.diff(members, prepend=-1) - 1
        shift = _best_shift(gaps)
        self.number(shift)
        quotients = gaps >> shift
        unary = np.zeros(int(quotients.sum()) + len(gaps), np.uint8)
        unary[np.cumsum(quotients + 1) - 1] = 1
        remainders = (gaps[:, None] >> np.arange(shift - 1, -1, -1)) & 1
        self._parts += [unary, remainders.astype(np.uint8).ravel()]

    def to_bytes(self) -> bytes:
        """Everything written so far; the last byte is filled with zeros."""
        return np.packbits(np.concatenate(self._parts)).tobytes() if self._parts else b""


class BitReader:
    """Reads what a ``BitWriter`` wrote, in the same order."""

    def __init__(self, data: bytes) -> None:
        self._bits: Bits = np.unpackbits(np.frombuffer(data, np.uint8))
        self._at = 0

    def number(self) -> int:
        """The next number."""
        zeros = int(self._ones(1, within=64)[0])
        self._at += zeros
        return int("".join(map(str, self._take(zeros + 1))), 2) - 1

    def subset(self, n: int) -> Positions:
        """The next subset of ``range(n)``, sorted."""
        count = self.number()
        if count > n:
            raise ValueError(f"a subset of {n} numbers cannot have {count}: the film is damaged")
        written = n - count if 2 * count > n else count
        if not written:
            members = np.zeros(0, np.int64)
        else:
            shift = self.number()
            ends = self._ones(written, within=(n >> shift) + written)
            self._at += int(ends[-1]) + 1
            quotients = np.diff(ends, prepend=-1) - 1
            digits = self._take(written * shift).reshape(written, shift).astype(np.int64)
            remainders = digits @ (1 << np.arange(shift - 1, -1, -1, dtype=np.int64))
            members = np.cumsum((quotients << shift) + remainders + 1) - 1
            if members[-1] >= n:
                raise ValueError(f"{members[-1]} is not below {n}: the film is damaged")
        return missing(members, n) if 2 * count > n else members

    def _ones(self, count: int, within: int) -> Positions:
        """Where the next ones are, counted from here."""
        positions = np.flatnonzero(self._bits[self._at : self._at + within])[:count]
        if len(positions) < count:
            raise ValueError("the bits end too early: the film is damaged")
        return positions

    def _take(self, count: int) -> Bits:
        bits = self._bits[self._at : self._at + count]
        if len(bits) < count:
            raise ValueError("the bits end too early: the film is damaged")
        self._at += count
        return bits


def missing(members: Positions, n: int) -> Positions:
    """The numbers below ``n`` that are no members, sorted."""
    absent = np.ones(n, bool)
    absent[members] = False
    return np.flatnonzero(absent)


def _best_shift(gaps: Positions) -> int:
    """The power of two that makes the code of these gaps shortest."""
    near = int(gaps.mean() + 1).bit_length()
    candidates = range(max(near - 3, 0), near + 1)
    return min(candidates, key=lambda shift: int((gaps >> shift).sum()) + len(gaps) * shift)
