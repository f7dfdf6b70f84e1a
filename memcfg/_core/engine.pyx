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
from libc.math cimport INFINITY
from libc.string cimport memcpy, strcpy
from libcpp.memory cimport shared_ptr, static_pointer_cast
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
from memcfg._core.failure cimport fragmentation
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
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from time import monotonic, sleep
from typing import NamedTuple
from warnings import warn
from weakref import ref

from memcfg._core._live import live_arenas, live_resources
from memcfg._core._stats import PoolStats, RegionStats
from memcfg._core._tag import current_tag
from memcfg._core._words import describe, fill_bar, occupancy_bar
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
    "FailureCallbackResource",
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
    "WorkspaceMemory",
    "arena_of",
    "blocks_of",
    "codec_bounds",
    "current_scope",
    "fork_count",
    "get_host_limits",
    "get_num_threads",
    "has_kernel",
    "layout_of",
    "placement_of",
    "resident_bytes",
    "resource_of",
    "scope_out",
    "set_bypass_everything",
    "set_host_limits",
    "set_max_running",
    "set_num_threads",
    "set_spill_everything",
    "tracked_bytes",
]

cdef int _threads = 0  # OpenMP threads of a program; 0: as many as OpenMP would use


include "resources.pxi"
include "pools.pxi"
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

    def __cinit__(self, str path not None):
        try:
            self.core.reset(new native.OneDnn(as_string(path)))
        except RuntimeError as error:
            raise KernelError(str(error)) from None

    @property
    def version(self):
        """The library's version, such as ``"3.2.0"``."""
        return as_text(self.core.get().version())


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


@cython.final
cdef class Kernel:
    """One op bound to its shapes and attributes, not to addresses.

    Any number of threads and programs may run it at once. Attributes are numbers,
    texts and (nested) sequences of whole numbers; each operand has a shape and a dtype.
    KernelError for an unknown type, an attribute that is missing or malformed, operands
    that the op does not have, or a refusal of the library; without a library only types
    that need none can be made.
    """

    def __cinit__(self, str type not None, attributes, inputs, outputs, OneDNN library):
        cdef native.KernelSpec spec
        cdef native.OneDnn* loaded = NULL
        spec.type = as_string(type)
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
    def operands(self):
        """The bytes of each operand and whether it is written; inputs come first."""
        cdef vector[native.Operand] rows = self.core.get().operands()
        return [(row.size, row.written) for row in rows]

    @property
    def algorithm(self):
        """Whose it is: ``"onednn"`` or ``"native"``."""
        return self.core.get().algorithm().decode()

    @property
    def scratch_bytes(self):
        """Bytes of scratch that a run needs, provided by the caller."""
        return self.core.get().scratch_bytes()

    def run(self, addresses, size_t scratch=0):
        """Run once on operands anywhere: the caller vouches for the addresses.

        KernelError when they are not as many as the kernel has operands, when scratch
        is missing, or when the library fails.
        """
        cdef vector[void*] operands
        cdef size_t address
        cdef unique_ptr[native.RunState] state
        for address in addresses:
            operands.push_back(<void*>address)
        if operands.size() != self.core.get().operands().size():
            raise KernelError(
                f"the kernel has {self.core.get().operands().size()} operands, got "
                f"{operands.size()} addresses"
            )
        if scratch == 0 and self.scratch_bytes > 0:
            raise KernelError(f"the kernel needs {self.scratch_bytes} bytes of scratch")
        state.swap(self.spare)  # with the GIL held: no other run has it
        try:
            with nogil:
                if state.get() == NULL:
                    state = self.core.get().make_run_state()
                self.core.get().run(operands.data(), <void*>scratch, state.get())
        except (RuntimeError, ValueError) as error:
            raise KernelError(str(error)) from None
        self.spare.swap(state)


cdef int call_back(void* context, void* const* operands) except -1 with gil:
    cdef CallbackKernel kernel = <CallbackKernel>context
    cdef size_t i
    kernel.function(*[<uintptr_t>operands[i] for i in range(kernel.count)])
    return 0


