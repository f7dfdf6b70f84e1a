"""The contract of hardware and of logical devices of any kind."""

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
        NumPy's name for the element type, such as ``"float32"``.
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
        return prod(self.shape) * item_bytes(self.dtype)


class UnboundKernel(Protocol):
    """An op's kernel for given shapes and attributes, not yet bound to addresses."""

    @property
    def algorithm(self) -> str:
        """The name, such as ``"onednn"``, ``"direct"`` or ``"reference"``."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that a run needs, provided by the caller."""

    @property
    def kernel(self) -> Kernel | None:
        """The native kernel of the CPU that `run` calls, or None if there is none."""

    def instruction(self) -> Any:
        """Return the argument for `compute` of the device's programs.

        Returns
        -------
        object
            On a CPU, a `Kernel` or a `CallbackKernel`; otherwise a class of the device.
        """

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run once, outside of any program.

        Parameters
        ----------
        addresses : sequence of int
            The addresses of the inputs, then of the outputs, which are not checked.
        scratch : int
            The address of `scratch_bytes` of scratch; 0 if there are none.

        Raises
        ------
        KernelError
            If the kernel fails.
        """


class Packing(NamedTuple):
    """A way to run an op with one input packed in advance, once for many runs.

    Parameters
    ----------
    operands : tuple of int
        The inputs that packing reads, first the one that is packed.
    nbytes : int
        The bytes of the packed input.
    pack : UnboundKernel
        Packs those inputs; it needs no scratch.
    kernel : UnboundKernel
        The op itself, bit-identical to what `KernelTable.make` returns.
    unpack : UnboundKernel, optional
        Undoes `pack`, to the bit. Both then also work in place, with one array as both
        operands. None if the packed input is not the plain one in another order.
    layout : str, default ""
        A key of that order: packings of inputs of the same bytes and equal keys are
        the same.
    """

    operands: tuple[int, ...]
    nbytes: int
    pack: UnboundKernel
    kernel: UnboundKernel
    unpack: UnboundKernel | None = None
    layout: str = ""

    @property
    def operand(self) -> int:
        """The index of the packed input."""
        return self.operands[0]


class KernelTable(Protocol):
    """A table that makes the kernels of all types of ops."""

    @property
    def name(self) -> str:
        """The name: ``"onednn"``, ``"blas"``, ``"reference"`` or ``"cuda"``."""

    def has(self, op_type: str) -> bool:
        """Return whether a type has a kernel of its own, other than its definition.

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
            The name, scratch in bytes and seconds of each, the default first. Seconds
            are 0 if they are not known.

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

        The algorithms run on zeros in memory of the device's pool, unless their seconds
        are known.

        Parameters
        ----------
        op_type, attributes, inputs, outputs : str, mapping, sequences of OperandSpec
            The op, as `algorithms` takes it.

        Returns
        -------
        list of (str, int, float)
            As `algorithms` returns them. Seconds are 0 if the pool has too little
            memory, for tables that only plan, and for algorithms that are never the
            default.

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
        """Return how an op can run with a packed input.

        Parameters
        ----------
        op_type, attributes, inputs, outputs : str, mapping, sequences of OperandSpec
            The op, as `algorithms` takes it.
        algorithm : str or None, default None
            As `make` takes it.

        Returns
        -------
        Packing or None
            None if packing would gain nothing.

        Raises
        ------
        KernelError
            As `make` does.
        """


