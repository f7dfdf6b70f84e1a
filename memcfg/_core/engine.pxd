# The classes of the engine at a glance.

from libcpp.memory cimport shared_ptr, unique_ptr

from memcfg._core cimport native


cdef class Pool:
    cdef shared_ptr[native.Pool] core
    cdef readonly str name


cdef class Block:
    cdef unique_ptr[native.Block] core  # null once freed
    cdef readonly str owner
    cdef Py_ssize_t exports  # buffers that point into the block
    cdef native.Block* alive(self) except NULL


cdef class Arena:
    cdef shared_ptr[native.Arena] core
    cdef readonly str owner
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
