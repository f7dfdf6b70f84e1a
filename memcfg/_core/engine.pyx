"""The native core as Python sees it: resources, pools, arenas, kernels, programs.

Owns the conversion of arguments and results, the buffer protocol, and the release of
the GIL. Refuses policy: who allocates what, where and when is decided above. C++
exceptions become Python ones in `failure.pxd`. One module links the native core, so
the classes of memory are included here rather than a module of their own.

Every class may be used from several threads; a program runs in one at a time.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.contextvars cimport get_value
from cpython.exc cimport (
    PyErr_CheckSignals,
    PyErr_Fetch,
    PyErr_Restore,
    PyErr_SetInterrupt,
    PyErr_SetObject,
    PyErr_WriteUnraisable,
)
from cpython.memoryview cimport PyMemoryView_GET_BUFFER
from cpython.number cimport PyNumber_Index
from cpython.object cimport PyObject
from cpython.pycapsule cimport (
    PyCapsule_GetContext,
    PyCapsule_GetDestructor,
    PyCapsule_GetPointer,
    PyCapsule_New,
    PyCapsule_SetContext,
)
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH
from libc.stddef cimport size_t
from libc.stdint cimport (
    SIZE_MAX,
    int32_t,
    int64_t,
    uint8_t,
    uint32_t,
    uint64_t,
    uintptr_t,
)
from libc.math cimport INFINITY, isfinite
from libc.string cimport memcpy, strcpy
from libcpp.memory cimport shared_ptr, static_pointer_cast, unique_ptr
from libcpp.optional cimport make_optional, optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from memcfg._core cimport native
from memcfg._core.convert cimport (
    as_bytes,
    as_flag,
    as_lifetime,
    as_limit,
    as_size,
    as_string,
    as_text,
    as_thread_count,
    limit_or_none,
)
from memcfg._core.failure cimport OutOfMemoryInfo, fragmentation, numbers_of
from memcfg._core.frames cimport as_words, keep_code, let_code_go, read_frames

import atexit
import errno
import fcntl
import os
import signal
import stat
import threading
from contextvars import ContextVar, copy_context
from copy import copy
from dataclasses import asdict
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from time import monotonic, sleep
from typing import NamedTuple
from warnings import warn
from weakref import ref

from memcfg._core._holders import Holders, make_room
from memcfg._core._live import live_arenas, live_resources
from memcfg._core._stats import PoolStats, RegionStats
from memcfg._core._words import describe, fill_bar, occupancy_bar
from memcfg._html import report_of_owners
from memcfg.errors import (
    InvalidFreeError,
    KernelError,
    ResourceExhaustedError,
    WorkspaceError,
    WorkspaceStaleError,
)

__all__ = [
    "Arena",
    "Block",
    "CallbackKernel",
    "Counter",
    "CudaAllocator",
    "CudaContext",
    "CudaDriver",
    "CudaEvent",
    "CudaFunction",
    "CudaGraph",
    "CudaInfo",
    "CudaModule",
    "CudaResource",
    "CudaStream",
    "FailureCallbackResource",
    "HostAllocator",
    "Kernel",
    "Lane",
    "LimitingResource",
    "Lock",
    "LoggingResource",
    "MappedFile",
    "NumpyAllocator",
    "OneDNN",
    "Placement",
    "Pool",
    "PoolHistory",
    "Program",
    "ProgramBuffer",
    "ReplayPlan",
    "Resource",
    "Scope",
    "ScratchFile",
    "SimulatedResource",
    "StatisticsResource",
    "SystemResource",
    "TrackingResource",
    "Transfer",
    "WorkspaceMemory",
    "arena_of",
    "blocks_of",
    "call_undivided",
    "codec_bounds",
    "current_scope",
    "current_tag",
    "decode_bytes",
    "drop_ended",
    "encode_bytes",
    "encode_codebook",
    "fork_count",
    "get_host_limits",
    "get_num_threads",
    "has_kernel",
    "holds_turn",
    "intern_tag",
    "layout_of",
    "list_algorithms",
    "lossless_codecs",
    "make_packing",
    "needs_library",
    "placement_of",
    "replay",
    "resident_bytes",
    "resource_of",
    "scope_out",
    "set_bypass_everything",
    "set_host_limits",
    "set_max_running",
    "set_num_threads",
    "set_spill_everything",
    "swap_thread_tag",
    "tracked_bytes",
]

# The tag that allocations have when they name none; `memcfg.memory.tag` sets it.
current_tag = ContextVar("memcfg_tag", default="")

cdef list _unended = []  # of programs that were closed while a lane worked for them
cdef int _threads = 0  # OpenMP threads of a program; 0: as many as OpenMP would use


include "resources.pxi"
include "pools.pxi"
include "host_allocator.pxi"
include "cuda.pxi"
include "files.pxi"
include "replay.pxi"
include "workspaces.pxi"
include "adaptors.pxi"
include "arrays.pxi"
include "numpy_memory.pxi"
include "numpy_scopes.pxi"
include "locks.pxi"


@cython.final
cdef class OneDNN:
    """The oneDNN library at a path; KernelError when it is not version 3."""

    cdef unique_ptr[native.OneDnn] core
    cdef readonly str version  # such as "3.2.0"
    cdef readonly bint has_bfloat16  # whether convolutions and products take it here
    cdef readonly bint has_fast_bfloat16  # whether the processor multiplies it

    def __cinit__(self, str path not None):
        try:
            self.core.reset(new native.OneDnn(as_string(path)))
        except RuntimeError as error:
            raise KernelError(str(error)) from None
        self.version = as_text(self.core.get().version())
        self.has_bfloat16 = self.core.get().has_bfloat16()
        self.has_fast_bfloat16 = self.core.get().has_fast_bfloat16()


cdef native.OperandSpec operand_spec(operand):
    """Return an operand as C++ describes it; it has a shape and a dtype."""
    cdef native.OperandSpec spec
    for length in operand.shape:
        spec.shape.push_back(length)
    spec.dtype = as_string(operand.dtype)
    return spec


cdef int set_attribute(native.KernelSpec& spec, str name, value) except -1:
    cdef string key = as_string(name)
    cdef vector[int64_t] numbers
    if isinstance(value, str):
        spec.set_text(key, as_string(value))
    elif isinstance(value, (tuple, list)):
        append_numbers(numbers, value)
        spec.set_integers(key, numbers)
    elif hasattr(value, "__index__"):
        spec.set_integer(key, value.__index__())
    elif value is not None:
        spec.set_real(key, value)
    return 0


cdef int append_numbers(vector[int64_t]& numbers, values) except -1:
    """Append whole numbers, row by row."""
    for value in values:
        if isinstance(value, (tuple, list)):
            append_numbers(numbers, value)
        else:
            numbers.push_back(PyNumber_Index(value))
    return 0


def has_kernel(str type not None):
    """Tell whether there is a kernel of that type here; an expression needs none."""
    return native.has_kernel(as_string(type))


def needs_library(str type not None):
    """Tell whether the kernel of that type is made with oneDNN."""
    return native.needs_library(as_string(type))


cdef native.KernelSpec kernel_spec(str type, attributes, inputs, outputs) except *:
    """Return an op as C++ describes it."""
    cdef native.KernelSpec spec
    spec.type = as_string(type)
    spec.threads = _threads
    try:
        for name, value in attributes.items():
            set_attribute(spec, name, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise KernelError(
            f"kernel {type!r}: attribute {name!r} is {value!r}, no number, text or "
            f"sequence of whole numbers: {error}"
        ) from None
    for operand in inputs:
        spec.inputs.push_back(operand_spec(operand))
    for operand in outputs:
        spec.outputs.push_back(operand_spec(operand))
    return spec


def list_algorithms(
    str type not None, attributes, inputs, outputs, OneDNN library
):
    """List name and bytes of scratch of an op's algorithms, the default first."""
    cdef native.KernelSpec spec = kernel_spec(type, attributes, inputs, outputs)
    cdef native.OneDnn* loaded = NULL
    cdef vector[native.Algorithm] found
    if library is not None:
        loaded = library.core.get()
    try:
        with nogil:
            found = native.list_algorithms(spec, loaded)
    except (RuntimeError, ValueError) as error:
        raise KernelError(str(error)) from None
    return [(each.name.decode(), each.scratch_bytes) for each in found]


