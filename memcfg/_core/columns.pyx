"""Elements written into rows of arrays, without Python for what is alike.

What is not exactly of a column's shape and dtype is handed back, unconverted.
"""

cimport cython
cimport numpy as cnp
from libc.string cimport memcmp, memcpy

import sys

from numpy import generic

cnp.import_array()

__all__ = ["RowWriter"]

cdef enum:
    LARGE = 65536  # bytes that are worth letting other threads run meanwhile

cdef object END = object()


@cython.final
cdef class RowWriter:
    """Rows of columns: C-contiguous arrays, and a nest of their numbers."""

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
