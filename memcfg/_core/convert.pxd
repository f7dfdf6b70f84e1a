# Arguments and results on their way between Python and C++.

from libc.stddef cimport size_t
from libcpp.string cimport string

from memcfg._core cimport native


cdef inline object as_int(object value, str what):
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is an int, not {value!r}")
    return value.__index__()


# A size beyond every machine becomes the largest number: it is refused as too large
# by whoever compares it, not as an overflow here.
cdef inline size_t as_size(object value, str what) except? 0:
    number = as_int(value, what)
    if number < 0:
        raise ValueError(f"{what} cannot be negative: {number}")
    return min(number, native.kNoLimit)


cdef inline size_t as_limit(object limit) except? 0:
    if limit is None:
        return native.kNoLimit
    number = as_int(limit, "a limit")
    if not 0 < number < native.kNoLimit:
        raise ValueError(f"a limit is a positive number of bytes, not {number}")
    return number


cdef inline int as_thread_count(object count) except 0:
    number = as_int(count, "a number of threads")
    if not 0 < number < 2**16:
        raise ValueError(f"a number of threads is at least 1, not {number}")
    if number > 1 and not native.kHasOpenMp:
        raise RuntimeError("memcfg was built without OpenMP: its kernels use 1 thread")
    return number


cdef inline object limit_or_none(size_t nbytes):
    return None if nbytes == native.kNoLimit else nbytes


# Any str makes the way there and back, lone surrogates included.
cdef inline string as_string(str text):
    return text.encode("utf-8", "surrogatepass")


cdef inline str as_text(const string& text):
    return text.decode("utf-8", "surrogatepass")
