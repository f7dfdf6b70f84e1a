"""Encoded bytes of tensors: pieces that are encoded one by one, in blocks of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._core import codec_bounds, decode_bytes, encode_bytes, lossless_codecs
from memcfg.memory import Pool
from memcfg.torch.saved._account import ENCODED
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from memcfg._core import Block
    from memcfg.torch.saved._account import Account, Charge

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

PIECE = 2**20  # bytes: a piece and its code stay in a second-level cache
_TRIED = 4  # pieces after which a codec that saves too little is abandoned


def saves(code_bytes: int, nbytes: int) -> bool:
    """Return whether a code is worth its time: it saves at least an eighth."""
    return 8 * code_bytes <= 7 * nbytes


def is_lossless(codec: str) -> bool:
    """Return whether a codec reproduces the same bits."""
    return codec in lossless_codecs()


@dataclass(frozen=True, slots=True)
class Code:
    """Encoded bytes in memory, one block for each piece."""

    codec: str
    nbytes: int  # bytes of the tensor
    sizes: tuple[int, ...]  # bytes of each code
    blocks: tuple[Block, ...]
    charges: tuple[Charge, ...]

    @property
    def held_bytes(self) -> int:
        """The bytes of the blocks, which are rounded up."""
        return sum(block.nbytes for block in self.blocks)

    def pieces(self) -> list[Bytes]:
        """Return the codes of the pieces."""
        views = (np.frombuffer(memoryview(block), np.uint8) for block in self.blocks)
        return [view[:size] for view, size in zip(views, self.sizes, strict=True)]


class Encoder:
    """Encodes into blocks of a pool, charged to an account as they are made.

    Only one thread may use it at a time: its scratch holds the code of one piece,
    `PIECE` bytes and 64.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._pool = Pool(name="saved tensors")
        self._scratch = np.empty(0, np.uint8)
        account.trim = self.trim

    @property
    def pool_bytes(self) -> int:
        """Bytes of the pool that are in use."""
        return self._pool.stats().current_bytes

    def free_bytes(self) -> int:
        """Return the bytes of unused pages."""
        if self._scratch.nbytes == 0:  # nothing was ever encoded
            return 0
        stats = self._pool.stats()
        return stats.reserved_bytes - stats.current_bytes

    def trim(self, keep: int = 0) -> int:
        """Return unused pages beyond `keep` bytes to the system; return their bytes."""
        if self.free_bytes() <= keep:
            return 0
        return self._pool.trim(keep)

    def encode(self, codec: str, source: Bytes) -> Code | bool:
        """Encode; return False if that saves too little, True if there is no room."""
        if self._scratch.nbytes == 0:
            self._scratch = np.empty(codec_bounds(PIECE)["zvc"], np.uint8)
        scratch, total = self._scratch, source.nbytes
        sizes: list[int] = []
        blocks: list[Block] = []
        charges: list[Charge] = []
        done = held = 0
        for start in range(0, total, PIECE):
            piece = source[start : start + PIECE]
            size = encode_bytes(codec, piece.data, scratch.data)
            done += piece.nbytes
            held += align_up(size)
            limit = total if done < _TRIED * PIECE else done
            if not saves(held, limit):
                return False
            charge = self._account.charge(ENCODED, align_up(size))
            if charge is None:
                return saves(held, done)
            charges.append(charge)
            block = self._pool.allocate(size, tag=codec)
            blocks.append(block)
            self.trim(self._account.room())
            np.frombuffer(memoryview(block), np.uint8)[:size] = scratch[:size]
            sizes.append(size)
        return Code(codec, total, tuple(sizes), tuple(blocks), tuple(charges))


def decode(codec: str, pieces: Sequence[Bytes], target: Bytes) -> None:
    """Decode the pieces of a code into one array."""
    for number, piece in enumerate(pieces):
        part = target[number * PIECE : (number + 1) * PIECE]
        decode_bytes(codec, piece.data, part.data)


def split(flat: Bytes, sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Return the pieces of codes that lie one after another in an array."""
    ends = np.cumsum(sizes)
    return [flat[end - size : end] for end, size in zip(ends, sizes, strict=True)]
