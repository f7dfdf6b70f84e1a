// Blocks of a pool for a library of the host that takes them in any thread, frees them
// by their address alone, and is not linked with this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/types.hpp"

extern "C" {

// What is told of a request that was refused, in bytes; SIZE_MAX is no limit.
struct memcfg_refusal {
  std::uint64_t number;  // of the refusal, from 1
  std::size_t requested;
  std::size_t in_use;
  std::size_t limit;
  const char* sentence;  // without the numbers; never freed
};

// What the library calls. Nothing throws; any thread may call.
struct memcfg_host_functions {
  std::uint32_t version;  // of this struct: 1
  void* context;          // the first argument of all
  // Memory aligned to 64 bytes; null: refused, and `refusal` is written. `tag` names
  // who holds it where the thread has set no tag. Pre: size > 0.
  void* (*allocate)(void* context,
                    std::size_t size,
                    const char* tag,
                    struct memcfg_refusal* refusal);
  // 0: no block of the pool starts there, and nothing has changed.
  int (*free)(void* context, void* address);
};
}

namespace memcfg {

// Blocks may come back at any time until the process ends, so it is never destroyed
// once its functions were handed out, and keeps the pool.
class HostAllocator : private NoCopy {
 public:
  // Pre: the pool's memory can be touched.
  explicit HostAllocator(std::shared_ptr<Pool> pool);

  const memcfg_host_functions& functions() const noexcept { return functions_; }

  // Null where the pool refuses. A tag for which the pool has no number is left out.
  void* allocate(Bytes size, const char* tag, memcfg_refusal& refusal) noexcept;
  bool free(void* address) noexcept { return pool_->release(address); }

  // What was refused under a number, if it is one of the last.
  std::optional<OutOfMemoryInfo> refusal(std::uint64_t number) const;

 private:
  static constexpr std::size_t kKept = 64;  // refusals

  void* try_allocate(Bytes size, std::string_view tag);
  // Pre: the sentence is never freed.
  void keep(const OutOfMemoryInfo& info,
            const char* sentence,
            memcfg_refusal& refusal) noexcept;

  const std::shared_ptr<Pool> pool_;
  memcfg_host_functions functions_;
  mutable std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::deque<std::pair<std::uint64_t, OutOfMemoryInfo>> refusals_;
};

// The tag of what the calling thread allocates through any `HostAllocator`; null: none.
// Returns the one before.
const std::string* swap_thread_tag(const std::string* tag) noexcept;

// The same string for the same text, as long as the process lives. Pre: callers exclude
// one another, and forks.
const std::string* intern_tag(const std::string& text);

}  // namespace memcfg
