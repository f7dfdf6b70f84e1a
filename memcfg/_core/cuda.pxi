# An NVIDIA GPU: its driver, context, memory and streams of work. A part of engine.pyx.


class CudaInfo(NamedTuple):
    """What the driver says of a GPU."""

    name: str
    memory_bytes: int
    capability: int  # 90 is compute capability 9.0
    virtual_memory: bool  # whether it announces that pools can map page by page


@cython.final
cdef class CudaDriver:
    """The CUDA driver at a path; MissingDependencyError without it or without a GPU."""

    cdef shared_ptr[native.CudaDriver] core

    def __cinit__(self, str path not None):
        cdef string name = as_string(path)
        with nogil:
            self.core.reset(new native.CudaDriver(name))

    @property
    def version(self):
        """Which CUDA it is of: 13000 is 13.0."""
        return self.core.get().version()

    @property
    def device_count(self):
        """How many GPUs there are."""
        return self.core.get().device_count()

    def info(self, int ordinal):
        """Describe a GPU by its number."""
        cdef native.CudaDeviceInfo found = self.core.get().info(ordinal)
        return CudaInfo(
            as_text(found.name), found.memory, found.capability, found.virtual_memory
        )


@cython.final
cdef class CudaContext:
    """The primary context of a GPU; one object a GPU, for the streams made of it."""

    cdef shared_ptr[native.CudaContext] core
    cdef readonly CudaDriver driver
    cdef readonly int ordinal
    cdef bint told  # that it refuses pages

    def __cinit__(self, CudaDriver driver not None, int ordinal):
        self.driver = driver
        self.ordinal = ordinal
        with nogil:
            self.core.reset(new native.CudaContext(driver.core, ordinal))

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    @property
    def priorities(self):
        """Priorities of streams, the least first; a smaller number is a higher one."""
        cdef native.Priorities found = self.core.get().priorities()
        return range(found.least, found.greatest - 1, -1)

    def memory_info(self):
        """Return the free bytes of the GPU, and all: (free, total)."""
        cdef native.CudaMemory found
        with nogil:
            found = self.core.get().memory()
        return found.free, found.total

    def synchronize(self):
        """Wait for all work; KernelError where some has failed.

        That of other libraries, too, whose captures this breaks.
        """
        with nogil:
            self.core.get().synchronize()

    def wait(self):
        """Wait for streams made here and the default one; captures go on."""
        cdef unique_ptr[native.CurrentContext] current
        current.reset(new native.CurrentContext(self.core.get()[0]))
        current.get().require()
        with nogil:
            self.core.get().wait()

    def call(self, function):
        """Call a function while this is the thread's context, for other libraries."""
        cdef unique_ptr[native.CurrentContext] current
        current.reset(new native.CurrentContext(self.core.get()[0]))
        current.get().require()
        return function()

    def resource(self, *, str name not None="", bint pages=True):
        """Make the resource of the GPU's memory, for a pool on top.

        It has pages where the GPU has virtual memory management, and without `pages`
        blocks. RuntimeWarning, once, where the driver announces pages and refuses them.
        """
        return CudaResource(self, False, name=name, pages=pages)

    def pinned_resource(self, *, str name not None=""):
        """Make the resource of page-locked host memory, for a pool on top."""
        return CudaResource(self, True, name=name)


@cython.final
@cython.no_gc_clear
cdef class CudaResource(Resource):
    """Memory of a GPU, or page-locked memory of the host: `CudaContext.resource`."""

    cdef readonly bint pinned

    def __cinit__(
        self,
        CudaContext context not None,
        bint pinned,
        *,
        str name not None="",
        bint pages=True,
    ):
        cdef string text = as_string(name)
        cdef string refusal
        self.pinned = pinned
        with nogil:
            if pinned:
                self.core = native.make_pinned_resource(text, context.core)
            else:
                self.core = native.make_cuda_resource(
                    text, context.core, pages, &refusal
                )
        if refusal.size() and not context.told:
            context.told = True
            warn(
                "the GPU's driver announces virtual memory and refuses it "
                f"({as_text(refusal)}): memory comes in blocks by cuMemAlloc, where a "
                "model that grows is copied to the host and back. A newer driver, or "
                "fewer restrictions of a container or virtual GPU, may mend it",
                RuntimeWarning,
                stacklevel=2,
            )

    @property
    def page_bytes(self):
        """The bytes of a page; 1 where only whole blocks are to be had."""
        cdef const native.System* pages = self.core.get().pages()
        return 1 if pages == NULL else pages.page_size()


# What is captured at the same time, and what it needs as long as it can be launched.
cdef class Capture:
    cdef list kept
    cdef bint on


