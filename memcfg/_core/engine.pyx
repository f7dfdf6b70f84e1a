"""The native core as Python sees it: pools, arenas, kernels, programs.

Owns the conversion of arguments and results, the buffer protocol, and the release of
the GIL. Refuses policy: who allocates what, where and when is decided above. C++
exceptions become Python ones in `failure.pxd`.

Every class may be used from several threads; a program runs in one at a time.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uintptr_t
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.optional cimport make_optional, optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from memcfg._core cimport native
from memcfg._core.convert cimport (
    as_limit,
    as_size,
    as_string,
    as_text,
    as_thread_count,
    limit_or_none,
)

from memcfg._core._stats import PoolStats
from memcfg.errors import KernelError

__all__ = [
    "Arena",
    "Block",
    "CallbackKernel",
    "Kernel",
    "OneDNN",
    "Pool",
    "Program",
    "get_num_threads",
    "set_num_threads",
]

cdef int _threads = 0  # OpenMP threads of a program; 0: as many as OpenMP would use


@cython.final
cdef class Pool:
    """The memory of one device, under a hard limit.

    Every request is checked against the limit before memory is taken, and a refused
    one leaves everything as it was. The limit is on bytes in use, each request
    rounded up to 64.

    Parameters
    ----------
    limit : int or None, default None
        Bytes; None is no limit.
    name : str, default ""
        The device's name, for messages.

    Raises
    ------
    TypeError, ValueError
        If the limit is no int, not positive, or larger than any address space.
    """

    def __cinit__(self, limit=None, *, str name not None=""):
        self.core = make_shared[native.Pool](as_string(name), as_limit(limit))
        self.name = name

    @property
    def limit(self):
        """The limit in bytes; None when there is none."""
        return limit_or_none(self.core.get().limit())

    def set_limit(self, limit):
        """Change the limit (bytes; None is no limit); gives the one before.

        Raises
        ------
        ResourceExhaustedError
            If more than that is in use; the limit is unchanged.
        TypeError, ValueError
            As for the constructor.
        """
        cdef size_t nbytes = as_limit(limit)
        with nogil:
            nbytes = self.core.get().set_limit(nbytes)
        return limit_or_none(nbytes)

    def allocate(self, nbytes, *, str owner not None=""):
        """Take a block of memory, aligned to 64 bytes, contents undefined.

        Parameters
        ----------
        nbytes : int
            Bytes, at least 1.
        owner : str, default ""
            Who holds it, for messages.

        Returns
        -------
        Block
            The memory, which goes back when it is freed or forgotten.

        Raises
        ------
        ResourceExhaustedError
            If it does not fit the limit, or the system refuses; nothing is taken.
        TypeError, ValueError
            If `nbytes` is no int, or not positive.
        """
        return Block(self, nbytes, owner=owner)

    def arena(self, reserve_bytes=None, *, str owner not None=""):
        """Reserve addresses that can be filled with memory from the front.

        Parameters
        ----------
        reserve_bytes : int or None, default None
            How far the arena can ever grow, in bytes. Addresses cost no memory. None:
            the larger of the limit and the machine's memory, or as much of it as the
            system grants.
        owner : str, default ""
            Who holds it, for messages.

        Returns
        -------
        Arena
            An arena of no bytes.

        Raises
        ------
        ResourceExhaustedError
            If the system refuses the addresses.
        TypeError, ValueError
            If `reserve_bytes` is no int, or not positive.
        """
        return Arena(self, reserve_bytes, owner=owner)

    def stats(self):
        """Read the pool's numbers, all of one moment."""
        cdef native.PoolStats stats = self.core.get().stats()
        return PoolStats(
            current_bytes=stats.now.charged,
            peak_bytes=stats.peak,
            requested_bytes=stats.now.requested,
            reserved_bytes=stats.now.reserved,
            largest_free_bytes=limit_or_none(stats.free),
            allocation_count=stats.grants,
            limit_bytes=limit_or_none(stats.limit),
        )

    def reset_peak(self):
        """Make the bytes in use now the peak."""
        self.core.get().reset_peak()

    def owners(self):
        """List the bytes in use by owner; owners of nothing are not listed."""
        cdef vector[pair[string, size_t]] rows = self.core.get().owners()
        return {as_text(row.first): row.second for row in rows}

    def check(self):
        """Prove the pool's books; AssertionError is a defect of memcfg."""
        self.core.get().check()


