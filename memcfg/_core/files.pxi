# Resources in files. A part of engine.pyx.


# The path as it was given, and the file that it leads to, both in the system's bytes.
cdef tuple file_names(object path):
    given = os.fspath(path)
    name = os.fsencode(given)
    if not name:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    if b"\0" in name:
        raise OSError(errno.EINVAL, "a path has no NUL character in it", given)
    if name.endswith(b"/"):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), given)
    return name, os.path.realpath(name)


cdef size_t as_length(object nbytes) except 0:
    length = as_bytes(nbytes, "a length")
    if length <= 0:
        raise ValueError(f"a file has at least one byte, not {length}")
    return as_size(length, "a length")


@cython.final
@cython.no_gc_clear  # its memory is given back by the resource, when it goes
cdef class MappedFile(Resource):
    """Memory in a file.

    `memcfg.memory.mmap_file` states the arguments, the errors and the rules. A context
    manager that closes it; when the block is left by an exception and blocks of memory
    are still out, the file closes itself when it is garbage-collected.

    Attributes
    ----------
    path : str
        The file, as an absolute path.
    """

    cdef native.FileResource* file
    cdef readonly str path

    # For `mapped_array`: the length is a multiple of `_unit` bytes; where it is `_shared`,
    # what a forked child writes reaches the file, and a child can take no block.
    def __cinit__(
        self,
        path,
        nbytes=None,
        *,
        overwrite=False,
        delete=False,
        _unit=1,
        _shared=False,
    ):
        cdef native.FileOptions options
        options.path, options.resolved_path = file_names(path)
        if nbytes is not None:
            options.size = make_optional[size_t](as_length(nbytes))
        options.unit = as_length(_unit)
        options.overwrite = as_flag(overwrite, "overwrite")
        options.remove = as_flag(delete, "delete")
        options.shared = as_flag(_shared, "_shared")
        self.path = os.path.abspath(os.fsdecode(path))
        with nogil:
            self.file = new native.FileResource(options)
            self.core.reset(<native.Resource*>self.file)

    def __dealloc__(self):
        if self.file == NULL:
            return
        with nogil:
            self.file.abandon()

    @property
    def nbytes(self):
        """The length of the file in bytes."""
        return self.file.size()

    @property
    def closed(self):
        """Whether it has been closed."""
        return self.file.closed()

    def flush(self):
        """Bring everything that was written so far onto the disk.

        Only then does it survive the end of the machine; what is in a file survives
        the end of the process in any case.

        Raises
        ------
        OSError
            If the system cannot write it all.
        RuntimeError
            In a forked child, where the memory of a file of `mmap_file` is no longer
            the file's. That of a `mapped_array` is: a child flushes it too.
        ValueError
            If the file is closed.
        """
        with nogil:
            self.file.flush()

    def evict(self, offset=0, nbytes=None):
        """Take the file's pages out of the memory that this process has resident.

        The data stays in the file, flushed or not, and the next touch brings it back;
        addresses, blocks and arrays stay as they are. The system may keep the pages in
        its cache, from which it takes them back when memory is short.

        Parameters
        ----------
        offset : int, default 0
            The first byte of the file to take out; whole pages are.
        nbytes : int or None, default None
            How many bytes; None is all to the end.

        Returns
        -------
        int
            The bytes that were resident; 0 where the system does not tell.

        Raises
        ------
        OSError
            If the system refuses, because the program has locked the pages in memory.
        RuntimeError
            In a forked child, where the memory of a file of `mmap_file` is no longer
            the file's. That of a `mapped_array` is: a child evicts it too.
        TypeError
            If an argument is no int.
        ValueError
            If the file is closed or has no such bytes.
        """
        cdef size_t start = as_size(offset, "an offset")
        cdef size_t size = self.file.size()
        if nbytes is not None:
            size = as_size(nbytes, "a size")
        elif start <= size:
            size -= start
        with nogil:
            size = self.file.drop(start, size)
        return size

    def close(self):
        """Flush the file, or remove it if that was asked for, and let it go.

        A closed file hands out no more blocks; closing it again does nothing. In a
        forked child only the child's access ends.

        Raises
        ------
        BufferError
            If blocks are out, those of arrays and exported buffers among them.
        OSError
            If it cannot be flushed or removed; it is not closed then.
        """
        with nogil:
            self.file.close()

    def __enter__(self):
        if self.file.closed():
            raise ValueError("the file is closed")
        return self

    # Where an exception is on its way, that is what the user must hear of; its frames
    # may well hold blocks.
    def __exit__(self, *exc_info):
        try:
            self.close()
        except BufferError:
            if exc_info[0] is None:
                raise
