"""The actions of a plan; their fields are the operands in ``memcfg.plan/3``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alloc:
    """Allocate a buffer for a tensor in the device arena.

    Parameters
    ----------
    tensor : int
        Tensor id.
    offset : int
        Bytes from the start of the arena.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Alias:
    """Declare that the next op writes an output into the buffer of an input.

    Parameters
    ----------
    output : int
        Tensor id of the output.
    input : int
        Tensor id of the input that the op overwrites.
    """

    output: int
    input: int


@dataclass(frozen=True, slots=True)
class Free:
    """Free a tensor's buffer.

    Parameters
    ----------
    tensor : int
        Tensor id.
    """

    tensor: int


@dataclass(frozen=True, slots=True)
class Compute:
    """Run an op.

    Parameters
    ----------
    op : int
        Op index.
    algorithm : str or None
        Name of one of the op's algorithms; None is the default one.
    scratch_offset : int or None
        Offset of its scratch in the arena, in bytes; None if it needs none.
    """

    op: int
    algorithm: str | None = None
    scratch_offset: int | None = None


@dataclass(frozen=True)
class Start(Compute):
    """Start a collective, which then runs beside the actions that follow.

    It runs on the queue ``"network"``, after the collectives before it. Until its
    `Wait`, its outputs are not read, and neither its inputs and outputs nor its scratch
    are freed, overwritten, copied or encoded. Collectives that follow are excepted, as
    they run after it.

    Parameters
    ----------
    op : int
        Op index.
    algorithm : str or None
        Name of one of the op's algorithms; None is the default one.
    scratch_offset : int or None
        Offset of its scratch in the arena, in bytes; None if it needs none.
    """


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Start a copy of a tensor to a tier.

    The copy occupies its bytes on the tier until its last swap-in has been waited for.
    If it is never swapped in, it occupies them until the swap-out has been waited for.

    Parameters
    ----------
    tensor : int
        Tensor id.
    tier : str
        Name of the tier, such as ``"host"``.
    offset : int or None, default None
        Bytes from the start of the tier; None leaves the choice to the runtime.
    codec : str or None, default None
        A lossless codec that encodes the bytes during the copy; the copy then occupies
        64 bytes more on the tier. The swap-in decodes them.
    nbytes : int or None, default None
        The planned encoded size in bytes; given if and only if there is a codec.
    """

    tensor: int
    tier: str
    offset: int | None = None
    codec: str | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Start a copy of a tensor from a tier into its buffer, allocated before.

    Parameters
    ----------
    tensor : int
        Tensor id.
    tier : str
        Name of the tier, such as ``"host"``.
    offset : int or None, default None
        Offset of the copy on the tier in bytes, the same as in its `SwapOut`.
    """

    tensor: int
    tier: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode a tensor into another buffer; its own buffer remains until it is freed.

    With a tier, an encoding larger than planned is not an error: the tensor is stored
    unencoded, and the bytes that do not fit in the buffer go to the tier.

    Parameters
    ----------
    tensor : int
        Tensor id.
    codec : str
        The name of the encoding.
    nbytes : int
        The planned encoded size in bytes.
    offset : int
        Offset of the encoded bytes in the arena.
    tier : str or None, default None
        The tier for bytes that do not fit; None if the encoding cannot overflow.
    overflow : int or None, default None
        Offset of these bytes on the tier; None as in `SwapOut`.
    """

    tensor: int
    codec: str
    nbytes: int
    offset: int
    tier: str | None = None
    overflow: int | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode an encoded tensor into a new buffer and free the encoding.

    Parameters
    ----------
    tensor : int
        Tensor id.
    offset : int
        Offset of the new buffer in the arena, in bytes.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a copy or a collective has ended.

    Parameters
    ----------
    action : int
        Index of the `SwapOut`, `SwapIn` or `Start` in the plan's actions.
    """

    action: int


Action = (
    Alloc | Alias | Free | Compute | Start | SwapOut | SwapIn | Encode | Decode | Wait
)
