# The classes of the engine at a glance.

from libcpp.memory cimport shared_ptr, unique_ptr

from memcfg._core cimport native


cdef class Resource:
    cdef shared_ptr[native.Resource] core
    cdef readonly Resource upstream  # kept alive: its callback is only borrowed
    cdef int fill(self, Block block, const native.Request& request) except -1


cdef class Block:
    cdef readonly Resource resource
    cdef readonly str tag
    cdef void* place  # null once freed or detached
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


cdef class Arena:
    cdef shared_ptr[native.Arena] core
    cdef readonly Pool pool
    cdef readonly str tag
    cdef int require_alive(self) except -1


cdef class OneDNN:
    cdef unique_ptr[native.OneDnn] core


cdef class Kernel:
    cdef shared_ptr[native.Kernel] core


cdef class CallbackKernel:
    cdef shared_ptr[native.Kernel] core
    cdef object function


cdef class Program:
    cdef unique_ptr[native.Program] core
    cdef readonly Arena arena
    cdef list kernels  # kept alive: a callback's C++ side only borrows its object
