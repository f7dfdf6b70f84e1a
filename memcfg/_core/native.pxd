# What the native core declares, header by header. Extern only.

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.string_view cimport string_view
from libcpp.vector cimport vector

from memcfg._core.failure cimport OutOfMemoryInfo, raise_failure

cdef extern from "memcfg/types.hpp" namespace "memcfg" nogil:
    const size_t kNoLimit

cdef extern from "memcfg/system.hpp" namespace "memcfg" nogil:
    size_t resident_size() noexcept

cdef extern from "memcfg/resource.hpp" namespace "memcfg" nogil:
    enum Lifetime "memcfg::Lifetime":
        unknown "memcfg::Lifetime::unknown"
        short_lived "memcfg::Lifetime::short_lived"
        long_lived "memcfg::Lifetime::long_lived"

    cdef cppclass Request:
        size_t size
        size_t alignment
        Lifetime lifetime
        string_view tag
        bool zeroed

    cdef cppclass LiveBlock:
        uintptr_t address
        size_t requested
        size_t size
        string tag
        int64_t stack
        double seconds
        int64_t thread

    cdef cppclass ResourceStats:
        size_t current
        size_t peak
        size_t requested
        size_t reserved
        size_t peak_reserved
        size_t addresses
        size_t limit
        size_t largest_free
        size_t largest_free_chunk
        size_t free_bytes
        size_t metadata
        uint64_t allocations
        uint64_t deallocations

    cdef cppclass System:
        size_t page_size() noexcept

    cdef cppclass Resource:
        const string& name() noexcept
        const System* pages() noexcept
        bool touchable() noexcept
        void* allocate(const Request& request) except +raise_failure
        void deallocate(void* address, size_t size) except +raise_failure
        bool release(void* address) noexcept
        size_t size_of(const void* address) except +raise_failure
        bool holds(const void* address) noexcept
        bool resize(
            void* address, size_t size, size_t new_size
        ) except +raise_failure
        vector[LiveBlock] blocks() except +raise_failure
        ResourceStats stats() except +raise_failure
        void reset_peak() except +raise_failure
        vector[pair[string, size_t]] owners() except +raise_failure
        size_t trim(size_t keep) except +raise_failure
        void check() except +raise_failure

cdef extern from "memcfg/heap.hpp" namespace "memcfg" nogil:
    enum ExtentState "memcfg::HeapExtent::State":
        free_extent "memcfg::HeapExtent::free"
        cached "memcfg::HeapExtent::cached"
        block "memcfg::HeapExtent::block"

    cdef cppclass HeapExtent:
        uintptr_t address
        size_t size
        size_t committed
        ExtentState state
        size_t requested
        string tag

cdef extern from "memcfg/pool.hpp" namespace "memcfg" nogil:
    cdef cppclass Pool(Resource):
        Pool(
            string name, size_t limit, bool growth, shared_ptr[Resource] upstream
        ) except +raise_failure
        size_t limit() noexcept
        bool growth() noexcept
        size_t set_limit(size_t limit) except +raise_failure
        size_t decay() except +raise_failure
        vector[HeapExtent] layout(bool in_pieces) except +raise_failure
        void record(shared_ptr[PoolHistory] history) except +raise_failure
        History history(const PoolHistory& history) except +raise_failure
        void end(const PoolHistory& history) noexcept

cdef extern from "memcfg/pool_history.hpp" namespace "memcfg" nogil:
    cdef cppclass PoolHistory:
        PoolHistory(size_t max_events) except +raise_failure

cdef extern from "memcfg/host_allocator.hpp" nogil:
    cdef struct memcfg_host_functions:
        pass

cdef extern from "memcfg/host_allocator.hpp" namespace "memcfg" nogil:
    cdef cppclass HostAllocator:
        HostAllocator(shared_ptr[Pool] pool) except +raise_failure
        const memcfg_host_functions& functions() noexcept
        optional[OutOfMemoryInfo] refusal(uint64_t number) except +raise_failure

    const string* swap_thread_tag(const string* tag) noexcept
    const string* intern_tag(const string& text) except +raise_failure