@cython.final
cdef class Block:
    """Memory of a pool. A context manager that frees.

    Made by `Pool.allocate`, which states the arguments and errors.
    """

    def __cinit__(self, Pool pool not None, nbytes, *, str owner not None=""):
        cdef size_t requested = as_size(nbytes, "a size")
        cdef string name = as_string(owner)
        with nogil:
            self.core.reset(new native.Block(pool.core, requested, name))
        self.owner = owner

    cdef native.Block* alive(self) except NULL:
        if self.core.get() == NULL:
            raise ValueError("the block has been freed")
        return self.core.get()

    @property
    def address(self):
        """The address of the first byte; a multiple of 64."""
        return <uintptr_t>self.alive().address()

    @property
    def nbytes(self):
        """The block's size in bytes, a multiple of 64."""
        return self.alive().size()

    @property
    def requested(self):
        """The bytes that were asked for."""
        return self.alive().requested()

    def free(self):
        """Give the memory back.

        Raises
        ------
        BufferError
            If an exported buffer points into the block.
        ValueError
            If the block has been freed.
        """
        self.alive()
        if self.exports > 0:
            raise BufferError(
                f"the block cannot be freed: {self.exports} exported buffers still "
                "point into it"
            )
        with nogil:
            self.core.reset()

    def __enter__(self):
        self.alive()
        return self

    def __exit__(self, *exc_info):
        if self.core.get() != NULL:
            self.free()

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef native.Block* block = self.alive()
        PyBuffer_FillInfo(
            buffer, self, block.address(), <Py_ssize_t>block.size(), 0, flags
        )
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1


@cython.final
cdef class Arena:
    """Addresses whose front is memory. The base never moves, so views taken before a
    growth stay valid; the pages behind the last byte cannot be touched.

    Made by `Pool.arena`, which states the arguments and errors.
    """

    def __cinit__(
        self, Pool pool not None, reserve_bytes=None, *, str owner not None=""
    ):
        cdef size_t capacity = 0
        cdef string name = as_string(owner)
        if reserve_bytes is not None:
            capacity = as_size(reserve_bytes, "a size")
            if capacity == 0:
                raise ValueError("an arena of no addresses cannot grow")
        with nogil:
            self.core.reset(new native.Arena(pool.core, capacity, name))
        self.owner = owner

    cdef int require_alive(self) except -1:
        if self.core.get().freed():
            raise ValueError("the arena has been freed")
        return 0

    @property
    def address(self):
        """The address of the first byte; a multiple of 64, and it never changes."""
        self.require_alive()
        return <uintptr_t>self.core.get().base()

    @property
    def nbytes(self):
        """The arena's size in bytes, a multiple of 64."""
        self.require_alive()
        return self.core.get().size()

    @property
    def reserved_addresses(self):
        """How many bytes the arena can ever have."""
        self.require_alive()
        return self.core.get().capacity()

    def grow(self, nbytes):
        """Make the arena at least so large, in place; new bytes are zero.

        Raises
        ------
        ResourceExhaustedError
            If the difference does not fit the limit or the reserved addresses, or the
            system refuses; the arena is unchanged.
        TypeError, ValueError
            If `nbytes` is no int, is negative, or the arena has been freed.
        """
        cdef size_t size = as_size(nbytes, "a size")
        with nogil:
            self.core.get().grow(size)

    def shrink(self, nbytes):
        """Make the arena at most so large, rounded up to 64, in place.

        Raises
        ------
        BufferError
            If a program or an exported buffer points into the arena.
        TypeError, ValueError
            As for `grow`.
        """
        cdef size_t size = as_size(nbytes, "a size")
        with nogil:
            self.core.get().shrink(size)

    def free(self):
        """Give memory and addresses back; fails as `shrink` does, or when repeated."""
        with nogil:
            self.core.get().free()

    def check(self):
        """Prove the arena's books: AssertionError is a defect of memcfg."""
        self.core.get().check()

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef native.Pin* pin = new native.Pin(self.core)
        cdef native.Arena* arena = self.core.get()
        try:
            PyBuffer_FillInfo(
                buffer, self, arena.base(), <Py_ssize_t>arena.size(), 0, flags
            )
        except:  # noqa: E722  (whatever it was: the pin must go)
            del pin
            raise
        buffer.internal = pin

    def __releasebuffer__(self, Py_buffer* buffer):
        cdef native.Pin* pin = <native.Pin*>buffer.internal
        del pin


@cython.final
cdef class OneDNN:
    """The oneDNN library at a path; KernelError when it is not version 3."""

    def __cinit__(self, str path not None):
        try:
            self.core.reset(new native.OneDnn(as_string(path)))
        except RuntimeError as error:
            raise KernelError(str(error)) from None

    @property
    def version(self):
        """The library's version, such as ``"3.2.0"``."""
        return as_text(self.core.get().version())