@cython.final
cdef class CudaEvent:
    """A point in the work of a stream; as new, it has been reached."""

    cdef unique_ptr[native.CudaEvent] core
    cdef Capture capture  # that it was recorded in; None is none
    cdef readonly bint timing

    def __cinit__(self, CudaContext context not None, bint timing=False):
        self.timing = timing
        with nogil:
            self.core.reset(new native.CudaEvent(context.core, timing))

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    def synchronize(self):
        """Wait until it is reached."""
        with nogil:
            self.core.get().synchronize()

    def done(self):
        """Tell whether it has been reached."""
        cdef bint done
        with nogil:
            done = self.core.get().done()
        return done

    def seconds_since(self, CudaEvent earlier not None):
        """Return the seconds between two events that were reached, made for timing."""
        return self.core.get().seconds_since(earlier.core.get()[0])


@cython.final
cdef class CudaModule:
    """Kernels in machine code (a cubin or fat binary) or PTX, loaded."""

    cdef shared_ptr[native.CudaModule] core

    def __cinit__(self, CudaContext context not None, bytes image not None):
        cdef string code = image
        with nogil:
            self.core.reset(new native.CudaModule(context.core, code))

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    def function(self, str name not None):
        """Find a kernel by its name; KernelError if there is none."""
        return CudaFunction(self, name)


@cython.final
cdef class CudaFunction:
    """A kernel of a module, which it keeps: `CudaModule.function`."""

    cdef unique_ptr[native.CudaFunction] core
    cdef readonly str name

    def __cinit__(self, CudaModule module not None, str name not None):
        cdef string text = as_string(name)
        self.name = name
        with nogil:
            self.core.reset(new native.CudaFunction(module.core, text))

    def __dealloc__(self):
        with nogil:
            self.core.reset()


@cython.final
cdef class CudaGraph:
    """Work that a stream has captured; it keeps the kernels: `CudaStream.end_capture`."""

    cdef unique_ptr[native.CudaGraph] core
    cdef list kept

    def __init__(self, *args, **kwargs):
        raise TypeError("a CudaGraph is made by CudaStream.end_capture")

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    @property
    def node_count(self):
        """How many copies, fills and kernels it has."""
        return self.core.get().nodes()


cdef native.Shape as_shape(object given, str what) except *:
    cdef native.Shape shape
    cdef size_t length
    numbers = tuple(given)
    if len(numbers) != 3:
        raise ValueError(f"{what} is three numbers, not {given!r}")
    for i in range(3):
        length = as_size(numbers[i], what)
        if not 0 < length < 2**32:
            raise ValueError(f"{what} is three positive numbers, not {given!r}")
        shape[i] = <unsigned>length
    return shape


@cython.final
cdef class CudaStream:
    """A queue of work of a GPU, in order; any thread may use it.

    Whoever queues work keeps the memory that it uses until it is done.
    """

    cdef object __weakref__
    cdef unique_ptr[native.CudaStream] core
    cdef readonly CudaContext context
    cdef readonly int priority
    cdef Capture capture  # that records what is queued; None, or over: it is done

    def __cinit__(self, CudaContext context not None, int priority=0):
        self.context = context
        self.priority = priority
        with nogil:
            self.core.reset(new native.CudaStream(context.core, priority))

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    cdef keep(self, thing):
        if self.capture is not None and self.capture.on:
            self.capture.kept.append(thing)

    @property
    def handle(self):
        """The driver's handle, for libraries that take one."""
        return <uintptr_t>self.core.get().handle()

    @property
    def capturing(self):
        """Whether work is being recorded, here or on a stream that this one follows."""
        return self.capture is not None and self.capture.on

    def synchronize(self):
        """Wait for all that is queued; KernelError where some has failed."""
        with nogil:
            self.core.get().synchronize()

    def done(self):
        """Tell whether all that is queued has been done."""
        cdef bint done
        with nogil:
            done = self.core.get().done()
        return done

    def wait(self, CudaEvent event not None):
        """Let what is queued from here on wait for an event; the host goes on."""
        self.core.get().wait(event.core.get()[0])
        if event.capture is not None and event.capture.on:
            self.capture = event.capture

    def record(self, CudaEvent event not None):
        """Let an event be reached when what is queued so far is done."""
        self.core.get().record(event.core.get()[0])
        event.capture = self.capture if self.capturing else None

    def copy(self, target, source, nbytes):
        """Queue a copy between addresses of the GPU and of page-locked memory."""
        cdef size_t to = as_size(target, "an address")
        cdef size_t origin = as_size(source, "an address")
        cdef size_t size = as_size(nbytes, "a size")
        with nogil:  # pageable memory is copied at once
            self.core.get().copy(to, origin, size)

    def fill(self, target, byte, nbytes):
        """Queue the writing of one byte's value to a range of the GPU's memory."""
        cdef size_t to = as_size(target, "an address")
        cdef size_t value = as_size(byte, "a byte")
        cdef size_t size = as_size(nbytes, "a size")
        if value > 255:
            raise ValueError(f"a byte is at most 255, not {byte}")
        with nogil:
            self.core.get().fill(to, <unsigned char>value, size)

    def launch(
        self,
        CudaFunction function not None,
        grid,
        block,
        shared_bytes,
        bytes arguments not None,
        offsets,
    ):
        """Queue a kernel; `arguments` has its parameters, each at one of the offsets."""
        cdef native.Shape blocks = as_shape(grid, "a grid")
        cdef native.Shape threads = as_shape(block, "a block")
        cdef size_t shared = as_size(shared_bytes, "a size")
        cdef char* base = PyBytes_AS_STRING(arguments)
        cdef size_t offset
        cdef vector[void*] places
        for each in offsets:
            offset = as_size(each, "an offset")
            if offset >= <size_t>len(arguments):
                raise ValueError(f"there is no argument at offset {offset}")
            places.push_back(base + offset)
        if shared >= 2**31:
            raise ValueError(f"a block cannot share {shared} bytes")
        self.keep(function)
        with nogil:
            self.core.get().launch(
                function.core.get()[0], blocks, threads, <unsigned>shared, places.data()
            )

    def launch_graph(self, CudaGraph graph not None):
        """Queue all work of a graph."""
        self.keep(graph)
        with nogil:
            self.core.get().launch(graph.core.get()[0])

    def begin_capture(self):
        """Record what is queued from here on, instead of doing it.

        So it is on streams that wait for an event of this one; this one waits for them
        again before `end_capture`.
        """
        cdef Capture capture = Capture()
        capture.kept = []
        capture.on = True
        with nogil:
            self.core.get().begin_capture()
        self.capture = capture

    def end_capture(self):
        """End the recording and return it, ready to be launched.

        KernelError where a call in between was one that cannot be recorded; the
        recording has ended then too.
        """
        cdef CudaGraph graph = CudaGraph.__new__(CudaGraph)
        cdef Capture capture = self.capture
        if capture is not None:
            capture.on = False
            self.capture = None
            graph.kept, capture.kept = capture.kept, None
        with nogil:
            graph.core = self.core.get().end_capture()
        return graph