cdef extern from "memcfg/host_limits.hpp" namespace "memcfg" nogil:
    cdef cppclass HostLimits:
        size_t tracked
        size_t rss

    HostLimits host_limits() noexcept
    HostLimits set_host_limits(HostLimits limits) except +raise_failure
    size_t tracked_bytes() except +raise_failure

cdef extern from "memcfg/system_resource.hpp" namespace "memcfg" nogil:
    cdef cppclass SystemResource(Resource):
        SystemResource(string name) except +raise_failure

cdef extern from "memcfg/system_resource.hpp" namespace "memcfg" nogil:
    cdef cppclass SimulatedResource(Resource):
        SimulatedResource(string name, size_t nbytes) except +raise_failure

cdef extern from "memcfg/cuda.hpp" namespace "memcfg" nogil:
    cdef cppclass CudaDeviceInfo:
        string name
        size_t memory
        int capability
        bool virtual_memory

    cdef cppclass CudaDriver:
        CudaDriver(string path) except +raise_failure
        int version() except +raise_failure
        int device_count() except +raise_failure
        CudaDeviceInfo info(int ordinal) except +raise_failure

    cdef cppclass Priorities "memcfg::CudaContext::Priorities":
        int least
        int greatest

    cdef cppclass CudaMemory "memcfg::CudaContext::Memory":
        size_t free
        size_t total

    cdef cppclass CudaContext:
        CudaContext(
            shared_ptr[CudaDriver] driver, int ordinal
        ) except +raise_failure
        Priorities priorities() except +raise_failure
        CudaMemory memory() except +raise_failure
        void synchronize() except +raise_failure
        void wait() noexcept

    cdef cppclass CurrentContext "memcfg::CudaContext::Current":
        CurrentContext(const CudaContext& context)
        const CurrentContext& require() except +raise_failure

    shared_ptr[Resource] make_cuda_resource(
        string name, shared_ptr[CudaContext] context, bool pages, string* refusal
    ) except +raise_failure
    shared_ptr[Resource] make_pinned_resource(
        string name, shared_ptr[CudaContext] context
    ) except +raise_failure

cdef extern from "memcfg/cuda_stream.hpp" namespace "memcfg" nogil:
    cdef cppclass Shape "memcfg::CudaStream::Shape":
        unsigned& operator[](size_t index) noexcept

    cdef cppclass CudaEvent:
        CudaEvent(
            shared_ptr[CudaContext] context, bool timing
        ) except +raise_failure
        void synchronize() except +raise_failure
        bool done() except +raise_failure
        double seconds_since(const CudaEvent& earlier) except +raise_failure

    cdef cppclass CudaModule:
        CudaModule(
            shared_ptr[CudaContext] context, const string& image
        ) except +raise_failure

    cdef cppclass CudaFunction:
        CudaFunction(
            shared_ptr[CudaModule] module, const string& name
        ) except +raise_failure

    cdef cppclass CudaGraph:
        size_t nodes() noexcept

    cdef cppclass CudaStream:
        CudaStream(
            shared_ptr[CudaContext] context, int priority
        ) except +raise_failure
        void synchronize() except +raise_failure
        bool done() except +raise_failure
        void record(const CudaEvent& event) except +raise_failure
        void wait(const CudaEvent& event) except +raise_failure
        void copy(uint64_t target, uint64_t source, size_t size) except +raise_failure
        void fill(
            uint64_t target, unsigned char byte, size_t size
        ) except +raise_failure
        void launch(
            const CudaFunction& function,
            const Shape& grid,
            const Shape& block,
            unsigned shared_bytes,
            void** arguments,
        ) except +raise_failure
        void launch(const CudaGraph& graph) except +raise_failure
        void begin_capture() except +raise_failure
        unique_ptr[CudaGraph] end_capture() except +raise_failure
        void* handle() noexcept

cdef extern from "memcfg/cuda_abi.h" namespace "memcfg::cuda" nogil:
    cdef cppclass Stream:
        pass

