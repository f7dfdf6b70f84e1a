# What the native core declares, header by header. Extern only.

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

from memcfg._core.failure cimport raise_failure

cdef extern from "memcfg/types.hpp" namespace "memcfg" nogil:
    const size_t kNoLimit

cdef extern from "memcfg/pool.hpp" namespace "memcfg" nogil:
    cdef cppclass Holding:
        size_t requested
        size_t charged
        size_t reserved

    cdef cppclass PoolStats:
        Holding now
        size_t peak
        size_t limit
        size_t free
        uint64_t grants

    cdef cppclass Pool:
        Pool(string name, size_t limit) except +raise_failure
        size_t limit() noexcept
        size_t set_limit(size_t limit) except +raise_failure
        PoolStats stats() except +raise_failure
        void reset_peak() except +raise_failure
        vector[pair[string, size_t]] owners() except +raise_failure
        void check() except +raise_failure

    cdef cppclass Block:
        Block(
            shared_ptr[Pool] pool, size_t requested, string owner
        ) except +raise_failure
        void* address() noexcept
        size_t size() noexcept
        size_t requested() noexcept

cdef extern from "memcfg/arena.hpp" namespace "memcfg" nogil:
    cdef cppclass Arena:
        Arena(
            shared_ptr[Pool] pool, size_t capacity, string owner
        ) except +raise_failure
        void* base() noexcept
        size_t capacity() noexcept
        size_t size() except +raise_failure
        bool freed() except +raise_failure
        void grow(size_t requested) except +raise_failure
        void shrink(size_t requested) except +raise_failure
        void free() except +raise_failure
        void check() except +raise_failure

    cdef cppclass Pin:
        Pin(shared_ptr[Arena] arena) except +raise_failure

cdef extern from "memcfg/onednn.hpp" namespace "memcfg" nogil:
    cdef cppclass OneDnn:
        OneDnn(string path) except +raise_failure
        string version() except +raise_failure

cdef extern from "memcfg/kernel.hpp" namespace "memcfg" nogil:
    cdef cppclass KernelSpec:
        string type
        vector[int64_t] integers
        vector[double] reals

    cdef cppclass Kernel:
        size_t scratch_bytes() noexcept
        void run(void** operands, void* scratch) except +raise_failure

    unique_ptr[Kernel] make_kernel(
        const KernelSpec& spec, const OneDnn* library
    ) except +raise_failure

cdef extern from "memcfg/program.hpp" namespace "memcfg" nogil:
    cdef cppclass CallbackKernel(Kernel):
        CallbackKernel(
            int (*function)(void*) except -1, void* context
        ) except +raise_failure

    cdef cppclass Program:
        Program(shared_ptr[Arena] arena) except +raise_failure
        void compute(
            shared_ptr[Kernel] kernel,
            const vector[size_t]& offsets,
            const vector[size_t]& sizes,
            optional[size_t] scratch,
        ) except +raise_failure
        void guard(size_t offset) except +raise_failure
        int64_t run(bool heed_guards, int threads) except +raise_failure
        vector[double] run_timed(int threads) except +raise_failure
        size_t size() noexcept

cdef extern from "memcfg/threads.hpp" namespace "memcfg" nogil:
    const bool kHasOpenMp
    int max_threads() noexcept
    cdef cppclass ThreadCount:
        ThreadCount(int count) noexcept