@cython.final
cdef class Kernel:
    """One op bound to its shapes and attributes, not to addresses.

    The numbers' order stands in ``_native/README.md``. KernelError for an unknown
    type, malformed numbers, or a refusal of the library; without a library only types
    that need none can be made.
    """

    def __cinit__(self, str type not None, integers, reals, OneDNN library):
        cdef native.KernelSpec spec
        cdef native.OneDnn* loaded = NULL
        spec.type = as_string(type)
        spec.integers = integers
        spec.reals = reals
        if library is not None:
            loaded = library.core.get()
        try:
            with nogil:
                self.core = shared_ptr[native.Kernel](
                    native.make_kernel(spec, loaded).release()
                )
        except (RuntimeError, ValueError) as error:
            raise KernelError(str(error)) from None

    @property
    def scratch_bytes(self):
        """Bytes of scratch that a run needs, provided by the caller."""
        return self.core.get().scratch_bytes()

    def run(self, addresses, size_t scratch=0):
        """Run once on operands anywhere: the caller vouches for the addresses."""
        cdef vector[void*] operands
        cdef size_t address
        for address in addresses:
            operands.push_back(<void*>address)
        try:
            with nogil:
                self.core.get().run(operands.data(), <void*>scratch)
        except (RuntimeError, ValueError) as error:
            raise KernelError(str(error)) from None


cdef int call_back(void* context) except -1 with gil:
    (<CallbackKernel>context).function()
    return 0


@cython.final
cdef class CallbackKernel:
    """A Python function as an instruction; it runs with the GIL held.

    What it raises stops the program and leaves `Program.run`.
    """

    def __cinit__(self, function):
        if not callable(function):
            raise TypeError(f"not callable: {function!r}")
        self.function = function
        self.core.reset(new native.CallbackKernel(call_back, <void*>self))


@cython.final
cdef class Program:
    """Kernels bound to places in an arena, run in order without the GIL.

    The arena cannot be freed while the program lives. RuntimeError when another thread
    is using the program.
    """

    def __cinit__(self, Arena arena not None):
        self.core.reset(new native.Program(arena.core))
        self.arena = arena
        self.kernels = []

    def compute(self, kernel, offsets, sizes, scratch_offset):
        """Append a kernel whose inputs, then outputs, lie at these places.

        Offsets are bytes from the arena's base and multiples of 64. ValueError when a
        place leaves the arena or is unaligned, or scratch is missing.
        """
        cdef shared_ptr[native.Kernel] shared
        cdef optional[size_t] scratch
        cdef vector[size_t] places
        cdef vector[size_t] lengths
        if isinstance(kernel, Kernel):
            shared = (<Kernel>kernel).core
        elif isinstance(kernel, CallbackKernel):
            shared = (<CallbackKernel>kernel).core
        else:
            raise TypeError(f"neither a Kernel nor a CallbackKernel: {kernel!r}")
        if scratch_offset is not None:
            scratch = make_optional[size_t](as_size(scratch_offset, "an offset"))
        for offset in offsets:
            places.push_back(as_size(offset, "an offset"))
        for size in sizes:
            lengths.push_back(as_size(size, "a size"))
        self.kernels.append(kernel)  # first: what runs must be alive
        self.core.get().compute(shared, places, lengths, scratch)

    def guard(self, offset):
        """Append a guard: a run stops here unless the float32 there is finite."""
        self.core.get().guard(as_size(offset, "an offset"))

    def run(self, guard=True):
        """Run every instruction in order; takes no memory.

        Returns -1 when it ran to the end, else the place, among all instructions, of
        the guard that stopped it (when guards are heeded). KernelError names the
        instruction that failed. RuntimeError when the program ran before this process
        was forked: its threads are gone.
        """
        cdef native.bool heed_guards = guard
        cdef int64_t stopped
        with nogil:
            stopped = self.core.get().run(heed_guards, _threads)
        return stopped

    def run_timed(self):
        """Run once to the end, guards unheeded: seconds of each instruction."""
        cdef vector[double] seconds
        with nogil:
            seconds = self.core.get().run_timed(_threads)
        return seconds

    def __len__(self):
        return self.core.get().size()


def set_num_threads(count):
    """Choose this process' number of kernel threads; gives the one before.

    RuntimeError for more than 1 when memcfg was built without OpenMP.
    """
    global _threads
    number = as_thread_count(count)
    before = get_num_threads()
    _threads = number
    return before


def get_num_threads():
    """Say how many threads the kernels use: the number set, or OpenMP's own."""
    return _threads if _threads > 0 else native.max_threads()
