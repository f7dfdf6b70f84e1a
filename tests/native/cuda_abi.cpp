// Compiled beside NVIDIA's cuda.h, where that is at hand, and never run: the ABI that
// memcfg has written down is the one that the header declares.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "memcfg/cuda_abi.h"

namespace abi = memcfg::cuda;

// Whether a parameter of ours is passed, and what it points to laid out, as theirs.
template <typename Ours, typename Theirs>
constexpr bool agree() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_cv_t<std::remove_pointer_t<Ours>>;
    using B = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
    if constexpr (std::is_arithmetic_v<A> || std::is_pointer_v<A> ||
                  std::is_same_v<A, abi::AllocationProperties> ||
                  std::is_same_v<A, abi::AccessDescription>) {
      return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
    } else {
      return true;  // a handle, or untyped
    }
  } else {
    return (std::is_integral_v<Ours> || std::is_enum_v<Ours>) &&
           (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>) &&
           sizeof(Ours) == sizeof(Theirs);
  }
}

template <typename Ours, typename Theirs>
constexpr bool kAgree = false;
template <typename... Ours, typename... Theirs>
constexpr bool kAgree<abi::Status (*)(Ours...), CUresult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (agree<Ours, Theirs>() && ...);
  }
  return false;
}();

#define CHECK_FUNCTION(name, parameters) \
  static_assert(kAgree<decltype(abi::Api::name), decltype(&::name)>, #name);
MEMCFG_CUDA_FUNCTIONS(CHECK_FUNCTION)

#define CHECK_NUMBER(ours, theirs) \
  static_assert(static_cast<long>(abi::ours) == static_cast<long>(theirs), #theirs)
CHECK_NUMBER(status::invalid_value, CUDA_ERROR_INVALID_VALUE);
CHECK_NUMBER(status::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
CHECK_NUMBER(status::deinitialized, CUDA_ERROR_DEINITIALIZED);
CHECK_NUMBER(status::no_device, CUDA_ERROR_NO_DEVICE);
CHECK_NUMBER(status::invalid_image, CUDA_ERROR_INVALID_IMAGE);
CHECK_NUMBER(status::invalid_handle, CUDA_ERROR_INVALID_HANDLE);
CHECK_NUMBER(status::not_found, CUDA_ERROR_NOT_FOUND);
CHECK_NUMBER(status::not_ready, CUDA_ERROR_NOT_READY);
CHECK_NUMBER(status::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
CHECK_NUMBER(status::not_supported, CUDA_ERROR_NOT_SUPPORTED);
CHECK_NUMBER(status::capture_unsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
CHECK_NUMBER(status::capture_invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
CHECK_NUMBER(status::capture_unmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
CHECK_NUMBER(status::capture_unjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
CHECK_NUMBER(status::capture_isolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
CHECK_NUMBER(status::capture_implicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
CHECK_NUMBER(status::captured_event, CUDA_ERROR_CAPTURED_EVENT);
CHECK_NUMBER(attribute::compute_capability_major,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
CHECK_NUMBER(attribute::compute_capability_minor,
             CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
CHECK_NUMBER(attribute::virtual_memory_management,
             CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
CHECK_NUMBER(kOnDevice, CU_MEM_LOCATION_TYPE_DEVICE);
CHECK_NUMBER(kPinnedAllocation, CU_MEM_ALLOCATION_TYPE_PINNED);
CHECK_NUMBER(kReadAndWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CHECK_NUMBER(kMinimumGranularity, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
CHECK_NUMBER(kPortable, CU_MEMHOSTALLOC_PORTABLE);
CHECK_NUMBER(kNonBlocking, CU_STREAM_NON_BLOCKING);
CHECK_NUMBER(kDisableTiming, CU_EVENT_DISABLE_TIMING);
CHECK_NUMBER(kRelaxedCapture, CU_STREAM_CAPTURE_MODE_RELAXED);
CHECK_NUMBER(kMaxDynamicSharedMemory, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

static_assert(offsetof(abi::AllocationProperties, location) ==
              offsetof(CUmemAllocationProp, location));
static_assert(offsetof(abi::AllocationProperties, flags) ==
              offsetof(CUmemAllocationProp, allocFlags));
static_assert(offsetof(abi::AccessDescription, flags) ==
              offsetof(CUmemAccessDesc, flags));
