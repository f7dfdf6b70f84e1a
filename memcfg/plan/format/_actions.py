"""The actions of a plan: their fields are the operands of ``memcfg.plan/2``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alloc:
    """Give a tensor a buffer in the device arena.

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
    """Announce that an output takes over an input's buffer when its op runs.

    Parameters
    ----------
    output : int
        Tensor id of the output.
    input : int
        Tensor id of the input that the op destroys.
    """

    output: int
    input: int


@dataclass(frozen=True, slots=True)
class Free:
    """End a tensor's buffer.

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
        One of the op's algorithms; None is the default.
    scratch_offset : int or None
        Where its scratch lies in the arena; None if it needs none.
    """

    op: int
    algorithm: str | None = None
    scratch_offset: int | None = None


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Start a copy of a tensor to a tier.

    The copy has its bytes there until the last copy in of it has been waited for; one
    that is never copied in, until it has been waited for itself.

    Parameters
    ----------
    tensor : int
        Tensor id.
    tier : str
        Such as ``"host"``.
    offset : int or None, default None
        Bytes from the start of the tier; None leaves the place to who runs the plan.
    codec : str or None, default None
        A lossless codec that encodes the bytes on their way; the copy then has 64 bytes
        more there. Whoever copies them back decodes them.
    nbytes : int or None, default None
        The encoded size that is planned for, in bytes; of a copy with a codec alone.
    """

    tensor: int
    tier: str
    offset: int | None = None
    codec: str | None = None
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Start a copy of a tensor back from a tier, into a buffer allocated before.

    Parameters
    ----------
    tensor : int
        Tensor id.
    tier : str
        Such as ``"host"``.
    offset : int or None, default None
        Where the copy lies on the tier, in bytes from its start; None as in `SwapOut`.
    """

    tensor: int
    tier: str
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Encode:
    """Store a tensor encoded; its own buffer remains until it is freed.

    With a tier, a code that needs more bytes than are planned for is no error: the
    tensor's bytes stay as they are, what does not fit on the tier.

    Parameters
    ----------
    tensor : int
        Tensor id.
    codec : str
        The name of the encoding.
    nbytes : int
        The encoded size that is planned for, in bytes.
    offset : int
        Where the encoded bytes lie in the arena.
    tier : str or None, default None
        Where bytes go that do not fit.
    overflow : int or None, default None
        Their place, in bytes from the start of the tier; None as in `SwapOut`.
    """

    tensor: int
    codec: str
    nbytes: int
    offset: int
    tier: str | None = None
    overflow: int | None = None


@dataclass(frozen=True, slots=True)
class Decode:
    """Give an encoded tensor a new buffer and its value back; the encoding ends.

    Parameters
    ----------
    tensor : int
        Tensor id.
    offset : int
        Where the tensor's new buffer lies in the arena.
    """

    tensor: int
    offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for a copy to arrive.

    Parameters
    ----------
    action : int
        The index of the swap in the plan's actions.
    """

    action: int


Action = Alloc | Alias | Free | Compute | SwapOut | SwapIn | Encode | Decode | Wait
