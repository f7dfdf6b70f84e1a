"""How a weight is coded."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODERS", "MAX_INDEX_BITS", "Coding"]

CODERS = ("none", "huffman", "range")
MAX_INDEX_BITS = 8


@dataclass(frozen=True, slots=True)
class Coding:
    """How the gaps and the codebook's numbers of a weight are coded.

    Parameters
    ----------
    index_bits : int or None, default None
        Bits of a gap, from 0 to 8: the number of zeros before an entry. Entries of
        value 0 fill longer gaps. With 0 bits each zero is an entry. None takes the
        number of the fewest bytes.
    coder : {"huffman", "range", "none"}, default "huffman"
        ``"none"`` writes gaps and numbers in as many bits as the largest needs,
        ``"huffman"`` in canonical Huffman codes, ``"range"`` by an adaptive range
        coder, which needs ``memcfg[compression]``.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these.

    Notes
    -----
    The paper has 5 bits for LeNet and VGG-16, 4 for AlexNet, and Huffman codes: S. Han,
    H. Mao, W. J. Dally, "Deep Compression", ICLR 2016.
    """

    index_bits: int | None = None
    coder: str = "huffman"

    def __post_init__(self) -> None:
        """Check the arguments."""
        bits = self.index_bits
        if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int)):
            raise TypeError(f"index_bits must be an int or None, got {bits!r}")
        if bits is not None and not 0 <= bits <= MAX_INDEX_BITS:
            raise ValueError(f"index_bits must be 0 to {MAX_INDEX_BITS}, got {bits}")
        if self.coder not in CODERS:
            known = ", ".join(map(repr, CODERS))
            raise ValueError(f"coder must be one of {known}, got {self.coder!r}")