cdef extern from "memcfg/cuda_allocator.hpp" namespace "memcfg" nogil:
    cdef cppclass CudaAllocator:
        CudaAllocator(
            shared_ptr[Pool] pool, shared_ptr[CudaContext] context, string tag
        ) except +raise_failure
        void* allocate(size_t size, Stream* stream) except +raise_failure
        bool free(void* address, Stream* stream) noexcept
        void settle() noexcept
        size_t waiting() noexcept

    void install_cuda_allocator(
        int ordinal, shared_ptr[CudaAllocator] allocator
    ) except +raise_failure

cdef extern from "memcfg/cuda_allocator.hpp" nogil:
    void memcfg_cuda_record_stream(void* address, void* stream)

cdef extern from "memcfg/adaptor.hpp" namespace "memcfg" nogil:
    cdef cppclass LimitingResource(Resource):
        LimitingResource(
            shared_ptr[Resource] upstream, size_t limit
        ) except +raise_failure
        size_t limit() noexcept
        size_t set_limit(size_t limit) except +raise_failure

cdef extern from "memcfg/ledger.hpp" namespace "memcfg" nogil:
    cdef cppclass Tally:
        int64_t current
        int64_t peak
        int64_t total

    cdef cppclass Counters:
        Tally bytes
        Tally blocks

cdef extern from "memcfg/adaptor.hpp" namespace "memcfg" nogil:
    cdef cppclass StatisticsResource(Resource):
        StatisticsResource(shared_ptr[Resource] upstream) except +raise_failure
        void push() except +raise_failure
        Counters pop() except +raise_failure
        vector[pair[string, Counters]] by_tag() except +raise_failure

cdef extern from "memcfg/adaptor.hpp" namespace "memcfg" nogil:
    cdef cppclass Callback "memcfg::FailureCallbackResource::Callback":
        pass

    Callback foreign_callback(
        int (*function)(void*, size_t) except -1, void* context
    ) except +raise_failure

    cdef cppclass FailureCallbackResource(Resource):
        FailureCallbackResource(
            shared_ptr[Resource] upstream, Callback callback
        ) except +raise_failure

cdef extern from "memcfg/file_resource.hpp" namespace "memcfg" nogil:
    cdef cppclass FileOptions:
        string path
        string resolved_path
        optional[size_t] size
        size_t unit
        bool overwrite
        bool remove
        bool shared

    cdef cppclass FileResource(Resource):
        FileResource(FileOptions options) except +raise_failure
        size_t size() noexcept
        void flush() except +raise_failure
        size_t drop(size_t start, size_t size) except +raise_failure
        void close() except +raise_failure
        bool closed() except +raise_failure
        void abandon() except +raise_failure

cdef extern from "memcfg/ledger.hpp" namespace "memcfg" nogil:
    cdef cppclass Frame:
        const void* code
        int32_t offset

    ctypedef void* HeldStack "memcfg::Stacks::Held"

cdef extern from "memcfg/tracking.hpp" namespace "memcfg" nogil:
    cdef cppclass History:
        vector[uint8_t] action
        vector[uint64_t] address
        vector[uint64_t] size
        vector[int64_t] thread
        vector[double] seconds
        vector[int32_t] tag
        vector[int32_t] stack
        vector[string] tags
        vector[vector[Frame]] stacks
        uint64_t dropped
        double end

    cdef cppclass RetiredStacks "memcfg::Recorder::Retired":
        pass

cdef extern from "memcfg/tracking.hpp" namespace "memcfg" nogil:
    cdef cppclass StackSource "memcfg::TrackingResource::Source":
        pass

    StackSource foreign_source(
        int (*function)(void*, HeldStack*) except -1, void* context
    ) except +raise_failure

    cdef cppclass TakenStack "memcfg::TrackingResource::Taken":
        HeldStack stack
        bool fresh
        RetiredStacks retired

    cdef cppclass TrackingResource(Resource):
        TrackingResource(
            shared_ptr[Resource] upstream, size_t max_events, StackSource source
        ) except +raise_failure
        History history() except +raise_failure
        uint64_t dropped() except +raise_failure
        void clear() except +raise_failure
        TakenStack take_stack(
            const Frame* frames, size_t count
        ) except +raise_failure
        vector[vector[Frame]] stacks(
            const vector[LiveBlock]& blocks, vector[int64_t]& numbers
        ) except +raise_failure
        vector[vector[Frame]] all_stacks() except +raise_failure