@cython.final
cdef class Kernel:
    """One op bound to its shapes and attributes; any number of threads may run it."""

    cdef shared_ptr[native.Kernel] core
    cdef readonly list operands  # bytes of each and whether it is written; inputs first
    cdef readonly str algorithm  # its name, such as "onednn" or "native"
    cdef readonly size_t scratch_bytes  # that a run needs, provided by the caller

    def __init__(
        self,
        str type not None,
        attributes,
        inputs,
        outputs,
        OneDNN library,
        str algorithm=None,
    ):
        cdef native.KernelSpec spec = kernel_spec(type, attributes, inputs, outputs)
        cdef native.OneDnn* loaded = NULL
        if library is not None:
            loaded = library.core.get()
        if algorithm is not None:
            spec.algorithm = as_string(algorithm)
        cdef unique_ptr[native.Kernel] made
        try:
            with nogil:
                made = native.make_kernel(spec, loaded)
        except (RuntimeError, ValueError) as error:
            raise KernelError(str(error)) from None
        self.take(made.release())

    cdef int take(self, native.Kernel* made) except -1:
        """Be this kernel, and own it."""
        self.core = shared_ptr[native.Kernel](made)
        cdef vector[native.Operand] rows = self.core.get().operands()
        self.operands = [(row.size, row.written) for row in rows]
        self.algorithm = self.core.get().algorithm().decode()
        self.scratch_bytes = self.core.get().scratch_bytes()
        return 0

    def run(self, addresses, size_t scratch=0):
        """Run once on operands anywhere: the caller vouches for the addresses."""
        cdef vector[void*] operands
        cdef size_t address
        cdef unique_ptr[native.RunState] state
        cdef unique_ptr[native.ThreadCount] count
        for address in addresses:
            operands.push_back(<void*>address)
        if operands.size() != self.core.get().operands().size():
            raise KernelError(
                f"the kernel has {self.core.get().operands().size()} operands, got "
                f"{operands.size()} addresses"
            )
        if scratch == 0 and self.scratch_bytes > 0:
            raise KernelError(f"the kernel needs {self.scratch_bytes} bytes of scratch")
        try:
            with nogil:
                count.reset(new native.ThreadCount(_threads))
                state = self.core.get().make_run_state()
                self.core.get().run(operands.data(), <void*>scratch, state.get())
        except (RuntimeError, ValueError) as error:
            raise KernelError(str(error)) from None


