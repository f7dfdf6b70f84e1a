# Blocks of a pool for a library that is told where the functions are. A part of
# engine.pyx.


@cython.final
cdef class HostAllocator:
    """Functions of C that take blocks of a pool and free them by their address.

    They are good until the process ends, and keep the pool. Struct
    ``memcfg_host_functions`` of `_native/include/memcfg/host_allocator.hpp` says what
    they promise. ValueError if the host cannot touch the pool's memory.
    """

    cdef native.HostAllocator* core  # never deleted: blocks may come back at any time
    cdef readonly Pool pool

    def __cinit__(self, Pool pool not None):
        self.pool = pool
        self.core = new native.HostAllocator(
            static_pointer_cast[native.Pool, native.Resource](pool.core)
        )

    @property
    def functions(self):
        """The address of the struct."""
        return <uintptr_t>&self.core.functions()

    def refusal(self, uint64_t number):
        """Return a ResourceExhaustedError's fields; None: it is none of the last 64."""
        cdef optional[OutOfMemoryInfo] found = self.core.refusal(number)
        if not found.has_value():
            return None
        return numbers_of(found.value())


# The GIL, which is held here, keeps callers and forks apart.
def intern_tag(str text not None):
    """Return a number for a tag, which `swap_thread_tag` takes; 0 for none."""
    return <uintptr_t>native.intern_tag(as_string(text)) if text else 0


def swap_thread_tag(uintptr_t number):
    """Let a tag name what this thread takes from host allocators from now on.

    Returns the number of the one before; 0 is none.
    """
    return <uintptr_t>native.swap_thread_tag(<const string*>number)