cdef extern from "memcfg/tracking.hpp" namespace "memcfg":  # what acts needs the GIL
    void each_code(
        const RetiredStacks& stacks, void (*act)(const void*) noexcept
    ) noexcept
    void each_code(
        const vector[vector[Frame]]& stacks, void (*act)(const void*) noexcept
    ) noexcept

cdef extern from "memcfg/logging.hpp" namespace "memcfg" nogil:
    cdef cppclass LoggingResource(Resource):
        LoggingResource(
            shared_ptr[Resource] upstream, int file, void (*notice)() noexcept
        ) except +raise_failure
        int flush() except +raise_failure
        int close() except +raise_failure
        void write_through() except +raise_failure
        uint64_t lost() except +raise_failure
        int error() except +raise_failure

cdef extern from "memcfg/replay.hpp" namespace "memcfg" nogil:
    cdef cppclass ReplayColumns "memcfg::ReplayPlan::Columns":
        const uint8_t* action
        const uint64_t* address
        const uint64_t* size
        const int32_t* tag
        size_t count

    cdef cppclass ReplayPlan:
        ReplayPlan(
            const ReplayColumns& rows, vector[string] tags
        ) except +raise_failure

    cdef cppclass ReplayFigures:
        uint64_t failures
        optional[uint64_t] first_failure
        optional[double] use_at_failure
        uint64_t skipped
        uint64_t left
        size_t left_size
        size_t peak_in_use
        size_t peak_requested
        size_t peak_reserved

    cdef cppclass Replay:
        Replay(
            shared_ptr[const ReplayPlan] plan, shared_ptr[Resource] resource, bool touch
        ) except +raise_failure
        bool advance(size_t max_steps) except +raise_failure
        void finish() except +raise_failure
        const ReplayFigures& figures() noexcept
        const vector[uint64_t]& nanoseconds() noexcept

cdef extern from "memcfg/arena.hpp" namespace "memcfg" nogil:
    cdef cppclass Arena:
        Arena(
            shared_ptr[Pool] pool, size_t capacity, string owner
        ) except +raise_failure
        void* base() noexcept
        size_t capacity() noexcept
        size_t size() except +raise_failure
        size_t requested() noexcept
        bool freed() except +raise_failure
        void grow(size_t requested) except +raise_failure
        void shrink(size_t requested) except +raise_failure
        void free() except +raise_failure
        void check() except +raise_failure

    cdef cppclass Pin:
        Pin(shared_ptr[Arena] arena) except +raise_failure

cdef extern from "memcfg/onednn.hpp" namespace "memcfg" nogil:
    cdef cppclass OneDnn:
        OneDnn(string path) except +raise_failure
        string version() except +raise_failure
        bint has_bfloat16()
        bint has_fast_bfloat16()

