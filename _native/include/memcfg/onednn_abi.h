// The part of oneDNN 3's C ABI that memcfg uses: opaque handles, the numbers of
// the enumerators, the signatures. Written by hand because the binary package
// ships no headers. Only what is the same in every 3.x stands here; the numbers of
// format tags are not (memory is described by strides, and tags are looked up by name),
// and `OneDnn` checks the others by name when it loads the library.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memcfg::onednn {

// Opaque objects of the library; each is made and destroyed by its functions.
struct Engine;
struct Stream;
struct MemoryDesc;
struct Memory;
struct PostOps;
struct PrimitiveDesc;
struct Primitive;
struct Attributes;

using Status = int;  // 0 is success
inline constexpr Status kLast = 4;  // there is no further implementation
using Dim = std::int64_t;

inline constexpr int kMaxDims = 12;
using Dims = Dim[kMaxDims];

// One operand of a primitive's execution.
struct ExecArg {
  int arg;
  Memory* memory;
};

struct Version {
  int major;
  int minor;
  int patch;
  const char* hash;
  unsigned cpu_runtime;
  unsigned gpu_runtime;
};

inline constexpr int kCpu = 1;             // engine kind
inline constexpr unsigned kInOrder = 1;    // stream flags
inline constexpr int kTagAny = 1;          // format tag: the primitive chooses
inline constexpr int kUserScratchpad = 1;  // scratchpad mode: the caller's memory

namespace data_type {
inline constexpr int undef = 0;
inline constexpr int bf16 = 2;
inline constexpr int f32 = 3;
inline constexpr int s32 = 4;
inline constexpr int s8 = 5;
inline constexpr int u8 = 6;
}  // namespace data_type

namespace propagation {
inline constexpr int forward_training = 64;
}  // namespace propagation

namespace algorithm {
inline constexpr int convolution_direct = 0x1;
inline constexpr int binary_add = 0x1fff0;
inline constexpr int binary_mul = 0x1fff1;
}  // namespace algorithm

// Instruction sets, a bit for each part: AVX-512 with byte, word, doubleword, quadword
// and vector length extensions, and that with products of bfloat16.
inline constexpr unsigned kAvx512Core = 0x27;
inline constexpr unsigned kAvx512Bfloat16 = 0xe7;
// AVX-512 and AVX2 with products of 8 bits (VNNI).
inline constexpr unsigned kAvx512Int8 = 0x67;
inline constexpr unsigned kAvx2Int8 = 0xf;

// What a primitive descriptor is asked for: the name of its implementation, or one of
// its memory descriptors; and what these are asked for.
namespace query {
inline constexpr int implementation = 8;
inline constexpr int weights = 131;
inline constexpr int diff_weights = 132;
inline constexpr int scratchpad = 136;
// Of a memory descriptor: numbers of 32 bits, or pointers to numbers of 64.
inline constexpr int strides = 14;
inline constexpr int dimensions = 256;
inline constexpr int dims = 257;
inline constexpr int padded_dims = 260;
inline constexpr int blocks = 263;
inline constexpr int block_sizes = 264;
inline constexpr int block_dims = 265;
}  // namespace query

// Names of operands in an execution.
namespace arg {
inline constexpr int source = 1;
inline constexpr int second_source = 2;
inline constexpr int destination = 17;
inline constexpr int weights = 33;
inline constexpr int bias = 41;
inline constexpr int scratchpad = 80;
inline constexpr int diff_source = 129;
inline constexpr int diff_destination = 145;
inline constexpr int diff_weights = 161;
inline constexpr int scales = 0x1000;  // | the operand that they are of
// The array that post-op `number` takes.
constexpr int array_of_post_op(int number) {
  return 0x8000 * (number + 1) | second_source;
}
// The slopes of a PReLU that is post-op `number`.
constexpr int slope_of_post_op(int number) {
  return 0x8000 * (number + 1) | weights;
}
}  // namespace arg

