# distutils: language = c++
"""Row numbers: the order in which a shuffle sends them, and the rows of a file.

Owns the conversion between arrays of numbers and the pure functions of
`shuffle_order.hpp` and `read_rows.hpp`, which link nothing else of the core. Refuses
policy: what is shuffled or read is decided in the data room.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

import os

from memcfg.errors import FormatError

__all__ = ["RandomWords", "ShuffleOrder", "read_rows"]

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
    """Random words of 32 bits, those of Philox4x32-10 in their order.

    Parameters
    ----------
    key : int
        64 bits; a negative number is its two's complement.
    stream : int
        The upper 64 bits of the counter, likewise.

    Raises
    ------
    OverflowError
        If a number does not fit 64 bits.
    """

    cdef Words* words

    def __cinit__(self, key, stream):
        self.words = new Words(as_word(key), as_word(stream))

    def __dealloc__(self):
        del self.words

    def next(self):
        """Return the next word.

        Returns
        -------
        int
            In [0, 2**32).
        """
        return self.words.next()

    def pair(self):
        """Return the next two words; no other thread comes in between.

        Returns
        -------
        tuple of int
            Each in [0, 2**32).
        """
        cdef uint32_t first = self.words.next()
        return first, self.words.next()


@cython.final
cdef class ShuffleOrder:
    """The order in which a buffer of some size shuffles: that of tf.data's.

    Numbers come in; as soon as the buffer is full, each that comes sends one of those
    in it out. At the end the buffer is drained. One thread uses it at a time.

    Parameters
    ----------
    size : int
        How many numbers the buffer holds, at least 1.
    seed, seed2 : int
        Key and stream of `RandomWords`.
    allocate : callable
        Makes the buffer: called with a count, it returns a writable array of int64.
        Called again when more are needed, up to `size`.

    Raises
    ------
    OverflowError
        If a number does not fit 64 bits.
    ValueError
        If `size` is not positive.
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
        """Let a number in.

        Parameters
        ----------
        number : int
            Not negative.

        Returns
        -------
        int
            The one that goes out; -1 as long as the buffer is not full.

        Raises
        ------
        MemoryError
            If there is no room for the buffer; nothing has changed.
        """
        cdef int64_t leaving = -1
        self._secure(1)
        self.order.exchange(self._first(), &number, 1, &leaving)
        return leaving

    def exchange_rows(self, rows, out):
        """Let numbers in, one after the other.

        Parameters
        ----------
        rows : buffer of int64
            The numbers, shape ``(n,)``.
        out : writable buffer of int64
            Gets those that go out; may be `rows`. Shape ``(n,)`` or longer.

        Returns
        -------
        int
            How many went out.

        Raises
        ------
        MemoryError
            If there is no room for the buffer; nothing has changed.
        ValueError
            If an array is not one of int64, or `out` is too short.
        """
        cdef Numbers arriving = Numbers(rows, False)
        cdef Numbers leaving = Numbers(out, True)
        cdef int64_t gone
        if leaving.count < arriving.count:
            raise ValueError(
                f"{arriving.count} numbers may go out, and there is room for "
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
        """Send out what is left, as far as there is room for it.

        Parameters
        ----------
        out : writable buffer of int64
            Gets the numbers.

        Returns
        -------
        int
            How many went out.

        Raises
        ------
        ValueError
            If `out` is not an array of int64.
        """
        cdef Numbers leaving = Numbers(out, True)
        cdef int64_t gone
        cdef int64_t* slots = self._first()
        with nogil:
            gone = self.order.drain(slots, leaving.count, leaving.first)
        return gone

    # Post: room for `count` more numbers.
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
    """Gather rows of one length from a file, without Python's lock.

    Rows that follow one another in `rows` and in the file are one read.

    Parameters
    ----------
    fd : int
        The file's descriptor; its position stays as it is.
    offset : int
        Where row 0 begins, in bytes.
    row_bytes : int
        The length of a row, at least 1.
    rows : buffer of int64
        Their numbers in any order, shape ``(n,)``.
    out : writable buffer
        Gets the rows one behind the other: ``n * row_bytes`` bytes, contiguous.

    Raises
    ------
    FormatError
        If the file ends before a row does.
    OSError
        If the system cannot read.
    ValueError
        If a number is negative, or the size of `out` is another.
    """
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