cdef extern from "memcfg/kernel.hpp" namespace "memcfg" nogil:
    cdef cppclass OperandSpec "memcfg::OperandSpec":
        vector[int64_t] shape
        string dtype

    cdef cppclass KernelSpec:
        string type
        vector[OperandSpec] inputs
        vector[OperandSpec] outputs
        string algorithm  # optional: only set here
        int threads
        void set_integer "set"(string name, int64_t value)
        void set_real "set"(string name, double value)
        void set_text "set"(string name, string value)
        void set_integers "set"(string name, vector[int64_t] value)

    cdef cppclass Operand "memcfg::Kernel::Operand":
        size_t size
        bool written

    cdef cppclass Sizes "memcfg::Kernel::Sizes":
        vector[size_t] inputs
        vector[size_t] outputs

    cdef cppclass RunState "memcfg::Kernel::RunState":
        pass

    cdef cppclass Kernel:
        const vector[Operand]& operands() noexcept
        const char* algorithm() noexcept
        size_t scratch_bytes() noexcept
        unique_ptr[RunState] make_run_state() except +raise_failure
        void run(
            void** operands, void* scratch, RunState* state
        ) except +raise_failure

    cdef cppclass Packing:
        vector[size_t] operands
        unique_ptr[Kernel] pack
        unique_ptr[Kernel] kernel
        unique_ptr[Kernel] unpack
        string layout

    cdef cppclass Algorithm:
        string name
        size_t scratch_bytes

    bint has_kernel(const string& type) noexcept
    bint needs_library(const string& type) noexcept
    vector[Algorithm] list_algorithms(
        const KernelSpec& spec, const OneDnn* library
    ) except +raise_failure
    unique_ptr[Kernel] make_kernel(
        const KernelSpec& spec, const OneDnn* library
    ) except +raise_failure
    optional[Packing] make_packing(
        const KernelSpec& spec, const OneDnn* library
    ) except +raise_failure

cdef extern from "memcfg/space.hpp" namespace "memcfg" nogil:
    cdef cppclass Space:
        size_t size() except +raise_failure

    cdef cppclass ArenaSpace(Space):
        ArenaSpace(shared_ptr[Arena] arena) except +raise_failure

    cdef cppclass ScratchFile(Space):
        ScratchFile(string folder, size_t size) except +raise_failure

    cdef cppclass Buffer:
        void* data() noexcept
        size_t size() noexcept

    cdef cppclass BufferSpace(Space):
        BufferSpace(
            shared_ptr[Resource] resource, size_t size, string tag
        ) except +raise_failure

cdef extern from "memcfg/lane.hpp" namespace "memcfg" nogil:
    cdef cppclass Lane:
        Lane(double bytes_per_second, double timeout) except +raise_failure

cdef extern from "memcfg/transfer.hpp" namespace "memcfg" nogil:
    cdef cppclass Transfer:
        @staticmethod
        unique_ptr[Transfer] read(
            shared_ptr[Space] space,
            shared_ptr[Lane] lane,
            size_t offset,
            void* to,
            size_t size,
        ) except +raise_failure
        @staticmethod
        unique_ptr[Transfer] write(
            shared_ptr[Space] space,
            shared_ptr[Lane] lane,
            size_t offset,
            const void* source,
            size_t size,
        ) except +raise_failure
        bint done() noexcept
        void wait() except +raise_failure

cdef extern from "<cstddef>" namespace "std" nogil:
    cdef cppclass byte:
        pass

cdef extern from "memcfg/codec.hpp" namespace "memcfg" nogil:
    cdef cppclass Codec:
        const char* name() noexcept
        bint lossless() noexcept
        size_t bound(size_t size) noexcept
        size_t encode(
            const byte* source, size_t size, byte* to, size_t capacity
        ) except +raise_failure
        void decode(
            const byte* source, size_t capacity, byte* to, size_t size
        ) except +raise_failure

    vector[const Codec*] codecs() except +raise_failure
    const Codec& find_codec(const string& name) except +raise_failure

cdef extern from "codecs/codebook.hpp" namespace "memcfg" nogil:
    cdef cppclass Codebook(Codec):
        Codebook(
            const char* name, unsigned index_bits, bint huffman
        ) except +raise_failure