class Device(Protocol):
    """A logical device: a pool with a limit of its own, queues, and kernels.

    It runs programs over its memory spaces: the arenas of its pool, and the memory that
    `tier_memory` returns.

    Attributes
    ----------
    name : str
        Such as ``"/device:CPU:0"``.
    pool : Pool
        The pool of all memory of the device.
    host_pool : Pool
        The pool of arrays that wait for the device: `pool` itself if the host can
        access it, else memory of the host, which the device's limit does not count.
    space : Space
        The kind of memory of the pool; nothing runs on ``"addresses"``.
    tier_kinds : mapping of str to Space
        The kinds of tiers that such devices have, ``"host"`` and ``"file"``.
    tiers : mapping of str to Space
        The tiers that tensors can be swapped to, in order of preference, with their
        kinds of memory.
    spill : Spill
        The user's settings of the tiers.
    tier_limit : TierLimit
        The reservations of programs in tiers that have a limit.
    codecs : tuple of str
        The codecs that programs can encode tensors with. If the library of one is
        missing, using it raises `MissingDependencyError`.
    takes_overflow : bool
        Whether tensors that still do not fit after encoding may move to a tier.
    coded_tiers : tuple of str
        The tiers for which lanes can encode the tensors that they copy.
    fallible : bool
        Whether a kernel can fail, so that programs must save the state that they
        change.
    spares_scratch : bool
        Whether a plan that does not fit may use algorithms of less scratch than the
        defaults. They are slower and round differently.
    takes_bfloat16 : bool
        Whether kernels accept bfloat16.
    stages_collectives : bool
        Whether collectives run on copies of their operands in memory of tier
        ``"host"``. Their kernels have `staged_bytes`, and `compute` takes the place of
        so many bytes as that of the scratch.
    page_bytes : int
        The unit of the pool's limit: pages of so many bytes, or bytes in use if it is
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
    stages_collectives: bool = False
    page_bytes: int

    @property
    def kernels(self) -> KernelTable:
        """The kernels that run here, or that plans are made with, loaded on first use.

        Raises
        ------
        KernelError
            If the kernels that ``MEMCFG_KERNELS`` requires cannot be loaded.
        """

    def write(self, arena: Arena, offset: int, array: NDArray[Any]) -> None:
        """Write an array to an arena, after the work that is queued.

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
        """Read an array from an arena, after the work that is queued.

        Parameters
        ----------
        arena, offset, array : Arena, int, ndarray
            As for `write`; the array receives the bytes.
        """

    def zero(self, arena: Arena, offset: int, nbytes: int) -> None:
        """Write zeros, after the work that is queued.

        Parameters
        ----------
        arena, offset, nbytes : Arena, int, int
            The place, as for `write`, and the number of bytes.
        """

    def staging(
        self, arena: Arena, offset: int, shape: tuple[int, ...], dtype: str
    ) -> NDArray[Any]:
        """Return host memory in which an operand is prepared for `write`, or read to.

        Parameters
        ----------
        arena, offset : Arena, int
            The place of the operand, as for `write`.
        shape, dtype : tuple of int, str
            The shape and dtype of the operand.

        Returns
        -------
        ndarray
            An array. If `space` is ``"host"``, it is the operand itself: `write` and
            `read` of it do nothing, and it keeps the arena alive.
        """

    def synchronize(self) -> None:
        """Wait until all queues are done."""

    def tier_memory(self, tier: str, nbytes: int, *, tag: str) -> TierSpace:
        """Allocate memory of a tier, outside of the device's limit.

        On the host, copies of the state while it changes are allocated as well; they
        are outside of the tier's limit.

        Parameters
        ----------
        tier : str
            One of `tiers`.
        nbytes : int
            The size in bytes.
        tag : str
            The holder of the memory.

        Raises
        ------
        OSError
            If the disk is full.
        ResourceExhaustedError
            If the host has too little memory.
        """

    def use_spill(self, spill: Spill) -> None:
        """Change the tiers for swapped tensors.

        Parameters
        ----------
        spill : Spill
            The new tiers. No program may have memory of the device or of a tier.
        """
        self.spill = spill
        self.tier_limit = TierLimit(self.name, spill)
        self.tiers = spill.of(self.tier_kinds)

    def copy_rate(self, tier: str) -> float:
        """Return the bandwidth of copies to a tier and back, without any set limit.

        It is measured in memory of the pool and of the tier, unless it is known.

        Parameters
        ----------
        tier : str
            One of `tiers`.

        Returns
        -------
        float
            Bytes per second in the slower direction; 0 if there is no room to measure
            it.
        """

    def program(
        self, arena: Arena, tiers: Mapping[str, TierSpace], *, network: bool = False
    ) -> Any:
        """Make an empty program.

        Space 0 is the arena, and spaces 1, 2, ... are the tiers. Queue 0 computes; tier
        number n has queue 1 + 2n for copies out and 2 + 2n for copies in. With a
        network, the queue behind those runs collectives: `compute` takes the queue as
        its last argument, and a kernel there runs beside others until it is waited for.
        If the function of a kernel raises, `run` raises the same exception, whatever
        the queue.

        The instructions are compute, copy, encode, decode, record, wait, guard and
        protect, and if `space` is ``"host"``, allocate and free of buffers of the pool
        (`add_buffer`). Operands are (space, offset). The methods are those of the CPU's
        program; `bind` returns False if it cannot read the host's memory.

        Parameters
        ----------
        arena : Arena
            Memory of the pool.
        tiers : mapping of str to TierSpace
            The memory that `tier_memory` returned, by tier.
        network : bool, default False
            Whether the program has the queue of collectives. Programs of one arena
            share it, and no others, since ranks wait for each other there.

        Raises
        ------
        KernelError
            If the device has no such queue.
        """

    def describe_kernels(self) -> str:
        """Return a sentence that names the kernels."""


class Hardware(Protocol):
    """A physical device, from which logical devices are made.

    Attributes
    ----------
    name : str
        Such as ``"/physical_device:CPU:0"``.
    device_type : str
        Such as ``"CPU"``.
    memory_bytes : int
        All memory of the hardware; for a CPU, the limit of its control group if that is
        less.
    space : Space
        The kind of that memory; ``"addresses"`` if it is simulated.
    bounded : bool
        Whether a device without a limit of its own is limited to `memory_bytes`. A
        GPU's memory is its own; a CPU's is shared with other programs.
    divisible : bool
        Whether several logical devices can be made from it.
    priorities : range or None
        The priorities of its devices' streams; None if it has no streams.
    """

    name: str
    device_type: str
    memory_bytes: int
    space: Space
    bounded: bool
    divisible: bool
    priorities: range | None

    def details(self) -> dict[str, Any]:
        """Return details of the hardware in a new dict."""

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
            The limit of its pool in bytes; None for no limit.
        growth : bool
            Whether memory is allocated as needed; False allocates the whole limit at
            once.
        priority : int
            The priority of its streams; 0 if it has none.
        spill : Spill, default ANYWHERE
            The tiers of swapped tensors.

        Raises
        ------
        ResourceExhaustedError
            If the device cannot allocate its memory at once as requested.
        """
