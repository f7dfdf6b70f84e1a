"""What a piece of hardware and a logical device promise, of whichever kind."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from memcfg.devices._tiers import ANYWHERE, Space, Spill, TierLimit, TierSpace
from memcfg.ops._dtypes import item_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from memcfg._core import Arena, Kernel
    from memcfg.memory import Pool


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """Shape and type of one operand of an op.

    Parameters
    ----------
    shape : tuple of int
        The length of each dimension.
    dtype : str
        NumPy's name of the element type, such as ``"float32"``.
    """

    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * item_bytes(self.dtype)


class UnboundKernel(Protocol):
    """An op's kernel for given shapes and attributes, not yet bound to addresses."""

    @property
    def algorithm(self) -> str:
        """Its name, such as ``"onednn"``, ``"direct"`` or ``"reference"``."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs, provided by the caller."""

    @property
    def kernel(self) -> Kernel | None:
        """The CPU's native kernel that `run` runs; None where it runs another."""

    def instruction(self) -> Any:
        """Return what `compute` of the device's programs takes.

        Returns
        -------
        object
            On a CPU a `Kernel`, or a `CallbackKernel`; elsewhere the device's own.
        """

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once, outside of any program.

        Parameters
        ----------
        addresses : sequence of int
            Where the inputs, then the outputs lie; the caller vouches for them.
        scratch : int
            Where `scratch_bytes` of scratch lie; 0 if there are none.

        Raises
        ------
        KernelError
            If the kernel failed.
        """


class Packing(NamedTuple):
    """How an op reads one of its inputs packed, once for many runs.

    Parameters
    ----------
    operands : tuple of int
        The inputs that are read to pack: the one that is packed first.
    nbytes : int
        Its bytes when it is packed.
    pack : UnboundKernel
        From those inputs to the packed bytes; it needs no scratch.
    kernel : UnboundKernel
        The op itself, with the bits of what `KernelTable.make` returns.
    """

    operands: tuple[int, ...]
    nbytes: int
    pack: UnboundKernel
    kernel: UnboundKernel

    @property
    def operand(self) -> int:
        """Which input is packed."""
        return self.operands[0]


class KernelTable(Protocol):
    """Makes a kernel for every type of op."""

    @property
    def name(self) -> str:
        """Which kernels: ``"onednn"``, ``"reference"`` or ``"cuda"``."""

    def has(self, op_type: str) -> bool:
        """Say whether there is a kernel of its own for a type, beside its meaning.

        Parameters
        ----------
        op_type : str
            The type's name.
        """

    def algorithms(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the algorithms of an op.

        Parameters
        ----------
        op_type : str
            The op's type, such as ``"conv2d"``.
        attributes : mapping
            The op's attributes.
        inputs, outputs : sequence of OperandSpec
            Its operands.

        Returns
        -------
        list of (str, int, float)
            Name, scratch in bytes and seconds of each, the default first; 0 seconds
            where they are not known.

        Raises
        ------
        KernelError
            If the type is unknown or has no kernel for such operands.
        """

    def measure(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
    ) -> list[tuple[str, int, float]]:
        """List the algorithms of an op with the seconds that a run takes here.

        They run on zeros in memory of the device's pool, unless that is known.

        Parameters
        ----------
        op_type, attributes, inputs, outputs : str, mapping, sequences of OperandSpec
            The op, as `algorithms` takes it.

        Returns
        -------
        list of (str, int, float)
            As `algorithms` returns them; 0 seconds where the pool has not the memory,
            of tables that only plan, and of an algorithm that is never the default.

        Raises
        ------
        KernelError
            As `algorithms` does.
        """

    def make(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> UnboundKernel:
        """Make the kernel of an op.

        Parameters
        ----------
        op_type, attributes, inputs, outputs : str, mapping, sequences of OperandSpec
            The op, as `algorithms` takes it.
        algorithm : str or None, default None
            One of `algorithms`; None is the default.

        Raises
        ------
        KernelError
            If the type or the algorithm is unknown or has no kernel for such operands.
        """

    def packing(
        self,
        op_type: str,
        attributes: Mapping[str, Any],
        inputs: Sequence[OperandSpec],
        outputs: Sequence[OperandSpec],
        algorithm: str | None = None,
    ) -> Packing | None:
        """Say how an op would read an input packed.

        Parameters
        ----------
        op_type, attributes, inputs, outputs : str, mapping, sequences of OperandSpec
            The op, as `algorithms` takes it.
        algorithm : str or None, default None
            As `make` takes it.

        Returns
        -------
        Packing or None
            None where that would gain nothing.

        Raises
        ------
        KernelError
            As `make` does.
        """


class Device(Protocol):
    """A logical device: a pool under a limit of its own, queues, and kernels.

    What runs on it are programs over its memory spaces: the arenas of its pool, and
    what `tier_memory` returns.

    Attributes
    ----------
    name : str
        Such as ``"/device:CPU:0"``.
    pool : Pool
        Where all memory of the device comes from.
    host_pool : Pool
        Where arrays lie that wait for the device: `pool` itself where the host can
        touch it, else memory of the host, which the device's limit does not count.
    space : Space
        What kind of memory the pool hands out; on ``"addresses"`` nothing runs.
    tier_kinds : mapping of str to Space
        The tiers that such devices have, ``"host"`` and ``"file"``.
    tiers : mapping of str to Space
        The spaces that tensors can be swapped to, in the order in which they are taken,
        and of what kind they are.
    spill : Spill
        What it was told of them.
    tier_limit : TierLimit
        What programs have reserved of the tiers that have a limit.
    codecs : tuple of str
        What programs can encode tensors with. One of them may need a library that is
        missing: `MissingDependencyError` says so when it is to be used.
    takes_overflow : bool
        Whether what an encoding leaves over may go to a tier.
    coded_tiers : tuple of str
        The tiers to which lanes can encode what they copy.
    fallible : bool
        Whether a kernel can fail, so that programs save the state that they change.
    spares_scratch : bool
        Whether a plan that does not fit may take algorithms of less scratch than the
        defaults, which are slower and round differently.
    takes_bfloat16 : bool
        Whether kernels take bfloat16.
    page_bytes : int
        What the pool's limit counts: pages of so many bytes, or bytes in use if it is
        1. An arena has whole pages.
    """

    name: str
    pool: Pool
    host_pool: Pool
    space: Space
    tier_kinds: Mapping[str, Space]
    tiers: Mapping[str, Space]
    spill: Spill
    tier_limit: TierLimit
    codecs: tuple[str, ...]
    takes_overflow: bool = False
    coded_tiers: tuple[str, ...] = ()
    fallible: bool
    spares_scratch: bool = False
    takes_bfloat16: bool = True
    page_bytes: int

    @property
    def kernels(self) -> KernelTable:
        """The kernels that run here, or that are planned with; loaded at first need.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """

    def write(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Write an array to an arena, behind what runs.

        Parameters
        ----------
        arena : Arena
            Memory of the pool.
        offset : int
            Bytes from its base.
        array : ndarray
            The bytes, C-contiguous.
        """

    def read(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Read an array from an arena, behind what runs.

        Parameters
        ----------
        arena, offset, array : Arena, int, ndarray
            As `write` takes them; the array takes the bytes.
        """

    def zero(self, arena: Arena, offset: int, nbytes: int) -> None:
        """Write zeros, behind what runs.

        Parameters
        ----------
        arena, offset, nbytes : Arena, int, int
            Where, as for `write`, and how many.
        """

    def staging(
        self, arena: Arena, offset: int, shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any]:
        """Return host memory in which an operand is prepared for `write`, or read to.

        Parameters
        ----------
        arena, offset : Arena, int
            Where the operand lies, as for `write`.
        shape, dtype : tuple of int, str
            The operand's.

        Returns
        -------
        ndarray
            An array. Where `space` is ``"host"`` it is the operand itself, `write` and
            `read` of it do nothing, and the arena is kept while it is referred to.
        """

    def synchronize(self) -> None:
        """Wait until all queues are done."""

    def tier_memory(self, tier: str, nbytes: int, *, tag: str) -> TierSpace:
        """Take memory of a tier, beside the device's limit.

        On the host's lie copies of the state while it changes, too, which no limit of
        the tier counts.

        Parameters
        ----------
        tier : str
            One of `tiers`.
        nbytes : int
            How much, in bytes.
        tag : str
            Who holds it.

        Raises
        ------
        OSError
            If the disk is full.
        ResourceExhaustedError
            If the host has not the memory.
        """

    def use_spill(self, spill: Spill) -> None:
        """Send tensors that leave elsewhere from now on.

        Parameters
        ----------
        spill : Spill
            Where. No program has memory of the device, or of a tier.
        """
        self.spill = spill
        self.tier_limit = TierLimit(self.name, spill)
        self.tiers = spill.of(self.tier_kinds)

    def copy_rate(self, tier: str) -> float:
        """Return how fast lanes copy to a tier and back, whatever they were told.

        That is measured in memory of the pool and of the tier, unless it is known.

        Parameters
        ----------
        tier : str
            One of `tiers`.

        Returns
        -------
        float
            Bytes a second in the slower direction; 0: there is no room to measure it.
        """

    def program(self, arena: Arena, tiers: Mapping[str, TierSpace]) -> Any:
        """Make an empty program.

        Its space 0 is the arena, those of the tiers are 1, 2, ...; its queue 0
        computes, and tier number n has queue 1 + 2n for copies out and 2 + 2n for
        copies in. The instructions are compute, copy, encode, decode, record, wait,
        guard and protect, and where `space` is ``"host"`` allocate and free of buffers
        of the pool (`add_buffer`); operands are (space, offset). It has the methods of
        the CPU's program; `bind` returns False where it cannot read the host's memory.

        Parameters
        ----------
        arena : Arena
            Memory of the pool.
        tiers : mapping of str to TierSpace
            What `tier_memory` returned, by tier.
        """

    def describe_kernels(self) -> str:
        """Return a sentence that says which kernels these are."""


class Hardware(Protocol):
    """A physical device, from which logical devices are made.

    Attributes
    ----------
    name : str
        Such as ``"/physical_device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    memory_bytes : int
        All memory that it has; of a CPU what its control group allows, if that is less.
    space : Space
        What kind of memory that is; ``"addresses"``: it is simulated.
    bounded : bool
        Whether a device without a limit of its own is limited to `memory_bytes`. A
        GPU's memory is its own; a CPU's is the machine's, which others use too.
    divisible : bool
        Whether several logical devices can be made of it.
    priorities : range or None
        The priorities of its devices' streams; None where it has no streams.
    """

    name: str
    device_type: str
    memory_bytes: int
    space: Space
    bounded: bool
    divisible: bool
    priorities: range | None

    def details(self) -> dict[str, Any]:
        """Return what is known about the hardware, in a new dict."""

    def make(
        self,
        name: str,
        *,
        limit_bytes: int | None,
        growth: bool,
        priority: int,
        spill: Spill = ANYWHERE,
    ) -> Device:
        """Make a logical device, with its pool.

        Parameters
        ----------
        name : str
            Such as ``"/device:GPU:0"``.
        limit_bytes : int or None
            The limit of its pool in bytes; None is no limit.
        growth : bool
            Whether memory is taken as it is needed; False takes the limit at once.
        priority : int
            The priority of its streams; 0 where there are none.
        spill : Spill, default ANYWHERE
            Where tensors go that leave it.

        Raises
        ------
        ResourceExhaustedError
            If the device is to take its memory at once and cannot.
        """
