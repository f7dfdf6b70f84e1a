# distutils: language = c++
"""Rows: the order in which a shuffle sends them, those of a file, and of batches.

The functions of `shuffle_order.hpp` and `read_rows.hpp` link nothing else of the core.
"""

cimport cython
cimport numpy as cnp
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import os
import sys

from numpy import generic

from memcfg.errors import FormatError

cnp.import_array()

__all__ = ["RandomWords", "RowWriter", "ShuffleOrder", "read_rows"]

cdef enum:
    LARGE = 65536  # bytes that are worth letting other threads run meanwhile

cdef object END = object()

cdef int64_t FIRST = 64  # slots of a buffer that nobody knows the need of yet


cdef extern from "memcfg/shuffle_order.hpp" namespace "memcfg" nogil:
    cdef cppclass Words "memcfg::RandomWords":
        Words(uint64_t key, uint64_t stream)
        uint32_t next()

    cdef cppclass Order "memcfg::ShuffleOrder":
        Order(int64_t size, uint64_t seed, uint64_t seed2)
        int64_t size()
        int64_t held()
        int64_t slots_for(int64_t count)
        int64_t exchange(
            int64_t* slots, const int64_t* arriving, int64_t count, int64_t* leaving
        )
        int64_t drain(int64_t* slots, int64_t count, int64_t* leaving)


cdef extern from "memcfg/read_rows.hpp" namespace "memcfg" nogil:
    cdef struct RowFile:
        int descriptor
        int64_t offset
        int64_t row_bytes

    cdef struct RowsRead:
        int64_t rows
        int error

    RowsRead gather "memcfg::read_rows"(
        const RowFile& file, const int64_t* rows, int64_t count, char* out
    )


# A buffer of int64 numbers, open until `release`.
@cython.final
cdef class Numbers:
    cdef Py_buffer buffer
    cdef int64_t* first
    cdef int64_t count

    def __cinit__(self, array, bint writable):
        cdef int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT
        PyObject_GetBuffer(array, &self.buffer, flags | (PyBUF_WRITABLE if writable else 0))
        if self.buffer.itemsize != 8 or self.buffer.format[0] not in b"lq":
            raise ValueError("row numbers are int64")
        self.first = <int64_t*>self.buffer.buf
        self.count = self.buffer.len // 8

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)  # nothing where it was never filled


@cython.final
cdef class RandomWords:
    """Random words of 32 bits, those of Philox4x32-10 in their order."""

    cdef Words* words

    def __cinit__(self, key, stream):
        self.words = new Words(as_word(key), as_word(stream))

    def __dealloc__(self):
        del self.words

    def next(self):
        """Return the next word."""
        return self.words.next()

    def pair(self):
        """Return the next two words; no other thread comes in between."""
        cdef uint32_t first = self.words.next()
        return first, self.words.next()