@cython.final
cdef class CallbackKernel:
    """A Python function as an instruction; it runs with the GIL held.

    It is called with the addresses of its inputs and outputs; `inputs` and `outputs` are
    the bytes that it needs of each. What it raises stops the program and leaves
    `Program.run`.
    """

    def __cinit__(self, function, inputs=(), outputs=()):
        cdef native.Sizes sizes
        if not callable(function):
            raise TypeError(f"not callable: {function!r}")
        for size in inputs:
            sizes.inputs.push_back(as_size(size, "a size"))
        for size in outputs:
            sizes.outputs.push_back(as_size(size, "a size"))
        self.function = function
        self.count = sizes.inputs.size() + sizes.outputs.size()
        self.core.reset(new native.CallbackKernel(call_back, <void*>self, sizes))


@cython.final
cdef class ScratchFile:
    """A memory space on disk: a file without a name, of `nbytes`, in `folder`.

    It goes with the object or the process. OSError when the disk is full.
    """

    def __cinit__(self, str folder not None, nbytes):
        cdef size_t size = as_size(nbytes, "a size")
        cdef string name = os.fsencode(folder)
        self.folder = folder
        with nogil:
            self.core.reset(new native.ScratchFile(name, size))

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    @property
    def nbytes(self):
        """Its size in bytes."""
        return self.core.get().size()


@cython.final
cdef class ProgramBuffer:
    """Memory of a resource that a program has taken; a buffer of bytes.

    It goes back when neither the program nor anybody else refers to it.
    """

    def __init__(self, *args, **kwargs):
        raise TypeError("a ProgramBuffer is made by Program.buffer")

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        require_touchable(self.resource)
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
    """A queue with a thread of its own that copies, in order; programs share it."""

    def __cinit__(self):
        with nogil:
            self.core.reset(new native.Lane())

    def __dealloc__(self):
        with nogil:
            self.core.reset()


def codec_bounds(size_t nbytes):
    """Return for each codec the bytes that it needs at most to encode so many."""
    cdef vector[const native.Codec*] found = native.codecs()
    return {
        codec.name().decode(): codec.bound(nbytes) for codec in found
    }


cdef inline native.Place as_place(object given) except *:
    cdef native.Place place
    space, offset = given if isinstance(given, tuple) else (0, given)
    place.space = as_size(space, "a space")
    place.offset = as_size(offset, "an offset")
    return place


cdef inline size_t as_event(object event) except *:
    return <size_t>-1 if event is None else as_size(event, "an event")