cdef extern from "memcfg/program.hpp" namespace "memcfg" nogil:
    cdef cppclass CallbackKernel(Kernel):
        CallbackKernel(
            int (*function)(void*, void* const*, void*) noexcept,
            void* context,
            const Sizes& sizes,
            size_t scratch_bytes,
        ) except +raise_failure

    cdef cppclass ProgramOperand "memcfg::Program::Operand":
        size_t instruction
        size_t position

    cdef cppclass Place "memcfg::Program::Place":
        size_t space
        size_t offset

    cdef cppclass Span "memcfg::Program::Span":
        double begin
        double end

    cdef cppclass Coded "memcfg::Program::Coded":
        uint64_t runs
        uint64_t raw
        size_t used

    cdef cppclass Program:
        Program(
            shared_ptr[Arena] arena,
            const vector[shared_ptr[Space]]& spaces,
            const vector[shared_ptr[Lane]]& lanes,
        ) except +raise_failure
        size_t compute(
            shared_ptr[Kernel] kernel,
            const vector[Place]& places,
            const vector[size_t]& sizes,
            optional[Place] scratch,
            size_t queue,
        ) except +raise_failure
        size_t copy(
            size_t queue, Place source, Place target, size_t size
        ) except +raise_failure
        size_t encode(
            const Codec& codec,
            size_t source,
            size_t size,
            size_t to,
            size_t capacity,
            optional[Place] overflow,
        ) except +raise_failure
        size_t decode(
            const Codec& codec,
            size_t source,
            size_t capacity,
            size_t to,
            size_t size,
            size_t encoding,
        ) except +raise_failure
        size_t copy_encoded(
            size_t queue,
            const Codec& codec,
            size_t source,
            size_t size,
            Place to,
            size_t capacity,
        ) except +raise_failure
        size_t copy_decoded(
            size_t queue, size_t encoding, size_t to
        ) except +raise_failure
        Coded coded(size_t instruction) except +raise_failure
        size_t record(size_t queue) except +raise_failure
        size_t wait(size_t queue, size_t event) except +raise_failure
        size_t guard(Place place) except +raise_failure
        size_t add_buffer(shared_ptr[BufferSpace] buffer) except +raise_failure
        size_t allocate(size_t space) except +raise_failure
        size_t free(size_t space) except +raise_failure
        size_t discard(size_t offset, size_t size) except +raise_failure
        void take(size_t space, bool shared) except +raise_failure
        void drop(size_t space) except +raise_failure
        shared_ptr[Buffer] buffer(size_t space) except +raise_failure
        size_t failed_at() noexcept
        size_t protect(size_t size, Place to) except +raise_failure
        size_t input(
            const vector[ProgramOperand]& operands, size_t size
        ) except +raise_failure
        bool bind(
            size_t input, const void* address, size_t size
        ) except +raise_failure
        void unbind(size_t input) except +raise_failure
        int64_t run(
            bool check_guards,
            int threads,
            size_t begin,
            size_t end,
            vector[Span]* spans
        ) except +raise_failure
        vector[double] run_timed(
            int threads, const Resource* resource, vector[size_t]* in_use
        ) except +raise_failure
        vector[Span] run_traced(int threads) except +raise_failure
        size_t queue_of(size_t instruction) except +raise_failure
        void set_jitter(uint32_t seed, uint32_t microseconds) noexcept
        bool ended() noexcept
        void fail_at(size_t instruction) noexcept
        size_t size() noexcept

cdef extern from "memcfg/threads.hpp" namespace "memcfg" nogil:
    const bool kHasOpenMp
    int max_threads() noexcept
    cdef cppclass ThreadCount:
        ThreadCount(int count) noexcept

cdef extern from "memcfg/foreign.hpp" namespace "memcfg" nogil:
    void call_apart(
        void (*function)(void*) noexcept, void* context
    ) except +raise_failure

cdef extern from "memcfg/forks.hpp" namespace "memcfg" nogil:
    uint64_t fork_count() noexcept

cdef extern from "<chrono>" namespace "std::chrono" nogil:
    cdef cppclass milliseconds:
        milliseconds(int count) noexcept