def make_packing(
    str type not None,
    attributes,
    inputs,
    outputs,
    OneDNN library,
    str algorithm=None,
):
    """Return what the packing reads, the packing, and the kernel that reads its result.

    The first of the inputs that it reads is the one that is packed. Behind them stand
    what undoes the packing, in place as the packing does it, and the layout's name, or
    None and "" where the result is no other order of the input. None where packing an
    input once gains nothing.
    """
    cdef native.KernelSpec spec = kernel_spec(type, attributes, inputs, outputs)
    cdef native.OneDnn* loaded = NULL
    cdef optional[native.Packing] found
    cdef Kernel pack, kernel, unpack = None
    if library is not None:
        loaded = library.core.get()
    if algorithm is not None:
        spec.algorithm = as_string(algorithm)
    try:
        with nogil:
            found = native.make_packing(spec, loaded)
    except (RuntimeError, ValueError) as error:
        raise KernelError(str(error)) from None
    if not found.has_value():
        return None
    pack, kernel = Kernel.__new__(Kernel), Kernel.__new__(Kernel)
    pack.take(found.value().pack.release())
    kernel.take(found.value().kernel.release())
    if found.value().unpack:
        unpack = Kernel.__new__(Kernel)
        unpack.take(found.value().unpack.release())
    layout = found.value().layout.decode()
    return tuple(found.value().operands), pack, kernel, unpack, layout


# A lane's thread has no Python state that would keep an exception: the kernel does.
cdef int call_back(
    void* context, void* const* operands, void* scratch
) noexcept with gil:
    cdef CallbackKernel kernel = <CallbackKernel>context
    cdef size_t i
    try:
        addresses = [<uintptr_t>operands[i] for i in range(kernel.count)]
        if scratch != NULL:
            addresses.append(<uintptr_t>scratch)
        kernel.function(*addresses)
    except BaseException as error:
        kernel.raised = error
        return -1
    return 0


@cython.final
cdef class CallbackKernel:
    """A Python function of its operands' and its scratch's addresses."""

    cdef shared_ptr[native.Kernel] core
    cdef object function
    cdef object raised  # by the function, until a program's run raises it
    cdef size_t count  # operands

    def __cinit__(self, function, inputs=(), outputs=(), scratch_bytes=0):
        cdef native.Sizes sizes
        cdef size_t scratch = as_size(scratch_bytes, "a size")
        if not callable(function):
            raise TypeError(f"not callable: {function!r}")
        for size in inputs:
            sizes.inputs.push_back(as_size(size, "a size"))
        for size in outputs:
            sizes.outputs.push_back(as_size(size, "a size"))
        self.function = function
        self.count = sizes.inputs.size() + sizes.outputs.size()
        self.core.reset(
            new native.CallbackKernel(call_back, <void*>self, sizes, scratch)
        )


