# Which allocator is in place, and in whose place. A part of numpy_memory.pyx.
#
# Which workspace is current is what NumPy's allocator of the running context says, and
# nothing else. Each scope that is entered has an `ArrayMemory` in the chain from there:
# its `before` is the capsule that it took the place of. Such a capsule is pushed once,
# on top of older ones, so no chain comes back to itself. A context that was copied
# keeps capsules of scopes that have been left; they are passed over.


# An allocator that is another one's, lent: arrays are as if made by that one. It is
# there to be seen in the chain.
cdef object lend(object capsule, object scope):
    handler = <cnp.PyDataMem_Handler*>PyCapsule_GetPointer(capsule, CAPSULE)
    lent = ArrayMemory()
    lent.handler = handler[0]
    lent.under = capsule
    lent.scope = scope
    lent.passing = True
    return capsule_of(lent)


# The capsule in force in the running context.
cdef object top():
    return in_force(cnp.PyDataMem_GetHandler())


# Puts a capsule in place, on top of the one in force. Pre: it never was.
cdef int push(object capsule) except -1:
    memory = memory_of(capsule)
    memory.before = top()
    cnp.PyDataMem_SetHandler(capsule)
    memory.entered = True
    return 0


# Leaves what a capsule stands for, wherever in the chains of contexts it is.
cdef int pull(object capsule) except -1:
    memory = memory_of(capsule)
    memory.entered = False
    memory.before = in_force(memory.before)
    above = cnp.PyDataMem_GetHandler()
    if above is capsule:  # nobody is on top of it
        cnp.PyDataMem_SetHandler(memory.before)
        return 0
    current = in_force(above)
    if current is not above:
        cnp.PyDataMem_SetHandler(current)
    shorten(current)
    return 0


# No capsule of a chain keeps one that has been left: chains would grow for ever.
cdef int shorten(object capsule) except -1:
    memory = memory_of(capsule)
    while memory is not None and memory.before is not None:
        memory.before = in_force(memory.before)
        memory = memory_of(memory.before)
    return 0


cdef Scope scope_of(ArrayMemory memory):
    if memory is None or memory.scope is None:
        return None
    return memory.scope()


# The capsule in force outside of all scopes.
cdef object outermost():
    capsule = top()
    memory = memory_of(capsule)
    while memory is not None and memory.passing:
        capsule = in_force(memory.before)
        memory = memory_of(capsule)
    return capsule


# What a scope has in the running context's chain, the innermost of `capsules`; None:
# none of them.
cdef object innermost(list capsules):
    holder = top()
    while True:
        for capsule in capsules:
            if capsule is holder:
                return holder
        memory = memory_of(holder)
        if memory is None or memory.before is None:
            return None
        holder = memory.before
