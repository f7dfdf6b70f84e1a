# The classes of the engine at a glance.

from libc.stdint cimport int64_t
from libcpp.memory cimport shared_ptr, unique_ptr

from memcfg._core cimport native


cdef class Resource:
    cdef object __weakref__
    cdef shared_ptr[native.Resource] core
    cdef readonly Resource upstream  # kept alive: its callback is only borrowed
    cdef void* take(self, const native.Request& request) except NULL


cdef class Block:
    cdef readonly Resource resource
    cdef readonly str tag
    cdef void* data  # null once freed or detached
    cdef size_t size  # as asked for
    cdef Py_ssize_t exports  # buffers that point into the block
    cdef void* alive(self) except NULL
    cdef int require_unexported(self, str what) except -1


cdef class Pool(Resource):
    cdef native.Pool* pool
    cdef double patience


cdef class SystemResource(Resource):
    pass


cdef class SimulatedResource(Resource):
    pass


cdef class LimitingResource(Resource):
    cdef native.LimitingResource* limiting


cdef class StatisticsResource(Resource):
    cdef native.StatisticsResource* statistics


cdef class FailureCallbackResource(Resource):
    cdef readonly object callback


cdef class MappedFile(Resource):
    cdef native.FileResource* file
    cdef readonly str path


# Not final: memcfg.memory puts its numbers into words.
cdef class TrackingResource(Resource):
    cdef native.TrackingResource* tracking
    cdef readonly bint stacks
    cdef readonly size_t max_entries


cdef class LoggingResource(Resource):
    cdef native.LoggingResource* log
    cdef readonly object path
    cdef bint warned
    cdef bint done
    cdef int require(self, int error) except -1
    cdef int warn(self) except -1
    cdef int require_open(self) except -1
    cdef int finish(self) except -1


cdef class WorkspaceMemory(Resource):
    cdef native.Workspace* workspace
    cdef readonly str label
    cdef readonly Resource pages
    cdef readonly str on_escape
    cdef readonly str spill


cdef class ReplayPlan:
    cdef shared_ptr[const native.ReplayPlan] core


cdef class Arena:
    cdef object __weakref__
    cdef shared_ptr[native.Arena] core
    cdef readonly Pool pool
    cdef readonly str tag
    cdef int require_alive(self) except -1


cdef class OneDNN:
    cdef unique_ptr[native.OneDnn] core


cdef class Kernel:
    cdef shared_ptr[native.Kernel] core
    cdef unique_ptr[native.RunState] spare  # of a run that has ended


cdef class CallbackKernel:
    cdef shared_ptr[native.Kernel] core
    cdef object function
    cdef size_t count  # operands


cdef class Lock:
    cdef unique_ptr[native.FairLock] core  # while it is held
    cdef unique_ptr[native.FairLock] long_use
    cdef str name
    cdef bint in_step  # of the thread that has it
    cdef int take(self) except -1
    cdef int take_step(self) except -1
    cdef int take_session(self, str message) except -1


cdef class Turn:
    cdef Lock lock
    cdef str message  # of a session that is refused; None is a turn
    cdef bint is_step
    cdef bint held
    cdef int leave(self) except -1


cdef class Counter:
    cdef readonly int64_t value


cdef class ScratchFile:
    cdef shared_ptr[native.Space] core
    cdef readonly str folder


cdef class ProgramBuffer:
    cdef shared_ptr[native.Buffer] core
    cdef readonly Resource resource  # kept alive: its callback is only borrowed


cdef class Lane:
    cdef shared_ptr[native.Lane] core


cdef class Program:
    cdef unique_ptr[native.Program] core
    cdef readonly Arena arena
    cdef readonly tuple spaces  # kept alive: C++ borrows an arena's pool
    cdef list kernels  # kept alive: a callback's C++ side only borrows its object
    cdef dict buffers  # resources by space
    cdef dict bound  # by input: a view that keeps the bytes that are read elsewhere
    cdef size_t whole  # from this instruction on nothing interrupts a run
    cdef bint calls_back  # whether one of those is a Python function
    cdef int64_t run_part(
        self, native.bool check_guards, size_t begin, size_t end, Counter counter
    ) except -2
