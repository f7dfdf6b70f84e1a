# Arguments and results on their way between Python and C++.

from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
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
    cdef int overflow = 0
    cdef long long small
    if type(value) is int:  # the usual case, without making numbers of Python's
        small = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0 and small >= 0:
            return <size_t>small
    number = as_int(value, what)
    if number < 0:
        raise ValueError(f"{what} cannot be negative: {number}")
    return min(number, native.kNoLimit)


# Bytes, or a string with a unit. The import stands inside because a .pxd has no module
# of its own to import into.
cdef inline object as_bytes(object size, str what):
    if isinstance(size, str):
        from memcfg.units import parse_bytes

        return parse_bytes(size)
    return as_int(size, what)


cdef inline size_t as_limit(object limit) except? 0:
    if limit is None:
        return native.kNoLimit
    number = as_bytes(limit, "a limit")
    if not 0 < number < native.kNoLimit:
        raise ValueError(f"a limit is a positive number of bytes, not {number}")
    return number


cdef inline native.Lifetime as_lifetime(object lifetime) except *:
    if lifetime is None:
        return native.Lifetime.unknown
    if lifetime == "short":
        return native.Lifetime.short_lived
    if lifetime == "long":
        return native.Lifetime.long_lived
    raise ValueError(f"a lifetime is 'short', 'long' or None, not {lifetime!r}")


cdef inline int as_thread_count(object count) except 0:
    number = as_int(count, "a number of threads")
    if not 0 < number < 2**16:
        raise ValueError(f"a number of threads is at least 1, not {number}")
    if number > 1 and not native.kHasOpenMp:
        raise RuntimeError("memcfg was built without OpenMP: its kernels use 1 thread")
    return number


cdef inline native.bool as_flag(object value, str what) except *:
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {value!r}")
    return value


cdef inline object limit_or_none(size_t nbytes):
    return None if nbytes == native.kNoLimit else nbytes


# Any str makes the way there and back, lone surrogates included.
cdef inline string as_string(str text):
    cdef Py_ssize_t size = 0
    cdef const char* utf8
    try:
        utf8 = PyUnicode_AsUTF8AndSize(text, &size)
        return string(utf8, <size_t>size)
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


cdef inline str as_text(const string& text):
    return text.decode("utf-8", "surrogatepass")