@cython.final
cdef class ShuffleOrder:
    """The order in which a buffer of some size shuffles: that of tf.data's.

    The buffer lies in arrays that a function of their length makes.
    """

    cdef Order* order
    cdef object allocate
    cdef Numbers slots

    def __cinit__(self, size, seed, seed2, allocate):
        cdef int64_t slots = size
        if slots <= 0:
            raise ValueError(f"a buffer has at least one slot, not {size}")
        self.order = new Order(slots, as_word(seed), as_word(seed2))
        self.allocate = allocate

    def __dealloc__(self):
        del self.order

    @property
    def held(self):
        """How many numbers are in the buffer."""
        return self.order.held()

    def exchange(self, int64_t number):
        """Let a number in; return the one that goes out, or -1 where none does."""
        cdef int64_t leaving = -1
        self._secure(1)
        self.order.exchange(self._first(), &number, 1, &leaving)
        return leaving

    def exchange_rows(self, rows, out):
        """Let numbers in, one after the other; return how many went out, to `out`."""
        cdef Numbers arriving = Numbers(rows, False)
        cdef Numbers leaving = Numbers(out, True)
        cdef int64_t gone
        if leaving.count < arriving.count:
            raise ValueError(
                f"{arriving.count} numbers may go out, and there is space for "
                f"{leaving.count}"
            )
        self._secure(arriving.count)
        cdef int64_t* slots = self._first()
        with nogil:
            gone = self.order.exchange(
                slots, arriving.first, arriving.count, leaving.first
            )
        return gone

    def drain(self, out):
        """Send out what is left, as far as there is space; return how many numbers."""
        cdef Numbers leaving = Numbers(out, True)
        cdef int64_t gone
        cdef int64_t* slots = self._first()
        with nogil:
            gone = self.order.drain(slots, leaving.count, leaving.first)
        return gone

    # Post: space for `count` more numbers.
    cdef int _secure(self, int64_t count) except -1:
        cdef int64_t needed = self.order.slots_for(count)
        cdef int64_t present = 0 if self.slots is None else self.slots.count
        if needed <= present:
            return 0
        cdef Numbers larger = Numbers(
            self.allocate(min(max(needed, 2 * present, FIRST), self.order.size())), True
        )
        if larger.count < needed:
            raise ValueError(f"{needed} slots are needed, not {larger.count}")
        if present:
            memcpy(larger.first, self.slots.first, present * sizeof(int64_t))
        self.slots = larger
        return 0

    # The slots, if there are any yet.
    cdef int64_t* _first(self) noexcept:
        return <int64_t*>NULL if self.slots is None else self.slots.first


