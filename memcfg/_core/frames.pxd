# The calls that a Python program is in: as numbers while it runs, as words afterwards.

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.object cimport PyObject
from cpython.pystate cimport PyFrameObject, PyThreadState, PyThreadState_Get
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stddef cimport size_t
from libcpp.vector cimport vector

from memcfg._core cimport native

cdef extern from "Python.h":
    ctypedef struct PyCodeObject:
        pass
    PyFrameObject* PyThreadState_GetFrame(PyThreadState* state)  # counted, or null
    PyFrameObject* PyFrame_GetBack(PyFrameObject* frame)  # counted, or null
    PyCodeObject* PyFrame_GetCode(PyFrameObject* frame)  # counted
    int PyFrame_GetLasti(PyFrameObject* frame)
    int PyCode_Addr2Line(PyCodeObject* code, int offset)


# The calls that the running thread is in, the innermost first, at most so many of them.
# Their code is alive as long as they run. An error that is on its way stays as it is; a
# frame for which there is no memory ends the list.
cdef inline size_t read_frames(native.Frame* frames, size_t max_count) noexcept:
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* trace
    cdef PyFrameObject* outer
    cdef PyCodeObject* code
    cdef size_t count = 0
    PyErr_Fetch(&kind, &error, &trace)
    cdef PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get())
    while frame != NULL and count < max_count:
        code = PyFrame_GetCode(frame)
        frames[count].code = code
        frames[count].offset = PyFrame_GetLasti(frame)
        count += 1
        outer = PyFrame_GetBack(frame)
        Py_XDECREF(<PyObject*>code)  # the frame has it
        Py_XDECREF(<PyObject*>frame)
        frame = outer
    Py_XDECREF(<PyObject*>frame)
    PyErr_Restore(kind, error, trace)
    return count


cdef inline void keep_code(const void* code) noexcept:
    Py_XINCREF(<PyObject*>code)


cdef inline void let_code_go(const void* code) noexcept:
    Py_XDECREF(<PyObject*>code)


# File, line and function of each call. Pre: the code is kept.
cdef inline tuple as_words(const vector[native.Frame]& stack):
    cdef const native.Frame* frame
    cdef size_t i
    rows = []
    for i in range(stack.size()):
        frame = &stack[i]
        code = <object><PyObject*>frame.code
        line = PyCode_Addr2Line(<PyCodeObject*>frame.code, frame.offset)
        if line < 1:  # an instruction that no line of the source became
            line = code.co_firstlineno
        rows.append((code.co_filename, line, code.co_qualname))
    return tuple(rows)