cdef extern from "memcfg/fair_lock.hpp" namespace "memcfg" nogil:
    cdef cppclass Waiter:
        pass

    cdef cppclass FairLock:
        FairLock(string name) except +raise_failure
        shared_ptr[Waiter] enter() except +raise_failure
        bool try_enter() except +raise_failure
        bool wait(
            const shared_ptr[Waiter]& waiter, milliseconds time
        ) except +raise_failure
        void cancel(const shared_ptr[Waiter]& waiter) except +raise_failure
        bool leave() except +raise_failure
        bool elsewhere() except +raise_failure
        size_t waiting() except +raise_failure

    cdef cppclass Semaphore:
        shared_ptr[Waiter] enter() except +raise_failure
        bool wait(
            const shared_ptr[Waiter]& waiter, milliseconds time
        ) except +raise_failure
        void cancel(const shared_ptr[Waiter]& waiter) except +raise_failure
        void leave() except +raise_failure
        void set_bound(size_t bound) except +raise_failure

cdef extern from "memcfg/workspace.hpp" namespace "memcfg" nogil:
    enum WorkspaceLearning "memcfg::WorkspaceRules::Learning":
        first_loop "memcfg::WorkspaceRules::first_loop"
        over_time "memcfg::WorkspaceRules::over_time"
        never "memcfg::WorkspaceRules::never"

    enum WorkspaceSpill "memcfg::WorkspaceRules::Spill":
        external "memcfg::WorkspaceRules::external"
        reallocate "memcfg::WorkspaceRules::reallocate"
        fail "memcfg::WorkspaceRules::fail"

    cdef cppclass WorkspaceRules:
        string name
        size_t initial
        size_t minimum
        size_t maximum
        double overallocation
        bool circular
        size_t ring_blocks
        WorkspaceLearning learning
        uint64_t learning_cycles
        WorkspaceSpill spill
        bool overwrites
        bool reclaims

cdef extern from "memcfg/workspace.hpp" namespace "memcfg" nogil:
    cdef cppclass WorkspaceCount "memcfg::WorkspaceCycles::Count":
        size_t bytes
        uint64_t blocks

cdef extern from "memcfg/workspace.hpp" namespace "memcfg" nogil:
    enum WorkspaceKind "memcfg::Workspace::Kind":
        page "memcfg::Workspace::Kind::page"
        retired "memcfg::Workspace::Kind::retired"
        spilled "memcfg::Workspace::Kind::spilled"
        pinned "memcfg::Workspace::Kind::pinned"
        outside "memcfg::Workspace::Kind::outside"
        overwritten "memcfg::Workspace::Kind::overwritten"

    cdef cppclass WorkspaceBlockInfo "memcfg::Workspace::BlockInfo":
        WorkspaceKind kind
        uint64_t generation
        size_t size

    cdef cppclass WorkspaceEnd "memcfg::Workspace::End":
        uint64_t escaped
        bool was_disabled

    cdef cppclass WorkspaceNumbers "memcfg::Workspace::Numbers":
        size_t size
        size_t offset
        size_t cycle
        size_t last_cycle
        size_t max_cycle
        size_t block
        size_t retired
        WorkspaceCount spilled
        WorkspaceCount pinned
        uint64_t cycles
        uint64_t steps
        uint64_t generation
        uint64_t live
        uint64_t escaped
        bool open
        bool enabled

    cdef cppclass Workspace(Resource):
        Workspace(
            shared_ptr[Resource] upstream,
            shared_ptr[Resource] pages,
            const WorkspaceRules& rules,
        ) except +raise_failure
        void* allocate_of(
            const Request& request, uint64_t generation
        ) except +raise_failure
        bool release_of(void* address, uint64_t generation) noexcept
        optional[WorkspaceBlockInfo] find_block(
            const void* address, uint64_t generation
        ) noexcept
        bool open() except +raise_failure
        void cancel() noexcept
        WorkspaceEnd close() noexcept
        void rethrow_out_of_memory() except +raise_failure
        void initialize() except +raise_failure
        void destroy() noexcept
        size_t shrink() noexcept
        void set_enabled(bool enabled) noexcept
        bool enabled() noexcept
        uint64_t generation() noexcept
        WorkspaceNumbers numbers() noexcept

    void spill_everything "memcfg::Workspace::spill_everything"(bool spill) noexcept
    void bypass_everything "memcfg::Workspace::bypass_everything"(bool bypass) noexcept
