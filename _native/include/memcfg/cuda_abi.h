// The part of the CUDA driver's C ABI that memcfg uses: opaque handles, the numbers of
// the enumerators, the signatures. Written by hand, so that building needs no CUDA. The
// functions are those of CUDA 11.4 and newer; a suffix such as _v2 is part of a name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memcfg::cuda {

struct Context;  // opaque, as all that follow
struct Stream;
struct Event;
struct Graph;       // a recording
struct Executable;  // a graph that can be launched
struct Module;
struct Function;

using Device = int;
using Address = std::uint64_t;  // in the device's memory
using Handle = std::uint64_t;   // of physical memory
using Status = int;             // 0 is success

namespace status {
inline constexpr Status invalid_value = 1;
inline constexpr Status out_of_memory = 2;
inline constexpr Status deinitialized = 4;
inline constexpr Status no_device = 100;
inline constexpr Status invalid_image = 200;
inline constexpr Status invalid_handle = 400;
inline constexpr Status not_found = 500;
inline constexpr Status not_ready = 600;
inline constexpr Status launch_failed = 719;
inline constexpr Status not_supported = 801;
inline constexpr Status capture_unsupported = 900;
inline constexpr Status capture_invalidated = 901;
inline constexpr Status capture_unmatched = 903;
inline constexpr Status capture_unjoined = 904;
inline constexpr Status capture_isolation = 905;
inline constexpr Status capture_implicit = 906;
inline constexpr Status captured_event = 907;
}  // namespace status

namespace attribute {
inline constexpr int compute_capability_major = 75;
inline constexpr int compute_capability_minor = 76;
inline constexpr int virtual_memory_management = 102;
}  // namespace attribute

struct Location {
  int type;
  int id;
};
inline constexpr int kOnDevice = 1;  // a location's type: `id` is a device

struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows_metadata;
  struct {
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
inline constexpr int kPinnedAllocation = 1;  // the only type that there is

struct AccessDescription {
  Location location;
  int flags;
};
inline constexpr int kReadAndWrite = 3;        // flags of an access
inline constexpr int kMinimumGranularity = 0;  // which granularity is asked for

inline constexpr unsigned kPortable = 1;       // flag: pinned for all contexts
inline constexpr unsigned kNonBlocking = 1;    // flag: apart from the default stream
inline constexpr unsigned kDisableTiming = 2;  // flag of an event
inline constexpr int kRelaxedCapture = 2;      // any other call is allowed meanwhile
inline constexpr int kMaxDynamicSharedMemory = 8;       // attribute of a function
inline constexpr unsigned kSharedByDefault = 48 << 10;  // bytes; more must be asked for

// Every function: its name, and its parameters.
#define MEMCFG_CUDA_FUNCTIONS(FUNCTION)                                               \
  FUNCTION(cuInit, (unsigned flags))                                                  \
  FUNCTION(cuDriverGetVersion, (int* version))                                        \
  FUNCTION(cuGetErrorName, (Status status, const char** name))                        \
  FUNCTION(cuDeviceGetCount, (int* count))                                            \
  FUNCTION(cuDeviceGet, (Device * device, int ordinal))                               \
  FUNCTION(cuDeviceGetName, (char* name, int length, Device device))                  \
  FUNCTION(cuDeviceTotalMem_v2, (std::size_t* nbytes, Device device))                 \
  FUNCTION(cuDeviceGetAttribute, (int* value, int attribute, Device device))          \
  FUNCTION(cuDevicePrimaryCtxRetain, (Context * *context, Device device))             \
  FUNCTION(cuDevicePrimaryCtxRelease_v2, (Device device))                             \
  FUNCTION(cuCtxPushCurrent_v2, (Context * context))                                  \
  FUNCTION(cuCtxPopCurrent_v2, (Context * *context))                                  \
  FUNCTION(cuCtxSynchronize, ())                                                      \
  FUNCTION(cuThreadExchangeStreamCaptureMode, (int* mode))                            \
  FUNCTION(cuMemGetAllocationGranularity,                                             \
           (std::size_t* nbytes, const AllocationProperties* what, int which))        \
  FUNCTION(cuMemAddressReserve,                                                       \
           (Address * address,                                                        \
            std::size_t size,                                                         \
            std::size_t alignment,                                                    \
            Address at,                                                               \
            unsigned long long flags))                                                \
  FUNCTION(cuMemAddressFree, (Address address, std::size_t size))                     \
  FUNCTION(cuMemCreate,                                                               \
           (Handle * handle,                                                          \
            std::size_t size,                                                         \
            const AllocationProperties* what,                                         \
            unsigned long long flags))                                                \
  FUNCTION(cuMemRelease, (Handle handle))                                             \
  FUNCTION(cuMemMap,                                                                  \
           (Address address,                                                          \
            std::size_t size,                                                         \
            std::size_t offset,                                                       \
            Handle handle,                                                            \
            unsigned long long flags))                                                \
  FUNCTION(cuMemUnmap, (Address address, std::size_t size))                           \
  FUNCTION(cuMemSetAccess,                                                            \
           (Address address,                                                          \
            std::size_t size,                                                         \
            const AccessDescription* access,                                          \
            std::size_t count))                                                       \
  FUNCTION(cuMemAlloc_v2, (Address * address, std::size_t size))                      \
  FUNCTION(cuMemFree_v2, (Address address))                                           \
  FUNCTION(cuMemsetD8Async,                                                           \
           (Address address, unsigned char value, std::size_t count, Stream* stream)) \
  FUNCTION(cuMemcpyAsync,                                                             \
           (Address target, Address source, std::size_t count, Stream* stream))       \
  FUNCTION(cuMemGetInfo_v2, (std::size_t* free, std::size_t* total))                  \
  FUNCTION(cuMemHostAlloc, (void** address, std::size_t size, unsigned flags))        \
  FUNCTION(cuMemFreeHost, (void* address))                                            \
  FUNCTION(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                  \
  FUNCTION(cuStreamCreateWithPriority,                                                \
           (Stream * *stream, unsigned flags, int priority))                          \
  FUNCTION(cuStreamDestroy_v2, (Stream * stream))                                     \
  FUNCTION(cuStreamSynchronize, (Stream * stream))                                    \
  FUNCTION(cuStreamQuery, (Stream * stream))                                          \
  FUNCTION(cuStreamWaitEvent, (Stream * stream, Event * event, unsigned flags))       \
  FUNCTION(cuStreamIsCapturing, (Stream * stream, int* status))                       \
  FUNCTION(cuStreamBeginCapture_v2, (Stream * stream, int mode))                      \
  FUNCTION(cuStreamEndCapture, (Stream * stream, Graph * *graph))                     \
  FUNCTION(cuEventCreate, (Event * *event, unsigned flags))                           \
  FUNCTION(cuEventDestroy_v2, (Event * event))                                        \
  FUNCTION(cuEventRecord, (Event * event, Stream * stream))                           \
  FUNCTION(cuEventSynchronize, (Event * event))                                       \
  FUNCTION(cuEventQuery, (Event * event))                                             \
  FUNCTION(cuEventElapsedTime, (float* milliseconds, Event* start, Event* end))       \
  FUNCTION(cuGraphGetNodes, (Graph * graph, void** nodes, std::size_t* count))        \
  FUNCTION(cuGraphInstantiateWithFlags,                                               \
           (Executable * *made, Graph * graph, unsigned long long flags))             \
  FUNCTION(cuGraphDestroy, (Graph * graph))                                           \
  FUNCTION(cuGraphLaunch, (Executable * graph, Stream * stream))                      \
  FUNCTION(cuGraphExecDestroy, (Executable * graph))                                  \
  FUNCTION(cuModuleLoadData, (Module * *module, const void* image))                   \
  FUNCTION(cuModuleUnload, (Module * module))                                         \
  FUNCTION(cuModuleGetFunction,                                                       \
           (Function * *function, Module * module, const char* name))                 \
  FUNCTION(cuFuncSetAttribute, (Function * function, int attribute, int value))       \
  FUNCTION(cuLaunchKernel,                                                            \
           (Function * function,                                                      \
            unsigned grid_x,                                                          \
            unsigned grid_y,                                                          \
            unsigned grid_z,                                                          \
            unsigned block_x,                                                         \
            unsigned block_y,                                                         \
            unsigned block_z,                                                         \
            unsigned shared_bytes,                                                    \
            Stream* stream,                                                           \
            void** arguments,                                                         \
            void** extra))

struct Api {
#define MEMCFG_CUDA_DECLARE(name, parameters) Status(*name) parameters = nullptr;
  MEMCFG_CUDA_FUNCTIONS(MEMCFG_CUDA_DECLARE)
#undef MEMCFG_CUDA_DECLARE
};

}  // namespace memcfg::cuda