def read_rows(int fd, int64_t offset, int64_t row_bytes, rows, out):
    """Gather rows of one length from a file, which FormatError says is too short."""
    cdef Numbers numbers = Numbers(rows, False)
    cdef RowFile file = RowFile(fd, offset, row_bytes)
    cdef RowsRead result
    cdef Py_buffer target
    _check_rows(file, numbers)
    PyObject_GetBuffer(out, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        if numbers.count * row_bytes != target.len:
            raise ValueError(
                f"{numbers.count} rows of {row_bytes} bytes do not fill {target.len} "
                "bytes"
            )
        with nogil:
            result = gather(file, numbers.first, numbers.count, <char*>target.buf)
    finally:
        PyBuffer_Release(&target)
    if result.rows < numbers.count:
        _fail(result, file, numbers.first[result.rows])


cdef int _check_rows(RowFile file, Numbers numbers) except -1:
    cdef int64_t i
    if file.offset < 0 or file.row_bytes <= 0:
        raise ValueError(
            f"rows of {file.row_bytes} bytes from byte {file.offset} on cannot be read"
        )
    for i in range(numbers.count):
        if numbers.first[i] < 0:
            raise ValueError(f"there is no row {numbers.first[i]}")
    return 0


cdef int _fail(RowsRead result, RowFile file, int64_t row) except -1:
    if result.error:
        raise OSError(result.error, f"row {row}: {os.strerror(result.error)}")
    size = os.fstat(file.descriptor).st_size
    end = file.offset + (<object>row + 1) * file.row_bytes
    raise FormatError(
        f"the file has {size} bytes, and row {row} ends at byte {end}: it is shorter than "
        "when it was opened"
    )


cdef uint64_t as_word(object number) except? 0:
    if not -(2**63) <= number < 2**64:
        raise OverflowError(f"{number} does not fit 64 bits")
    return number & 0xFFFFFFFFFFFFFFFF


@cython.final
cdef class RowWriter:
    """Elements written into rows of C-contiguous arrays, without Python for what is alike.

    What is not exactly of a column's shape and dtype is handed back, unconverted.
    """

    cdef tuple arrays
    cdef object form

    def __cinit__(self, tuple arrays not None, form):
        for array in arrays:
            check(array)
        check_form(form, len(arrays))
        self.arrays = arrays
        self.form = form

    def fill(
        self,
        Py_ssize_t row,
        Py_ssize_t stop,
        elements not None,
        function,
        bint unpack,
    ):
        """Write elements into rows until one is not alike, or none is left.

        Returns the row behind the last that was written, and a tuple of the element that
        was not, or of none.
        """
        if row < 0 or stop > self.rows():
            raise IndexError(f"no rows {row} to {stop}")
        while row < stop:
            element = next(elements, END)
            if element is END:
                break
            if function is not None:
                element = function(*element) if unpack else function(element)
            if not self.write(row, self.form, element):
                return row, (element,)
            element = None  # its memory may be what the next one takes
            row += 1
        return row, ()

    # How many rows all columns have.
    cdef Py_ssize_t rows(self):
        return min([len(array) for array in self.arrays], default=sys.maxsize)

    cdef bint write(self, Py_ssize_t row, form, element) except -1:
        if type(form) is int:
            return copy(<cnp.ndarray>self.arrays[form], row, element)
        if type(element) is not type(form) or len(element) != len(form):
            return False
        if isinstance(form, tuple):
            return self.write_tuple(row, <tuple>form, <tuple>element)
        for key in form:
            if not self.write(row, form[key], (<dict>element).get(key, END)):
                return False
        return True

    cdef bint write_tuple(self, Py_ssize_t row, tuple form, tuple element) except -1:
        cdef Py_ssize_t i
        for i in range(len(form)):
            if not self.write(row, form[i], element[i]):
                return False
        return True


cdef int check(array) except -1:
    if type(array) is not cnp.ndarray:
        raise TypeError(f"a column is a numpy.ndarray, not {type(array).__name__}")
    if not cnp.PyArray_ISCARRAY(array) or cnp.PyArray_NDIM(array) == 0:
        raise ValueError("a column is C-contiguous and writable, with rows")
    if array.dtype.hasobject:
        raise ValueError("a column holds no objects")
    return 0


cdef int check_form(form, Py_ssize_t columns) except -1:
    if type(form) is int:
        if not 0 <= form < columns:
            raise ValueError(f"there is no column {form} of {columns}")
    elif isinstance(form, tuple) or type(form) is dict:
        for part in form.values() if type(form) is dict else form:
            check_form(part, columns)
    else:
        raise TypeError(f"a form is of int, tuple and dict, not {form!r}")
    return 0


# Copy a leaf into a row; False if it is not exactly of the column's kind.
cdef bint copy(cnp.ndarray column, Py_ssize_t row, leaf) except -1:
    cdef int axes = cnp.PyArray_NDIM(column) - 1
    cdef char* address = cnp.PyArray_BYTES(column) + row * cnp.PyArray_STRIDE(column, 0)
    if not cnp.PyArray_CheckExact(leaf):
        return copy_scalar(column, address, leaf)
    if cnp.PyArray_NDIM(leaf) != axes or not cnp.PyArray_ISCARRAY_RO(leaf):
        return False
    if cnp.PyArray_DESCR(leaf) != cnp.PyArray_DESCR(column):
        return False
    if memcmp(
        cnp.PyArray_DIMS(leaf), cnp.PyArray_DIMS(column) + 1, axes * sizeof(cnp.npy_intp)
    ):
        return False
    copy_bytes(address, cnp.PyArray_BYTES(leaf), cnp.PyArray_NBYTES(leaf))
    return True


cdef bint copy_scalar(cnp.ndarray column, char* address, leaf) except -1:
    if cnp.PyArray_NDIM(column) != 1 or not isinstance(leaf, generic):
        return False
    if cnp.PyArray_DescrFromScalar(leaf) is not column.dtype:
        return False
    cnp.PyArray_ScalarAsCtype(leaf, address)
    return True


cdef void copy_bytes(char* address, char* data, cnp.npy_intp nbytes):
    if nbytes < LARGE:
        memcpy(address, data, nbytes)
        return
    with nogil:
        memcpy(address, data, nbytes)
