"""Codecs as CUDA kernels, whose encodings are no larger than the CPU's.

The format of ``zvc`` is a status (4 bytes), the bytes after the last whole word (4), a
bit for each word, and the words that are not zero; or the status and the raw bytes. A
block counts all bits before its own to find where its words begin, which needs no
memory and is deterministic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources import CudaSource, Launch, Number, Operand
from memcfg.devices.cuda._sources._prelude import PRELUDE, THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.devices.cuda._sources import Argument

UNFIT = 3  # status of an encoding that does not fit its capacity

_TEXT = """
#ifndef MEMCFG_ZVC
#define MEMCFG_ZVC
namespace memcfg {

__device__ inline u32 ones_of(u32 bits) {
  bits -= (bits >> 1) & 0x55555555u;
  bits = (bits & 0x33333333u) + ((bits >> 2) & 0x33333333u);
  return (((bits + (bits >> 4)) & 0x0F0F0F0Fu) * 0x01010101u) >> 24;
}

// Returns the sum of `own` over the threads of a block, to each of them.
__device__ inline u64 zvc_sum(u64 own, u64* sums) {
  __syncthreads();
  sums[threadIdx.x] = own;
  __syncthreads();
  for (u32 half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

// Computes where the words of each mask of this block begin.
__device__ inline void zvc_places(
    const u32* masks, u64 count, u64* sums, u64* places) {
  const u64 first = static_cast<u64>(blockIdx.x) * kThreads;
  u64 before = 0;
  for (u64 i = threadIdx.x; i < first; i += kThreads) before += ones_of(masks[i]);
  before = zvc_sum(before, sums);
  const u64 mine = first + threadIdx.x;
  const u64 own = mine < count ? ones_of(masks[mine]) : 0;
  places[threadIdx.x] = own;
  __syncthreads();
  for (u32 step = 1; step < kThreads; step *= 2) {
    const u64 left = threadIdx.x >= step ? places[threadIdx.x - step] : 0;
    __syncthreads();
    places[threadIdx.x] += left;
    __syncthreads();
  }
  places[threadIdx.x] += before - own;
  __syncthreads();
}

}  // namespace memcfg

extern "C" __global__ void __launch_bounds__(256)
memcfg_zvc_masks(
    const memcfg::u32* from, memcfg::u32* to, memcfg::u64 words, memcfg::u64 capacity) {
  using namespace memcfg;
  const u64 count = (words + 31) / 32;
  const u64 mine = static_cast<u64>(blockIdx.x) * kThreads + threadIdx.x;
  if (mine >= count || 8 + 4 * count > capacity) return;
  u32 mask = 0;
  for (u64 i = 32 * mine; i < words && i < 32 * mine + 32; ++i) {
    if (from[i] != 0) mask |= 1u << (i % 32);
  }
  to[2 + mine] = mask;
}

extern "C" __global__ void __launch_bounds__(256)
memcfg_zvc_status(
    const memcfg::u32* from, memcfg::u32* to, memcfg::u64 size, memcfg::u64 capacity) {
  using namespace memcfg;
  __shared__ u64 sums[kThreads];
  const u64 words = size / 4, count = (words + 31) / 32;
  u64 kept = 0;
  if (8 + 4 * count <= capacity) {
    for (u64 i = threadIdx.x; i < count; i += kThreads) kept += ones_of(to[2 + i]);
  }
  kept = zvc_sum(kept, sums);
  if (threadIdx.x != 0) return;
  const u64 packed = 4 * count + 4 * kept;
  const bool raw = packed >= size;
  const u64 needed = 8 + (raw ? size : packed);
  to[0] = 8 + 4 * count > capacity || needed > capacity ? 3 : raw ? 1 : 2;
  u32 tail = 0;
  for (u64 i = 4 * words; i < size; ++i) {
    tail |= static_cast<u32>(((const unsigned char*)from)[i]) << (8 * (i % 4));
  }
  to[1] = tail;
}

extern "C" __global__ void __launch_bounds__(256)
memcfg_zvc_pack(
    const memcfg::u32* from, memcfg::u32* to, memcfg::u64 size) {
  using namespace memcfg;
  __shared__ u64 sums[kThreads], places[kThreads];
  const u32 status = to[0];
  const u64 words = size / 4, count = (words + 31) / 32;
  const u64 begin = static_cast<u64>(blockIdx.x) * kThreads * 32;
  if (status == 2) zvc_places(to + 2, count, sums, places);
  for (u32 i = threadIdx.x; i < 32 * kThreads; i += kThreads) {
    const u64 word = begin + i;
    if (word >= words) break;
    if (status == 1) to[2 + word] = from[word];
    if (status != 2 || from[word] == 0) continue;
    const u32 before = to[2 + word / 32] & ((1u << (word % 32)) - 1);
    to[2 + count + places[i / 32] + ones_of(before)] = from[word];
  }
}

extern "C" __global__ void __launch_bounds__(256)
memcfg_zvc_unpack(
    const memcfg::u32* from, memcfg::u32* to, memcfg::u64 size) {
  using namespace memcfg;
  __shared__ u64 sums[kThreads], places[kThreads];
  const u32 status = from[0];
  const u64 words = size / 4, count = (words + 31) / 32;
  const u64 begin = static_cast<u64>(blockIdx.x) * kThreads * 32;
  if (status == 2) zvc_places(from + 2, count, sums, places);
  for (u32 i = threadIdx.x; i < 32 * kThreads; i += kThreads) {
    const u64 word = begin + i;
    if (word >= words) break;
    if (status == 1) to[word] = from[2 + word];
    if (status != 2) continue;
    const u32 mask = from[2 + word / 32], bit = 1u << (word % 32);
    const u64 place = 2 + count + places[i / 32] + ones_of(mask & (bit - 1));
    to[word] = mask & bit ? from[place] : 0;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    for (u64 i = 4 * words; i < size; ++i) {
      ((unsigned char*)to)[i] = static_cast<unsigned char>(from[1] >> (8 * (i % 4)));
    }
  }
}
#endif
"""


def _launch(function: str, blocks: int, *numbers: int) -> Launch:
    own: list[Argument] = [Number("uint64", number) for number in numbers]
    arguments = (Operand(0), Operand(1), *own)
    return Launch(function, (max(blocks, 1), 1, 1), (THREADS, 1, 1), 0, arguments)


def _blocks(nbytes: int) -> int:
    return -(-nbytes // (4 * 32 * THREADS))


def _encoding(size: int, capacity: int) -> CudaSource:
    blocks = _blocks(size)
    launches = (
        _launch("memcfg_zvc_masks", blocks, size // 4, capacity),
        _launch("memcfg_zvc_status", 1, size, capacity),
        _launch("memcfg_zvc_pack", blocks, size),
    )
    return CudaSource(PRELUDE + _TEXT, launches, 0)


def _decoding(capacity: int, size: int) -> CudaSource:
    return CudaSource(
        PRELUDE + _TEXT, (_launch("memcfg_zvc_unpack", _blocks(size), size),), 0
    )


CODECS: dict[tuple[str, str], Callable[[int, int], CudaSource]] = {
    ("zvc", "encode"): _encoding,
    ("zvc", "decode"): _decoding,
}
"""By codec and direction: the source, from the bytes that are read and written."""