@cython.final
cdef class Program:
    """Instructions over memory spaces, run in order without the GIL.

    Space 0 is the arena; `spaces`, arenas or scratch files, are 1, 2, ...; kernels work
    in the arena and in what `add_buffer` adds. A place is a (space, offset) pair, or an
    offset in the arena. Queue 0 computes, in the calling thread; `lanes` are 1, 2, ...
    Instructions give their index, which is their event. Waits that are missing between
    what lanes touch are put in.

    The arenas cannot be freed while the program lives. RuntimeError when another thread
    is using the program. ValueError when a place leaves its space or is unaligned, or
    there is no such space, queue or event.
    """

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
        self.buffers = {}
        self.bound = {}
        self.whole = <size_t>-1

    def compute(self, kernel, places, sizes, scratch):
        """Append a kernel whose inputs, then outputs, lie at these places.

        Offsets are bytes and multiples of 64; sizes are the bytes that each operand has
        there. ValueError also when they are not as many as the kernel has operands, one
        has fewer bytes than it needs, or scratch is missing.
        """
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
        index = self.core.get().compute(shared, operands, lengths, own)
        if isinstance(kernel, CallbackKernel) and index >= self.whole:
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

    def encode(self, str codec not None, source, nbytes, target, capacity):
        """Append the encoding of bytes of the arena into `capacity` bytes of it.

        ValueError also for an unknown codec.
        """
        return self.core.get().encode(
            native.find_codec(as_string(codec)),
            as_size(source, "an offset"),
            as_size(nbytes, "a size"),
            as_size(target, "an offset"),
            as_size(capacity, "a size"),
        )

    def decode(self, str codec not None, source, capacity, target, nbytes):
        """Append what gives back the bytes that `encode` has encoded at `source`."""
        return self.core.get().decode(
            native.find_codec(as_string(codec)),
            as_size(source, "an offset"),
            as_size(capacity, "a size"),
            as_size(target, "an offset"),
            as_size(nbytes, "a size"),
        )

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
        """Append what takes a buffer that is not taken.

        A run raises ResourceExhaustedError there when it cannot be had.
        """
        return self.core.get().allocate(as_size(space, "a space"))

    def free(self, space):
        """Append what drops a buffer; it is freed when nobody else refers to it."""
        return self.core.get().free(as_size(space, "a space"))

    def take(self, space, shared=True):
        """Take a buffer now, unless it is taken.

        Without `shared`, another one where somebody else refers to it.
        ResourceExhaustedError when it cannot be had; nothing has changed then.
        """
        cdef size_t place = as_size(space, "a space")
        cdef native.bool sharing = shared
        with nogil:
            self.core.get().take(place, sharing)

    def drop_buffers(self):
        """Drop all buffers."""
        with nogil:
            self.core.get().drop_buffers()

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
        """The instruction at which the last run failed; None if none of queue 0 did."""
        cdef size_t index = self.core.get().failed_at()
        return None if index == <size_t>-1 else index

    def protect(self, nbytes, target):
        """Append what saves the front of the arena at a place.

        A run that fails behind it has these bytes back.
        """
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
        """Say that state changes from the next instruction on.

        From there to the end no signal handler comes between two instructions, also if
        they are Python functions: these run in another thread.
        """
        self.whole = self.core.get().size()

    def input(self, operands, size):
        """Declare an input; gives its number.

        Operands are (instruction, position) pairs that stand for the same `size` bytes,
        read by kernels and written by none. ValueError when one does not exist or has
        more bytes, or they lie at several places.
        """
        cdef vector[native.ProgramOperand] places
        cdef native.ProgramOperand place
        for instruction, position in operands:
            place.instruction = as_size(instruction, "an instruction")
            place.position = as_size(position, "a position")
            places.push_back(place)
        return self.core.get().input(places, as_size(size, "a size"))

    def bind(self, number, array):
        """Have runs read an input where `array` lies; gives whether that can be.

        The bytes must be C-contiguous, 64-byte aligned, of the input's size and outside
        of the arena and buffers; they are kept until `unbind`, and never written.
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

    def run(self, guard=True, Counter counter=None):
        """Run every instruction in order; takes no memory that no `allocate` takes.

        Waits while as many programs run as may, answering signals meanwhile. A run to
        the end advances the counter: no signal handler comes between the two.

        Returns -1 when it ran to the end, else the place, among all instructions, of
        the guard that stopped it (when guards are checked). KernelError names the
        instruction that failed.
        """
        cdef int64_t stopped
        cdef size_t end = self.core.get().size()
        cdef size_t first = self.whole if self.calls_back else end
        acquire(_running)
        try:
            stopped = self.run_part(guard, 0, first, counter if first == end else None)
            if first < end and stopped == -1:
                stopped = call_undivided(
                    lambda: self.run_part(guard, first, end, counter)
                )
        finally:
            _running.leave()
        return stopped

    cdef int64_t run_part(
        self, native.bool check_guards, size_t begin, size_t end, Counter counter
    ) except -2:
        cdef int64_t stopped
        with nogil:
            stopped = self.core.get().run(check_guards, _threads, begin, end)
        if counter is not None and stopped == -1:
            counter.value += 1
        return stopped

    def run_timed(self, Resource resource=None):
        """Run to the end, guards unchecked, one by one: seconds of each instruction.

        With a resource: also the bytes in use there before each.
        """
        cdef vector[double] seconds
        cdef vector[size_t] in_use
        cdef const native.Resource* watched = NULL
        cdef vector[size_t]* counts = NULL
        if resource is not None:
            watched = resource.core.get()
            counts = &in_use
        acquire(_running)
        try:
            with nogil:
                seconds = self.core.get().run_timed(
                    _threads, watched, counts
                )
        finally:
            _running.leave()
        if resource is None:
            return seconds
        return seconds, in_use

    def run_traced(self):
        """Run to the end, guards unchecked: (queue, begin, end) of each, in seconds."""
        cdef vector[native.Span] spans
        acquire(_running)
        try:
            with nogil:
                spans = self.core.get().run_traced(_threads)
        finally:
            _running.leave()
        return [
            (self.queue_of(index), spans[index].begin, spans[index].end)
            for index in range(spans.size())
        ]

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