// X(name, result, parameters): the function `dnnl_<name>` of the library.
#define MEMCFG_ONEDNN_FUNCTIONS(X)                                                    \
  X(get_effective_cpu_isa, unsigned, ())                                              \
  X(version, const Version*, ())                                                      \
  X(status2str, const char*, (Status))                                                \
  X(dt2str, const char*, (int))                                                       \
  X(fmt_tag2str, const char*, (int))                                                  \
  X(prop_kind2str, const char*, (int))                                                \
  X(alg_kind2str, const char*, (int))                                                 \
  X(engine_kind2str, const char*, (int))                                              \
  X(scratchpad_mode2str, const char*, (int))                                          \
  X(engine_create, Status, (Engine**, int, std::size_t))                              \
  X(engine_destroy, Status, (Engine*))                                                \
  X(stream_create, Status, (Stream**, Engine*, unsigned))                             \
  X(stream_destroy, Status, (Stream*))                                                \
  X(memory_desc_create_with_strides,                                                  \
    Status,                                                                           \
    (MemoryDesc**, int, const Dim*, int, const Dim*))                                 \
  X(memory_desc_create_with_tag, Status, (MemoryDesc**, int, const Dim*, int, int))   \
  X(memory_desc_clone, Status, (MemoryDesc**, const MemoryDesc*))                     \
  X(memory_desc_destroy, Status, (MemoryDesc*))                                       \
  X(memory_desc_get_size, std::size_t, (const MemoryDesc*))                           \
  X(memory_desc_equal, int, (const MemoryDesc*, const MemoryDesc*))                   \
  X(memory_desc_query, Status, (const MemoryDesc*, int, void*))                       \
  X(memory_create, Status, (Memory**, const MemoryDesc*, Engine*, void*))             \
  X(memory_set_data_handle, Status, (Memory*, void*))                                 \
  X(memory_destroy, Status, (Memory*))                                                \
  X(primitive_attr_create, Status, (Attributes**))                                    \
  X(primitive_attr_set_scratchpad_mode, Status, (Attributes*, int))                   \
  X(primitive_attr_set_post_ops, Status, (Attributes*, const PostOps*))               \
  X(primitive_attr_set_scales_mask, Status, (Attributes*, int, int))                  \
  X(primitive_attr_destroy, Status, (Attributes*))                                    \
  X(post_ops_create, Status, (PostOps**))                                             \
  X(post_ops_append_sum, Status, (PostOps*, float, std::int32_t, int))                \
  X(post_ops_append_prelu, Status, (PostOps*, int))                                   \
  X(post_ops_append_binary, Status, (PostOps*, int, const MemoryDesc*))               \
  X(post_ops_destroy, Status, (PostOps*))                                             \
  X(primitive_desc_query_md, const MemoryDesc*, (const PrimitiveDesc*, int, int))     \
  X(primitive_desc_query, Status, (const PrimitiveDesc*, int, int, void*))            \
  X(primitive_desc_next_impl, Status, (PrimitiveDesc*))                               \
  X(primitive_desc_destroy, Status, (PrimitiveDesc*))                                 \
  X(primitive_create, Status, (Primitive**, const PrimitiveDesc*))                    \
  X(primitive_execute, Status, (const Primitive*, Stream*, int, const ExecArg*))      \
  X(primitive_destroy, Status, (Primitive*))                                          \
  X(reorder_primitive_desc_create,                                                    \
    Status,                                                                           \
    (PrimitiveDesc**,                                                                 \
     const MemoryDesc*,                                                               \
     Engine*,                                                                         \
     const MemoryDesc*,                                                               \
     Engine*,                                                                         \
     const Attributes*))                                                              \
  X(matmul_primitive_desc_create,                                                     \
    Status,                                                                           \
    (PrimitiveDesc**,                                                                 \
     Engine*,                                                                         \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const Attributes*))                                                              \
  X(convolution_forward_primitive_desc_create,                                        \
    Status,                                                                           \
    (PrimitiveDesc**,                                                                 \
     Engine*,                                                                         \
     int,                                                                             \
     int,                                                                             \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Attributes*))                                                              \
  X(convolution_backward_data_primitive_desc_create,                                  \
    Status,                                                                           \
    (PrimitiveDesc**,                                                                 \
     Engine*,                                                                         \
     int,                                                                             \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const PrimitiveDesc*,                                                            \
     const Attributes*))                                                              \
  X(convolution_backward_weights_primitive_desc_create,                               \
    Status,                                                                           \
    (PrimitiveDesc**,                                                                 \
     Engine*,                                                                         \
     int,                                                                             \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const MemoryDesc*,                                                               \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const Dim*,                                                                      \
     const PrimitiveDesc*,                                                            \
     const Attributes*))

// Every function of the table, by its name without the prefix.
struct Api {
#define MEMCFG_ONEDNN_MEMBER(name, result, parameters) \
  result(*name) parameters = nullptr;
  MEMCFG_ONEDNN_FUNCTIONS(MEMCFG_ONEDNN_MEMBER)
#undef MEMCFG_ONEDNN_MEMBER
};

}  // namespace memcfg::onednn