@cython.final
cdef class ScratchFile:
    """A memory space on disk: a file without a name, which goes with the object."""

    cdef object __weakref__
    cdef shared_ptr[native.Space] core
    cdef readonly str folder
    cdef readonly size_t nbytes

    def __cinit__(self, str folder not None, nbytes):
        cdef size_t size = as_size(nbytes, "a size")
        cdef string name = os.fsencode(folder)
        self.folder = folder
        self.nbytes = size
        with nogil:
            self.core.reset(new native.ScratchFile(name, size))

    def __dealloc__(self):
        with nogil:
            self.core.reset()


@cython.final
cdef class ProgramBuffer:
    """Memory of a resource that a program has taken; a buffer of bytes."""

    cdef shared_ptr[native.Buffer] core
    cdef readonly Resource resource  # kept alive: its callback is only borrowed

    def __init__(self, *args, **kwargs):
        raise TypeError("a ProgramBuffer is made by Program.buffer")

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        require_memory(self.resource)
        PyBuffer_FillInfo(
            buffer,
            self,
            self.core.get().data(),
            <Py_ssize_t>self.core.get().size(),
            0,
            flags,
        )


@cython.final
cdef class Lane:
    """A queue with a thread of its own, which copies or computes in order.

    With a bandwidth, in bytes a second, no copy ends sooner than its bytes take. With a
    timeout, in seconds, a program's run fails when a task has not got on for so long.
    """

    cdef shared_ptr[native.Lane] core

    def __cinit__(self, bandwidth=None, timeout=None):
        cdef double bytes_per_second = 0 if bandwidth is None else bandwidth
        cdef double seconds = INFINITY if timeout is None else timeout
        with nogil:
            self.core.reset(new native.Lane(bytes_per_second, seconds))

    def __dealloc__(self):
        with nogil:
            self.core.reset()


@cython.final
cdef class Transfer:
    """A copy between a buffer and a file, which a lane does meanwhile.

    It has begun when `read` or `write` of this class returns it.
    """

    cdef unique_ptr[native.Transfer] core
    cdef object kept  # the buffer and the file

    def __init__(self, *args, **kwargs):
        raise TypeError("a Transfer is made by Transfer.read or Transfer.write")

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    @staticmethod
    def read(ScratchFile file not None, offset, target, Lane lane not None):
        """Read from the file into a buffer, which is changed until it has ended."""
        view = contiguous_view(target)
        if view.readonly:
            raise ValueError("the target is read-only")
        cdef Py_buffer* to = PyMemoryView_GET_BUFFER(view)
        cdef size_t start = as_size(offset, "an offset")
        cdef Transfer made = Transfer.__new__(Transfer)
        made.kept = (file, view)
        with nogil:
            made.core = native.Transfer.read(
                file.core, lane.core, start, to.buf, to.len
            )
        return made

    @staticmethod
    def write(ScratchFile file not None, offset, source, Lane lane not None):
        """Write a buffer, which nobody changes until it has ended, to the file."""
        view = contiguous_view(source)
        cdef Py_buffer* begin = PyMemoryView_GET_BUFFER(view)
        cdef size_t start = as_size(offset, "an offset")
        cdef Transfer made = Transfer.__new__(Transfer)
        made.kept = (file, view)
        with nogil:
            made.core = native.Transfer.write(
                file.core, lane.core, start, begin.buf, begin.len
            )
        return made

    @property
    def done(self):
        """Whether it has ended."""
        return self.core.get().done()

    def wait(self):
        """Wait until it has ended; OSError if it failed."""
        with nogil:
            self.core.get().wait()


def codec_bounds(size_t nbytes):
    """Return for each codec the bytes that it needs at most to encode so many."""
    cdef vector[const native.Codec*] found = native.codecs()
    return {
        codec.name().decode(): codec.bound(nbytes) for codec in found
    }


def lossless_codecs():
    """Return the names of the codecs that give back the bytes that they got."""
    cdef vector[const native.Codec*] found = native.codecs()
    return tuple(codec.name().decode() for codec in found if codec.lossless())


