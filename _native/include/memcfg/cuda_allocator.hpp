// Blocks of a GPU's pool for other libraries, which free blocks while work that uses
// them is still queued.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "memcfg/cuda.hpp"
#include "memcfg/cuda_stream.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// `free` names the stream whose work used the block; `record` adds other streams that
// use it, before it is freed. A request of the same size on the block's own stream may
// get a freed block at once, if the work of the other streams is done. The block
// returns to the pool when all work that was queued on its streams before it was freed
// is done. Until then it counts against the pool's limit. All methods are thread-safe.
// Blocks are aligned to 512 bytes.
//
// CU_STREAM_PER_THREAD means a different stream in each thread, and a thread has no
// handle for that of another. A block that several threads allocated, recorded or freed
// with it is returned after the work of the legacy default stream, which waits for the
// streams of all threads.
//
// A block that is freed while one of its streams is being captured never returns, since
// the graph uses it whenever it is launched.
class CudaAllocator final : public PendingFrees {
 public:
  // `tag` is the holder of the blocks in the pool's statistics.
  CudaAllocator(std::shared_ptr<Pool> pool,
                std::shared_ptr<const CudaContext> context,
                std::string tag);
  ~CudaAllocator() override;  // calls `settle`; blocks not freed yet stay in the pool

  // Returns null for 0 bytes. Throws out_of_memory if the pool refuses, kernel_failure
  // if the driver fails or the stream is being captured, and std::runtime_error in a
  // forked child.
  void* allocate(Bytes size, cuda::Stream* stream);
  // Makes the return of a block wait for another stream, too, which must exist until
  // the block is freed. Returns false if no block starts at the address. Throws
  // std::bad_alloc.
  bool record(void* address, cuda::Stream* stream);
  // Returns false if no block starts at the address; true, without effect, for null.
  bool free(void* address, cuda::Stream* stream) noexcept;
  void collect() noexcept override;
  void settle() noexcept override;
  // Bytes, as requested, of the freed blocks that have not returned to the pool.
  Bytes waiting() const;

  const Pool& pool() const noexcept { return *pool_; }

 private:
  using Streams = std::vector<cuda::Stream*>;
  using Events = std::vector<std::unique_ptr<CudaEvent>>;
  struct Freed {
    void* address;
    Bytes size;  // as requested
    cuda::Stream* stream;
    Events events;  // behind the work on all its streams; empty: never returns
  };

  void give_back(std::list<Freed>::iterator freed) noexcept;
  void give_back_done() noexcept;
  void keep(Events events) noexcept;
  bool is_freed(const void* address) const noexcept;
  bool capturing(cuda::Stream* stream) const noexcept;
  Events record_events(const Streams& streams);
  void note_thread(const void* address, cuda::Stream* stream);
  Streams streams_of(const void* address, cuda::Stream* first) const;
  bool wait_for_streams(const void* address, cuda::Stream* first) const noexcept;
  void forget(const void* address) noexcept;

  const std::shared_ptr<Pool> pool_;
  const std::shared_ptr<const CudaContext> context_;
  const std::string tag_;
  mutable std::mutex mutex_;                 // never taken in a forked child
  std::list<Freed> freed_;                   // the oldest first
  std::map<const void*, Streams> recorded_;  // of blocks that are not freed
  // The thread that used a block with CU_STREAM_PER_THREAD, until it is freed; no
  // thread if several did.
  std::map<const void*, std::thread::id> threads_;
  Events spare_;
};

// Sets the allocator of a GPU for the functions below, which know only the GPU's
// number. Throws std::invalid_argument if it has an allocator over another pool, whose
// blocks are freed through the same functions.
void install_cuda_allocator(int ordinal, std::shared_ptr<CudaAllocator> allocator);

}  // namespace memcfg

// The functions that torch.cuda.memory.CUDAPluggableAllocator calls. The first throws
// std::runtime_error, whose text PyTorch raises; PyTorch does not check for null.
extern "C" {
__attribute__((visibility("default"))) void* memcfg_cuda_allocate(std::ptrdiff_t size,
                                                                  int device,
                                                                  void* stream);
__attribute__((visibility("default"))) void memcfg_cuda_free(void* address,
                                                             std::ptrdiff_t size,
                                                             int device,
                                                             void* stream);
// Does nothing if no allocator has the block, since a tensor may lie in memory of
// another library. Throws std::bad_alloc.
__attribute__((visibility("default"))) void memcfg_cuda_record_stream(void* address,
                                                                      void* stream);
}