def replay(CudaStream stream not None, graphs, words, guard, Counter counter=None):
    """Launch graphs and wait; gives the one whose guard stopped them, else -1.

    Of each that ends with a guard, `words` has the address of the float32 that it has
    copied to page-locked memory; 0 where there is none. The counter is advanced at the
    end. No signal comes between.
    """
    cdef vector[const native.CudaGraph*] parts
    cdef vector[const float*] losses
    cdef native.bool checks = guard
    cdef int64_t stopped = -1
    cdef size_t index
    for graph in graphs:
        parts.push_back((<CudaGraph?>graph).core.get())
    for word in words:
        losses.push_back(<const float*><uintptr_t>as_size(word, "an address"))
    if parts.size() != losses.size():
        raise ValueError("there is a word for each graph")
    acquire(_running)
    try:
        with nogil:
            for index in range(parts.size()):
                stream.core.get().launch(parts[index][0])
                if checks or index + 1 == parts.size():
                    stream.core.get().synchronize()
                if checks and losses[index] != NULL and not isfinite(losses[index][0]):
                    stopped = <int64_t>index
                    break
    finally:
        _running.leave()
    if stopped == -1 and counter is not None:
        counter.value += 1
    return stopped


@cython.final
cdef class CudaAllocator:
    """Blocks of a GPU's pool for libraries that free them while work is queued.

    A block that is freed is used again at once on the stream that it is freed on, and
    goes back to the pool when what was queued there is done.
    """

    cdef shared_ptr[native.CudaAllocator] core
    cdef readonly Pool pool
    cdef readonly CudaContext context

    def __cinit__(
        self, Pool pool not None, CudaContext context not None, *, str tag not None=""
    ):
        cdef string name = as_string(tag)
        self.pool = pool
        self.context = context
        self.core.reset(
            new native.CudaAllocator(
                static_pointer_cast[native.Pool, native.Resource](pool.core),
                context.core,
                name,
            )
        )

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    def allocate(self, nbytes, stream=0):
        """Take a block for work of a stream, by its handle; 0 is the default stream."""
        cdef size_t size = as_size(nbytes, "a size")
        cdef size_t handle = as_size(stream, "a stream")
        cdef void* address
        with nogil:
            address = self.core.get().allocate(size, <native.Stream*>handle)
        return <uintptr_t>address

    def free(self, address, stream=0):
        """Free a block behind what is queued on a stream."""
        cdef size_t place = as_size(address, "an address")
        cdef size_t handle = as_size(stream, "a stream")
        cdef bint freed
        with nogil:
            freed = self.core.get().free(<void*>place, <native.Stream*>handle)
        if not freed:
            raise InvalidFreeError(f"{place:#x} is no block of {self.pool.name}")

    def settle(self):
        """Wait for the work of freed blocks, and give them back to the pool."""
        with nogil:
            self.core.get().settle()

    @property
    def waiting_bytes(self):
        """Bytes of freed blocks that are not the pool's again."""
        return self.core.get().waiting()

    def install(self):
        """Let the functions of C (`memcfg_cuda_allocate`, ...) use it for its GPU.

        Returns
        -------
        int
            The address of `memcfg_cuda_record_stream`.
        """
        native.install_cuda_allocator(self.context.ordinal, self.core)
        return <uintptr_t>&native.memcfg_cuda_record_stream
