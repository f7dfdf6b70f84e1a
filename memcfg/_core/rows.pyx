# distutils: language = c++
"""Rows: the order in which a shuffle sends them, those of a file, and of batches.

The functions of `shuffle_order.hpp`, `read_rows.hpp`, `crc32c.hpp` and
`range_entries.hpp` link nothing else of the core.
"""

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

import os
import sys

from numpy import generic

from memcfg.errors import FormatError

cnp.import_array()

__all__ = [
    "RandomWords",
    "RowWriter",
    "ShuffleOrder",
    "crc32c",
    "decode_entries",
    "read_rows",
]

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


cdef extern from "memcfg/range_entries.hpp" namespace "memcfg" nogil:
    cdef struct RangeEntries:
        const unsigned char* code
        size_t bytes
        size_t apart
        size_t count
        double* of_gaps
        size_t gaps
        double* of_numbers
        const uint32_t* codebook
        size_t codewords

    bint decode_all "memcfg::decode_entries"(
        const RangeEntries& entries, uint32_t* out, size_t words
    ) except +


cdef extern from "memcfg/crc32c.hpp" namespace "memcfg" nogil:
    uint32_t checksum "memcfg::crc32c"(
        const unsigned char* data, size_t size, uint32_t before
    )


# The first of row numbers; ValueError: they are not plain int64.
cdef int64_t* first_of(cnp.ndarray rows, bint writable) except? NULL:
    plain = cnp.PyArray_ISCARRAY(rows) if writable else cnp.PyArray_ISCARRAY_RO(rows)
    if not (plain and cnp.PyArray_EquivTypenums(cnp.PyArray_TYPE(rows), cnp.NPY_INT64)):
        raise ValueError("row numbers are int64")
    return <int64_t*>cnp.PyArray_DATA(rows)


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
    cdef cnp.ndarray slots
    cdef int64_t* first  # of the slots

    def __cinit__(self, size, seed, seed2, allocate):
        cdef int64_t slots = size
        if slots <= 0:
            raise ValueError(f"a buffer has at least one slot, not {size}")
        self.order = new Order(slots, as_word(seed), as_word(seed2))
        self.allocate = allocate
        self.slots = allocate(0)

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
        self.order.exchange(self.first, &number, 1, &leaving)
        return leaving

    def exchange_rows(self, cnp.ndarray rows not None, cnp.ndarray out not None):
        """Let numbers in, one after the other; return how many went out, to `out`."""
        cdef const int64_t* arriving = first_of(rows, False)
        cdef int64_t* leaving = first_of(out, True)
        cdef int64_t count = cnp.PyArray_SIZE(rows)
        cdef int64_t gone
        if cnp.PyArray_SIZE(out) < count:
            raise ValueError(
                f"{count} numbers may go out, and there is space for {out.size}"
            )
        self._secure(count)
        with nogil:
            gone = self.order.exchange(self.first, arriving, count, leaving)
        return gone

    def drain(self, cnp.ndarray out not None):
        """Send out what is left, as far as there is space; return how many numbers."""
        cdef int64_t* leaving = first_of(out, True)
        cdef int64_t count = cnp.PyArray_SIZE(out)
        cdef int64_t gone
        with nogil:
            gone = self.order.drain(self.first, count, leaving)
        return gone

    # Post: space for `count` more numbers.
    cdef int _secure(self, int64_t count) except -1:
        cdef int64_t needed = self.order.slots_for(count)
        cdef int64_t present = cnp.PyArray_SIZE(self.slots)
        if needed <= present:
            return 0
        cdef cnp.ndarray larger = self.allocate(
            min(max(needed, 2 * present, FIRST), self.order.size())
        )
        cdef int64_t* first = first_of(larger, True)
        if cnp.PyArray_SIZE(larger) < needed:
            raise ValueError(f"{needed} slots are needed, not {larger.size}")
        if present:
            memcpy(first, self.first, present * sizeof(int64_t))
        self.slots, self.first = larger, first
        return 0


def read_rows(
    int fd,
    int64_t offset,
    int64_t row_bytes,
    cnp.ndarray rows not None,
    cnp.ndarray out not None,
):
    """Gather rows of one length from a file, which FormatError says is too short."""
    cdef const int64_t* numbers = first_of(rows, False)
    cdef int64_t count = cnp.PyArray_SIZE(rows)
    cdef RowFile file = RowFile(fd, offset, row_bytes)
    cdef char* target = cnp.PyArray_BYTES(out)
    cdef RowsRead result
    cdef int64_t i
    if offset < 0 or row_bytes <= 0:
        raise ValueError(
            f"rows of {row_bytes} bytes from byte {offset} on cannot be read"
        )
    for i in range(count):
        if numbers[i] < 0:
            raise ValueError(f"there is no row {numbers[i]}")
    if not cnp.PyArray_ISCARRAY(out) or count * row_bytes != cnp.PyArray_NBYTES(out):
        raise ValueError(
            f"{count} rows of {row_bytes} bytes do not fill {out.nbytes} bytes"
        )
    with nogil:
        result = gather(file, numbers, count, target)
    if result.rows < count:
        _fail(result, file, numbers[result.rows])


cdef int _fail(RowsRead result, RowFile file, int64_t row) except -1:
    if result.error:
        raise OSError(result.error, f"row {row}: {os.strerror(result.error)}")
    size = os.fstat(file.descriptor).st_size
    end = file.offset + (<object>row + 1) * file.row_bytes
    raise FormatError(
        f"the file has {size} bytes, and row {row} ends at byte {end}: it is shorter than "
        "when it was opened"
    )


def crc32c(const unsigned char[::1] data not None, uint32_t before=0):
    """Return the CRC-32C of bytes, or that of `before` extended to them."""
    cdef size_t size = data.shape[0]
    cdef const unsigned char* first = &data[0] if size else NULL
    cdef uint32_t result
    if size < LARGE:
        return checksum(first, size, before)
    with nogil:
        result = checksum(first, size, before)
    return result


def decode_entries(
    const unsigned char[::1] code not None,
    size_t apart,
    size_t count,
    double[::1] of_gaps not None,
    double[::1] of_numbers not None,
    const uint32_t[::1] codebook not None,
    uint32_t[::1] out not None,
):
    """Write the words of a range code into `out`; return whether it is one.

    It has `count` entries; the first `apart` bytes are a code of the gaps, if not 0.
    `of_gaps` and `of_numbers` are the first counts, and then the last ones. The code
    must not change meanwhile.
    """
    cdef size_t size = code.shape[0], words = out.shape[0], codewords = codebook.shape[0]
    cdef RangeEntries of
    cdef uint32_t* to = NULL
    cdef bint known
    if (
        size % 4
        or apart % 4
        or apart > size
        or of_gaps.shape[0] == 0
        or of_numbers.shape[0] != codebook.shape[0]
        or (count > 0 and (codewords == 0 or words == 0))
    ):
        raise ValueError("a range code has words of 4 bytes, and a count for each symbol")
    of.code = NULL
    if size:
        of.code = &code[0]
    of.bytes, of.apart, of.count = size, apart, count
    of.of_gaps, of.gaps = &of_gaps[0], of_gaps.shape[0]
    of.of_numbers = NULL
    of.codebook = NULL
    of.codewords = codewords
    if codewords:
        of.of_numbers, of.codebook = &of_numbers[0], &codebook[0]
    if words:
        to = &out[0]
    with nogil:
        known = decode_all(of, to, words)
    return known


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