def encode_bytes(str codec not None, source, target):
    """Encode one buffer into another, which is changed; gives the bytes written."""
    cdef const native.Codec* found = &native.find_codec(as_string(codec))
    read, written = contiguous_view(source), contiguous_view(target)
    if written.readonly:
        raise ValueError("the target is read-only")
    begin, to = PyMemoryView_GET_BUFFER(read), PyMemoryView_GET_BUFFER(written)
    cdef size_t used
    with nogil:
        used = found.encode(
            <const native.byte*>begin.buf, begin.len, <native.byte*>to.buf, to.len
        )
    return used


def encode_codebook(source, target, index_bits, bint huffman):
    """Encode as the codec "codebook" with settings; None: the best index bits."""
    cdef unsigned bits = 0xFF if index_bits is None else as_size(index_bits, "index_bits")
    cdef unique_ptr[native.Codebook] codec
    read, written = contiguous_view(source), contiguous_view(target)
    if written.readonly:
        raise ValueError("the target is read-only")
    begin, to = PyMemoryView_GET_BUFFER(read), PyMemoryView_GET_BUFFER(written)
    cdef size_t used
    with nogil:
        codec.reset(new native.Codebook("codebook", bits, huffman))
        used = codec.get().encode(
            <const native.byte*>begin.buf, begin.len, <native.byte*>to.buf, to.len
        )
    return used


def decode_bytes(str codec not None, source, target):
    """Decode one buffer into another, which is changed and has the tensor's bytes."""
    cdef const native.Codec* found = &native.find_codec(as_string(codec))
    read, written = contiguous_view(source), contiguous_view(target)
    if written.readonly:
        raise ValueError("the target is read-only")
    begin, to = PyMemoryView_GET_BUFFER(read), PyMemoryView_GET_BUFFER(written)
    with nogil:
        found.decode(
            <const native.byte*>begin.buf, begin.len, <native.byte*>to.buf, to.len
        )


cdef inline object contiguous_view(object given):
    view = memoryview(given)
    if not view.c_contiguous:
        raise ValueError("the bytes do not lie behind one another")
    return view


cdef inline native.Place as_place(object given) except *:
    cdef native.Place place
    space, offset = given if isinstance(given, tuple) else (0, given)
    place.space = as_size(space, "a space")
    place.offset = as_size(offset, "an offset")
    return place


cdef inline size_t as_event(object event) except *:
    return <size_t>-1 if event is None else as_size(event, "an event")


@cython.final
cdef class Unended:
    """What a program had that a lane still works for; it goes when that has ended."""

    cdef unique_ptr[native.Program] core
    cdef object kept

    def __dealloc__(self):
        if self.core.get() != NULL and not self.core.get().ended():
            self.core.release()  # the process ends


def drop_ended():
    """Let go of programs that were closed while a lane hung and has ended since."""
    for unended in list(_unended):
        if (<Unended>unended).core.get().ended():
            _unended.remove(unended)


