# What the memory of NumPy's arrays asks of a resource. A part of engine.pyx.
#
# Unlike `Resource.allocate` these keep the GIL, as NumPy's own allocator
# does: a thread that let it go for a few nanoseconds would queue for it again. Nobody
# waits for the interpreter with a lock of the core's, so nobody waits for ever.

cdef extern from "Python.h":
    bint PyUnicode_IS_ASCII(str text)


# The name an array is recorded under: that of the context, else its own.
cdef inline str array_tag(str tag):
    context = <str>get_value(TAG)
    return context if PyUnicode_GET_LENGTH(context) > 0 else tag


# The text stays in place if it is ASCII, else `spare` holds it as UTF-8.
cdef inline int name_request(
    native.Request* request, str text, string* spare
) except -1:
    if PyUnicode_IS_ASCII(text):
        request.tag = string_view(
            <const char*>PyUnicode_DATA(text), <size_t>PyUnicode_GET_LENGTH(text)
        )
    else:
        spare[0] = as_string(text)
        request.tag = string_view(spare.data(), spare.size())
    return 0


cdef inline int describe_array(
    native.Request* request, size_t size, bint zeroed, str tag, string* spare
) except -1:
    request.size = size if size > 0 else 1  # an array of no bytes has an address too
    request.zeroed = zeroed
    return name_request(request, array_tag(tag), spare)


# A block for an array. Raises what `Resource.allocate` does, with nothing taken.
cdef void* take_array(
    Resource resource, size_t size, bint zeroed, str tag
) except NULL:
    cdef native.Request request
    cdef string spare
    describe_array(&request, size, zeroed, tag, &spare)
    return resource.core.get().allocate(request)


# The same after a failure, where the pool was told to wait: other threads run.
cdef void* await_array(
    Resource resource, size_t size, bint zeroed, str tag
) except NULL:
    cdef native.Request request
    cdef string spare
    describe_array(&request, size, zeroed, tag, &spare)
    return resource.take(request)


cdef double timeout_of(Resource resource) noexcept:
    return (<Pool>resource).timeout if isinstance(resource, Pool) else 0


# The block of an array with another size: in place if it can be, else elsewhere, with
# the bytes that both sizes have. On an error the block is as it was.
cdef void* resize_array(
    Resource resource, void* data, size_t size, str tag
) except NULL:
    timeout = timeout_of(resource)
    deadline = monotonic() + timeout if timeout > 0 else 0
    while True:
        try:
            return resize_once(resource, data, size, tag)
        except ResourceExhaustedError as error:
            if make_room(resource, error):
                continue
            if monotonic() >= deadline:
                raise
        sleep(0.001)


cdef void* resize_once(
    Resource resource, void* data, size_t size, str tag
) except NULL:
    cdef native.Resource* core = resource.core.get()
    cdef size_t held = core.size_of(data)
    cdef void* moved
    if core.resize(data, held, size if size > 0 else 1):
        return data
    try:
        moved = take_array(resource, size, False, tag)
    except ResourceExhaustedError:
        if size > held:
            raise
        return data  # a smaller array can stay where it is
    memcpy(moved, data, min(held, size))
    core.deallocate(data, held)
    return moved
