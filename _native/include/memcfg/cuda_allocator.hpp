// Blocks of a GPU's pool for other libraries, which free them while work that uses them
// is still queued.
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

// Whoever frees a block names the stream of the work that used it; other streams that
// use it are recorded before. On its stream it may be handed out again at once, to a
// request of its size, unless others were recorded whose work is not done; it goes back
// to the pool, and so to others, when what was queued on all of these before is done.
// Until then it counts against the pool's limit. Any thread may use it. Blocks are
// aligned to 512 bytes.
//
// CU_STREAM_PER_THREAD is another stream in each thread, and no thread can name that of
// another. A block that several threads took, recorded or freed by that name goes back
// behind the default stream of all threads, which follows each of theirs.
//
// What is freed while one of its streams is captured never comes back: the graph uses
// it whenever it is launched.
class CudaAllocator final : public PendingFrees {
 public:
  // `tag` tells who holds the blocks.
  CudaAllocator(std::shared_ptr<Pool> pool,
                std::shared_ptr<const CudaContext> context,
                std::string tag);
  ~CudaAllocator() override;  // as `settle`; blocks that are out stay the pool's

  // Null for no bytes. Throws out_of_memory when the pool refuses, kernel_failure, also
  // amid a capture of the stream, and in a forked child std::runtime_error.
  void* allocate(Bytes size, cuda::Stream* stream);
  // Has the block's free wait for another stream, too, which exists until then. False:
  // no block starts there. Throws std::bad_alloc.
  bool record(void* address, cuda::Stream* stream);
  // False: no block starts there. A null address is none, and well.
  bool free(void* address, cuda::Stream* stream) noexcept;
  void collect() noexcept override;
  void settle() noexcept override;
  // Bytes, as asked for, of the freed blocks that are not the pool's again.
  Bytes waiting() const;

  const Pool& pool() const noexcept { return *pool_; }

 private:
  using Streams = std::vector<cuda::Stream*>;
  using Events = std::vector<std::unique_ptr<CudaEvent>>;
  struct Freed {
    void* address;
    Bytes size;  // as asked for
    cuda::Stream* stream;
    Events events;  // what was queued before, there and elsewhere; none: for ever
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
  std::map<const void*, Streams> recorded_;  // of blocks that are out
  // Of blocks that are out, whose stream by CU_STREAM_PER_THREAD; no thread: several's.
  std::map<const void*, std::thread::id> threads_;
  Events spare_;
};

// The allocator of a GPU that the functions below use; they take no other parameter.
// Throws std::invalid_argument where another is there already, since its blocks come
// back through the same function.
void install_cuda_allocator(int ordinal, std::shared_ptr<CudaAllocator> allocator);

}  // namespace memcfg

// What torch.cuda.memory.CUDAPluggableAllocator calls. The first throws
// std::runtime_error, whose text PyTorch raises: a null address it would not look at.
extern "C" {
__attribute__((visibility("default"))) void* memcfg_cuda_allocate(std::ptrdiff_t size,
                                                                  int device,
                                                                  void* stream);
__attribute__((visibility("default"))) void memcfg_cuda_free(void* address,
                                                             std::ptrdiff_t size,
                                                             int device,
                                                             void* stream);
// Nothing where no allocator has the block: a tensor may be of another library's
// memory. Throws std::bad_alloc.
__attribute__((visibility("default"))) void memcfg_cuda_record_stream(void* address,
                                                                      void* stream);
}