@cython.final
cdef class Program:
    """Instructions over memory spaces, run in order without the GIL: program.hpp.

    A place is a (space, offset) pair, or an offset in the arena, which is space 0.
    """

    cdef unique_ptr[native.Program] core
    cdef readonly Arena arena
    cdef readonly tuple spaces  # kept alive: C++ borrows an arena's pool
    cdef list kernels  # kept alive: a callback's C++ side only borrows its object
    cdef dict callbacks  # by instruction
    cdef bint failed  # whether the last run failed, so that callbacks may have raised
    cdef dict buffers  # resources by space
    cdef dict bound  # by input: a view that keeps the bytes that are read elsewhere
    cdef size_t whole  # from this instruction on nothing interrupts a run
    cdef bint calls_back  # whether one of those is a Python function
    cdef vector[native.Span] spans  # of a timed run
    cdef vector[double] least  # of timed runs, by instruction

    def __cinit__(self, Arena arena not None, spaces=(), lanes=()):
        cdef vector[shared_ptr[native.Space]] others
        cdef vector[shared_ptr[native.Lane]] queues
        for space in spaces:
            if isinstance(space, ScratchFile):
                others.push_back((<ScratchFile>space).core)
            else:
                others.push_back(
                    shared_ptr[native.Space](
                        <native.Space*>new native.ArenaSpace((<Arena?>space).core)
                    )
                )
        for lane in lanes:
            queues.push_back((<Lane?>lane).core)
        self.core.reset(new native.Program(arena.core, others, queues))
        self.arena = arena
        self.spaces = tuple(spaces)
        self.kernels = []
        self.callbacks = {}
        self.buffers = {}
        self.bound = {}
        self.whole = <size_t>-1

    def __dealloc__(self):
        cdef Unended unended
        if self.core.get() == NULL or self.core.get().ended():
            with nogil:
                self.core.reset()
            return
        unended = Unended.__new__(Unended)
        unended.core.swap(self.core)
        unended.kept = self.kernels
        _unended.append(unended)

    def compute(self, kernel, places, sizes, scratch, queue=0):
        """Append a kernel whose inputs, then outputs, lie at these places."""
        cdef size_t own_queue = as_size(queue, "a queue")
        cdef shared_ptr[native.Kernel] shared
        cdef optional[native.Place] own
        cdef vector[native.Place] operands
        cdef vector[size_t] lengths
        cdef size_t index
        if isinstance(kernel, Kernel):
            shared = (<Kernel>kernel).core
        elif isinstance(kernel, CallbackKernel):
            shared = (<CallbackKernel>kernel).core
        else:
            raise TypeError(f"neither a Kernel nor a CallbackKernel: {kernel!r}")
        if scratch is not None:
            own = make_optional[native.Place](as_place(scratch))
        for place in places:
            operands.push_back(as_place(place))
        for size in sizes:
            lengths.push_back(as_size(size, "a size"))
        self.kernels.append(kernel)  # first: what runs must be alive
        index = self.core.get().compute(shared, operands, lengths, own, own_queue)
        if isinstance(kernel, CallbackKernel):
            self.callbacks[index] = kernel
            if index >= self.whole and own_queue == 0:
                self.calls_back = True
        return index

    def copy(self, queue, source, target, nbytes):
        """Append a copy between two places."""
        return self.core.get().copy(
            as_size(queue, "a queue"),
            as_place(source),
            as_place(target),
            as_size(nbytes, "a size"),
        )

    def encode(
        self, str codec not None, source, nbytes, target, capacity, overflow=None
    ):
        """Append the encoding of bytes of the arena into `capacity` bytes of it.

        What does not fit is kept as it is, there and at `overflow`, if that is given.
        """
        cdef optional[native.Place] beside
        if overflow is not None:
            beside = make_optional[native.Place](as_place(overflow))
        return self.core.get().encode(
            native.find_codec(as_string(codec)),
            as_size(source, "an offset"),
            as_size(nbytes, "a size"),
            as_size(target, "an offset"),
            as_size(capacity, "a size"),
            beside,
        )

    def decode(
        self, str codec not None, source, capacity, target, nbytes, encoding=None
    ):
        """Append what gives back the bytes that `encoding` has encoded at `source`."""
        return self.core.get().decode(
            native.find_codec(as_string(codec)),
            as_size(source, "an offset"),
            as_size(capacity, "a size"),
            as_size(target, "an offset"),
            as_size(nbytes, "a size"),
            as_event(encoding),
        )

    def copy_encoded(
        self, queue, str codec not None, source, nbytes, target, capacity
    ):
        """Append a copy of bytes of the arena that its lane encodes on their way."""
        return self.core.get().copy_encoded(
            as_size(queue, "a queue"),
            native.find_codec(as_string(codec)),
            as_size(source, "an offset"),
            as_size(nbytes, "a size"),
            as_place(target),
            as_size(capacity, "a size"),
        )

    def copy_decoded(self, queue, encoding, target):
        """Append the copy back of what a lane has encoded, to an offset."""
        return self.core.get().copy_decoded(
            as_size(queue, "a queue"),
            as_size(encoding, "an instruction"),
            as_size(target, "an offset"),
        )

    def coded(self, index):
        """Return of an encoding its runs, how many of them kept the bytes, its bytes."""
        cdef native.Coded found = self.core.get().coded(
            as_size(index, "an instruction")
        )
        return found.runs, found.raw, found.used

    def record(self, queue):
        """Return the event that all has run that was added to a queue so far."""
        cdef size_t event = self.core.get().record(as_size(queue, "a queue"))
        return None if event == <size_t>-1 else event

    def wait(self, queue, event):
        """Append a wait of a queue for an event of another; None is past already."""
        return self.core.get().wait(as_size(queue, "a queue"), as_event(event))

    def guard(self, place):
        """Append a guard: a run stops here unless the float32 there is finite."""
        return self.core.get().guard(as_place(place))

    def add_buffer(self, Resource resource not None, nbytes, str tag not None):
        """Add a space of so many bytes, which `allocate` or `take` takes there."""
        cdef shared_ptr[native.BufferSpace] made
        made.reset(
            new native.BufferSpace(
                resource.core, as_size(nbytes, "a size"), as_string(tag)
            )
        )
        cdef size_t space = self.core.get().add_buffer(made)
        self.buffers[space] = resource
        return space

    def allocate(self, space):
        """Append what takes a buffer that is not taken."""
        return self.core.get().allocate(as_size(space, "a space"))

    def free(self, space):
        """Append what drops a buffer; it is freed when nobody else refers to it."""
        return self.core.get().free(as_size(space, "a space"))

    def discard(self, offset, nbytes):
        """Append what ends the life of bytes of the arena: their pages go back."""
        return self.core.get().discard(as_size(offset, "an offset"),
                                       as_size(nbytes, "a size"))

    def take(self, space, shared=True):
        """Take a buffer now, unless it is taken, and `shared` or nobody else's."""
        cdef size_t place = as_size(space, "a space")
        cdef native.bool sharing = shared
        with nogil:
            self.core.get().take(place, sharing)

    def drop(self, space):
        """Drop a buffer now; who refers to it keeps its bytes."""
        cdef size_t place = as_size(space, "a space")
        with nogil:
            self.core.get().drop(place)

    def buffer(self, space):
        """Return a buffer, with its bytes; None where it is not taken."""
        cdef shared_ptr[native.Buffer] found = self.core.get().buffer(
            as_size(space, "a space")
        )
        if found.get() == NULL:
            return None
        cdef ProgramBuffer made = ProgramBuffer.__new__(ProgramBuffer)
        made.core = found
        made.resource = self.buffers[space]
        return made

    @property
    def failed_at(self):
        """The instruction or kernel on a lane where the last run failed, or None."""
        cdef size_t index = self.core.get().failed_at()
        return None if index == <size_t>-1 else index

    def protect(self, nbytes, target):
        """Append what saves the front of the arena, for runs that fail behind it."""
        return self.core.get().protect(as_size(nbytes, "a size"), as_place(target))

    def queue_of(self, index):
        """Return the queue of an instruction."""
        return self.core.get().queue_of(as_size(index, "an instruction"))

    def set_jitter(self, uint32_t seed, uint32_t microseconds):
        """Have lanes sleep up to so long before each instruction; for tests."""
        self.core.get().set_jitter(seed, microseconds)

    def fail_at(self, instruction):
        """Have runs fail at an instruction; None ends it. For tests."""
        self.core.get().fail_at(as_event(instruction))

    def undivided(self):
        """Have no signal handler come between the instructions from here to the end."""
        self.whole = self.core.get().size()

    def input(self, operands, size):
        """Declare an input or result by its (instruction, position) pairs.

        Gives its number.
        """
        cdef vector[native.ProgramOperand] places
        cdef native.ProgramOperand place
        for instruction, position in operands:
            place.instruction = as_size(instruction, "an instruction")
            place.position = as_size(position, "a position")
            places.push_back(place)
        return self.core.get().input(places, as_size(size, "a size"))

    def bind(self, number, array):
        """Have runs read an input, or write a result, where `array` lies.

        Gives whether that can be.
        """
        cdef size_t place = as_size(number, "an input")
        view = memoryview(array)
        if not view.c_contiguous:
            return False
        self.bound.setdefault(number, None)  # from now on nothing fails behind `bind`
        buffer = PyMemoryView_GET_BUFFER(view)
        if not self.core.get().bind(place, buffer.buf, <size_t>buffer.len):
            return False
        self.bound[number] = view
        return True

    def unbind(self, number):
        """Have runs read an input in the arena again, and let go of the array."""
        if self.bound.get(number) is not None:
            self.core.get().unbind(as_size(number, "an input"))
            self.bound[number] = None

    def run(self, guard=True, Counter counter=None, bint timed=False):
        """Run all and advance the counter; gives the guard that stopped it, else -1.

        Timed runs to the end are those that `least_seconds` tells of.
        """
        cdef int64_t stopped
        cdef size_t end = self.core.get().size()
        cdef size_t first = self.whole if self.calls_back else end
        cdef size_t index
        cdef vector[native.Span]* spans = NULL
        if timed:
            self.spans.resize(end)
            self.least.resize(end, INFINITY)
            spans = &self.spans
        acquire(_running)
        try:
            stopped = self.run_part(
                guard, 0, first, counter if first == end else None, spans
            )
            if first < end and stopped == -1:
                stopped = call_undivided(
                    lambda: self.run_part(guard, first, end, counter, spans)
                )
        finally:
            _running.leave()
        if timed and stopped == -1:
            for index in range(end):
                self.least[index] = min(
                    self.least[index], self.spans[index].end - self.spans[index].begin
                )
        return stopped

    cdef object find_raised(self):
        """Return what a callback has raised that ended the last run, or None."""
        cdef size_t index = self.core.get().failed_at()
        cdef CallbackKernel kernel = self.callbacks.get(index)
        raised = None if kernel is None else kernel.raised
        self.failed = True
        self.forget_raised()
        self.failed = True  # a lane that was left may still raise
        return raised

    cdef int forget_raised(self) except -1:
        """Let go of what callbacks raised in a run that failed."""
        cdef CallbackKernel kernel
        if self.failed:
            for kernel in self.callbacks.values():
                kernel.raised = None
            self.failed = False
        return 0

    def least_seconds(self):
        """Return the least seconds that each instruction took in timed runs."""
        return self.least

    cdef int64_t run_part(
        self,
        native.bool check_guards,
        size_t begin,
        size_t end,
        Counter counter,
        vector[native.Span]* spans,
    ) except -2:
        cdef int64_t stopped = -1
        self.forget_raised()
        raised = None
        try:
            with nogil:
                stopped = self.core.get().run(
                    check_guards, _threads, begin, end, spans
                )
        except BaseException:
            raised = self.find_raised()
            if raised is None:
                raise
        if raised is not None:  # not while another is handled, which it would refer to
            raise raised
        if counter is not None and stopped == -1:
            counter.value += 1
        return stopped

    def run_timed(self, Resource resource=None):
        """Run one by one: seconds of each, and a resource's bytes in use before it."""
        cdef vector[double] seconds
        cdef vector[size_t] in_use
        cdef const native.Resource* watched = NULL
        cdef vector[size_t]* counts = NULL
        if resource is not None:
            watched = resource.core.get()
            counts = &in_use
        self.forget_raised()
        raised = None
        acquire(_running)
        try:
            with nogil:
                seconds = self.core.get().run_timed(
                    _threads, watched, counts
                )
        except BaseException:
            raised = self.find_raised()
            if raised is None:
                raise
        finally:
            _running.leave()
        if raised is not None:
            raise raised
        if resource is None:
            return seconds
        return seconds, in_use

    def run_traced(self):
        """Run to the end, guards unchecked: (queue, begin, end) of each, in seconds."""
        cdef vector[native.Span] spans
        self.forget_raised()
        raised = None
        acquire(_running)
        try:
            with nogil:
                spans = self.core.get().run_traced(_threads)
        except BaseException:
            raised = self.find_raised()
            if raised is None:
                raise
        finally:
            _running.leave()
        if raised is not None:
            raise raised
        return [
            (self.queue_of(index), spans[index].begin, spans[index].end)
            for index in range(spans.size())
        ]

    def __len__(self):
        return self.core.get().size()


def set_num_threads(count):
    """Choose this process' number of kernel threads; gives the one before."""
    global _threads
    number = as_thread_count(count)
    before = get_num_threads()
    _threads = number
    return before


def get_num_threads():
    """Say how many threads the kernels use: the number set, or OpenMP's own."""
    return _threads if _threads > 0 else native.max_threads()


def set_host_limits(tracked, rss):
    """Choose the limits on tracked and on resident bytes; gives the two before."""
    cdef native.HostLimits limits
    limits.tracked = as_limit(tracked)
    limits.rss = as_limit(rss)
    with nogil:
        limits = native.set_host_limits(limits)
    return limit_or_none(limits.tracked), limit_or_none(limits.rss)


def get_host_limits():
    """Read what this process may take of its host: tracked bytes, resident bytes."""
    cdef native.HostLimits limits = native.host_limits()
    return limit_or_none(limits.tracked), limit_or_none(limits.rss)


def tracked_bytes():
    """Count the bytes in use in all pools and resources on the host."""
    cdef size_t nbytes
    with nogil:
        nbytes = native.tracked_bytes()
    return nbytes


def resident_bytes():
    """Count the bytes that this process has resident; 0 where nobody tells."""
    return native.resident_size()
