// The caches of a pool: small blocks that a thread keeps, and some of the limit.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "memcfg/free_chunks.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/owner_lock.hpp"
#include "memcfg/resource.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

using Tag = std::uint32_t;  // a tag's number in its pool; 0 is the empty tag

// Counts of blocks. A thread's cache counts changes, which may be negative: a block can
// be freed by another thread than the one that allocated it.
struct BlockCounts {
  std::int64_t requested = 0;  // bytes, as asked for
  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::vector<std::int64_t> charged;  // bytes by tag, rounded up to kAlignment

  void allocate(Bytes size, Bytes charge, Tag tag) noexcept {
    resize(size, charge, tag);
    ++allocations;
  }
  void deallocate(Use use, Bytes charge) noexcept {
    requested -= static_cast<std::int64_t>(use.requested());
    charged[use.tag()] -= static_cast<std::int64_t>(charge);
    ++deallocations;
  }
  // Sizes modulo 2^64: a block that shrinks changes by less than nothing.
  void resize(Bytes more, Bytes more_charge, Tag tag) noexcept {
    requested += static_cast<std::int64_t>(more);
    charged[tag] += static_cast<std::int64_t>(more_charge);
  }
  // Pre: it has no tag that this lacks.
  void add(const BlockCounts& other) noexcept;
};

// Names of tags by number. Used under the pool's lock.
class TagTable {
 public:
  static constexpr Tag kUnknown = ~Tag{0};

  Tag find(std::string_view name) const noexcept;  // kUnknown: it has no number
  // Pre: it has no number. Throws std::invalid_argument where all are given out,
  // std::bad_alloc; nothing has changed then.
  Tag add(std::string_view name);
  bool full() const noexcept;  // all numbers are given out
  // Takes numbers back of which idle(tag) is true and that no arena has.
  void recycle(const std::function<bool(Tag)>& idle);

  void add_arena(Tag tag) noexcept { ++arenas_[tag]; }
  void remove_arena(Tag tag) noexcept { --arenas_[tag]; }

  std::size_t count() const noexcept { return arenas_.size(); }  // numbers ever used
  // As long as the number has the name.
  std::string_view name(Tag tag) const noexcept {
    return names_[tag] == nullptr ? std::string_view() : *names_[tag];
  }
  std::vector<std::string> names() const;  // by number
  Owners owners(const std::vector<std::int64_t>& charged) const;

 private:
  std::map<std::string, Tag, std::less<>> numbers_;
  std::vector<std::uint32_t> arenas_ = {0};            // how many there are, by tag
  std::vector<const std::string*> names_ = {nullptr};  // keys of `numbers_`, by tag
  std::vector<Tag> spare_;                             // numbers that no tag has
};

// A request reserves its bytes, takes memory, and commits them, or rolls them back. The
// quotas of thread caches are reserved for blocks to come.
//
//     charged() == in use + uncommitted + quotas <= limit(),  in use <= peak.
//
// Sizes are bytes, multiples of kAlignment. Used under the pool's lock, but for
// limit().
class LimitAccounting {
 public:
  // `host`: the limit of all pools is on these bytes too; null: it is not.
  LimitAccounting(Bytes limit, HostMeter* host) noexcept : limit_(limit), host_(host) {}
  ~LimitAccounting() { release(charged_); }

  Bytes limit() const noexcept { return limit_.load(std::memory_order_relaxed); }
  void set_limit(Bytes limit) noexcept { limit_.store(limit); }  // pre: >= charged()

  Bytes charged() const noexcept { return charged_; }
  Bytes max_used() const noexcept { return max_used_; }  // the peak of all time
  Bytes in_use(Bytes quotas) const noexcept { return charged_ - uncommitted_ - quotas; }
  // `min_quotas`: the sum of the lowest quota that each cache had since note_peak.
  Bytes peak(Bytes min_quotas) const noexcept {
    return std::max(peak_, in_use(min_quotas));
  }

  bool fits(Bytes size) const noexcept { return size <= limit() - charged_; }
  void reserve(Bytes size) {  // throws AllocationFailed, nothing changed
    if (!fits(size)) throw AllocationFailed{OutOfMemoryInfo::limit_reached};
    if (host_ != nullptr && !host_->reserve_tracked(size)) {
      throw AllocationFailed{OutOfMemoryInfo::tracked_limit};
    }
    charged_ += size;
    uncommitted_ += size;
  }
  void commit(Bytes size) noexcept { uncommitted_ -= size; }
  void roll_back(Bytes size) noexcept {
    commit(size);
    release(size);
  }
  void release(Bytes size) noexcept {
    charged_ -= size;
    if (host_ != nullptr) host_->release_tracked(size);
  }

  // Between two notes no quota falls below the lowest that its cache saw, so no more
  // was in use than in_use(min_quotas).
  void note_peak(Bytes min_quotas) noexcept {
    peak_ = peak(min_quotas);
    max_used_ = std::max(max_used_, peak_);
  }
  void reset_peak(Bytes quotas) noexcept { peak_ = in_use(quotas); }

 private:
  std::atomic<Bytes> limit_;
  HostMeter* const host_;
  Bytes charged_ = 0;
  Bytes uncommitted_ = 0;
  Bytes peak_ = 0;
  Bytes max_used_ = 0;
};

// Multiples of kAlignment up to 4 KiB, then 32 sizes for each doubling: a block is
// at most 1/32 larger than its request rounded up to kAlignment.
class SizeClass {
 public:
  static constexpr Bytes kLargest = Bytes{64} << 10;  // bytes; above it sizes are exact
  static constexpr std::size_t kCount = 192;          // classes are numbered from 0

  // Pre: 0 < size <= kLargest.
  static std::size_t of(Bytes size) noexcept {
    const Bytes granule = (size - 1) / kAlignment;
    return granule < kExact ? granule : kTables.class_of[granule];
  }
  // Bytes of a block of the class.
  static Bytes size(std::size_t number) noexcept { return kTables.size_of[number]; }

  // What a block takes for a request that is rounded up to kAlignment.
  static Bytes block(Bytes size) noexcept {
    return size > kLargest ? size : kTables.size_of[of(size)];
  }

 private:
  static constexpr std::size_t kGranules = kLargest / kAlignment;
  static constexpr std::size_t kExact = 64;  // classes that differ by one granule
  struct Tables {
    std::array<std::uint8_t, kGranules> class_of{};  // by granules - 1
    std::array<std::uint32_t, kCount> size_of{};
    constexpr Tables() {
      std::size_t number = 0;
      std::size_t granules = 0;
      for (std::size_t step = 1; granules < kGranules; ++number) {
        if (granules >= kExact * step) step *= 2;
        for (std::size_t i = 0; i < step; ++i) {
          class_of[granules + i] = static_cast<std::uint8_t>(number);
        }
        granules += step;
        size_of[number] = static_cast<std::uint32_t>(granules * kAlignment);
      }
    }
  };
  static const Tables kTables;
};

inline constexpr SizeClass::Tables SizeClass::kTables{};

// Small blocks come and go here without the pool's lock. The pool has charged `quota`
// bytes for blocks to come: those of the blocks that were freed here. A number of the
// pool is its own plus those of its caches.
//
//     kept == sum of the stacks' blocks <= max_kept.
//
// One larger block is kept as well, until its owner does anything that takes the pool's
// lock: enough for a loop that allocates and frees one such block at a time.
//
// Used by its owner inside `lock`, or by whoever holds the pool's lock and has revoked
// this one (the owner itself need not revoke it).
struct alignas(128) ThreadCache {            // two lines: they are fetched in pairs
  static constexpr std::size_t kDepth = 30;  // blocks of one class
  static constexpr Bytes kMaxLarge = Bytes{32} << 20;  // bytes of the larger block

  // The last of the chunks is `top` as well: it is found without the count.
  struct alignas(64) Stack {
    Chunk* top = nullptr;
    std::uint32_t count = 0;
    std::array<Chunk*, kDepth> chunks{};

    void push(Chunk& chunk) noexcept { chunks[count++] = top = &chunk; }
    Chunk* pop() noexcept {  // pre: there is one
      Chunk* const chunk = top;
      top = --count == 0 ? nullptr : chunks[count - 1];
      __builtin_prefetch(top, 1);  // of null: nothing
      return chunk;
    }
    // The blocks that were put first go.
    void drop(std::size_t some) noexcept {
      std::copy(chunks.begin() + some, chunks.begin() + count, chunks.begin());
      count -= static_cast<std::uint32_t>(some);
      if (count == 0) top = nullptr;
    }
  };

  OwnerLock lock;
  Chunk* last = nullptr;  // that the owner took; only the owner looks
  Bytes quota = 0;
  std::atomic<Bytes> min_quota{0};  // since the owner's pool last noted its peak
  Bytes kept = 0;                   // bytes of the blocks in the stacks
  Bytes max_kept = 0;
  Chunk* large = nullptr;  // a block above SizeClass::kLargest
  Bytes max_large = 0;
  BlockCounts counts;                            // changes since the pool read them
  std::map<std::string, Tag, std::less<>> tags;  // those that the owner has used
  const std::pair<const std::string, Tag>* last_tag = nullptr;  // found among them
  std::array<Stack, SizeClass::kCount> stacks{};
  std::size_t next_stack = 0;  // to be flushed
  std::uint32_t overflows = 0;

  // Null: there is no block of this class, or the quota is used up.
  // Pre: charge is the size rounded up to kAlignment.
  Chunk* take(Bytes size, Bytes charge, Tag tag) noexcept {
    Stack& stack = stacks[SizeClass::of(charge)];
    if (stack.top == nullptr || quota < charge) return nullptr;
    Chunk* const chunk = stack.pop();
    kept -= chunk->size;
    commit(*chunk, size, charge, tag);
    return chunk;
  }

  // The same for a size above SizeClass::kLargest. Null: no block of it is here.
  Chunk* take_large(Bytes size, Bytes charge, Tag tag) noexcept {
    if (large == nullptr || large->size != charge || quota < charge) return nullptr;
    Chunk* const chunk = std::exchange(large, nullptr);
    commit(*chunk, size, charge, tag);
    return chunk;
  }

  void commit(Chunk& chunk, Bytes size, Bytes charge, Tag tag) noexcept {
    quota -= charge;
    if (quota < min_quota.load(std::memory_order_relaxed)) {
      min_quota.store(quota, std::memory_order_relaxed);
    }
    counts.allocate(size, charge, tag);
    chunk.use.store(Use(size, tag).word(), std::memory_order_relaxed);
    last = &chunk;
  }

  // False: the cache is full. Pre: the chunk is nobody's, and was used as `use` says.
  bool put(Chunk& chunk, Use use, Bytes charge) noexcept {
    Stack& stack = stacks[SizeClass::of(charge)];
    if (stack.count == kDepth || kept + chunk.size > max_kept ||
        use.tag() >= counts.charged.size() || chunk.size != SizeClass::block(charge)) {
      return false;
    }
    stack.push(chunk);
    kept += chunk.size;
    accept(use, charge);
    return true;
  }

  // The same for a size above SizeClass::kLargest.
  bool put_large(Chunk& chunk, Use use, Bytes charge) noexcept {
    if (large != nullptr || charge > max_large || use.tag() >= counts.charged.size() ||
        chunk.size != charge) {
      return false;
    }
    large = &chunk;
    accept(use, charge);
    return true;
  }

  void accept(Use use, Bytes charge) noexcept {
    quota += charge;
    counts.deallocate(use, charge);
  }

  Bytes kept_in_all() const noexcept {
    return kept + (large == nullptr ? 0 : large->size);
  }

  // Changes the size of a block within its class; false: the pool must, as where
  // nothing may be kept. What it needs less is kept as long as blocks are that could
  // use it.
  bool resize(Chunk& chunk, Use use, Bytes size) noexcept {
    const Bytes before = round_up(use.requested(), kAlignment);
    const Bytes now = round_up(size, kAlignment);
    const Bytes left = quota + before;
    if (max_kept == 0 || now > SizeClass::kLargest ||
        SizeClass::block(now) != chunk.size || use.tag() >= counts.charged.size() ||
        left < now || (now < before && left - now > kept_in_all())) {
      return false;
    }
    quota = left - now;
    if (quota < min_quota.load(std::memory_order_relaxed)) {
      min_quota.store(quota, std::memory_order_relaxed);
    }
    counts.resize(size - use.requested(), now - before, use.tag());
    return true;
  }

  // The next stack, round robin, that has a block. Pre: there is one, or any will do.
  std::size_t next_to_flush() noexcept {
    for (std::size_t i = 0; i < stacks.size(); ++i) {
      next_stack = (next_stack + 1) % stacks.size();
      if (stacks[next_stack].count > 0) break;
    }
    return next_stack;
  }

  // A tag's number, if the owner has used it before; else TagTable::kUnknown.
  Tag find_tag(std::string_view name) noexcept {
    return name.empty() ? 0 : find_named(name);
  }
  Tag find_named(std::string_view name) noexcept;
  void reset_tags() noexcept {
    last_tag = nullptr;
    tags.clear();
  }
};

// Used under the pool's lock. What says so revokes the caches of other threads while it
// works on them; revoking does not nest.
class ThreadCaches : private NoCopy {
 public:
  // Pre: both outlive it.
  ThreadCaches(Heap& heap, LimitAccounting& accounting)
      : heap_(heap), accounting_(accounting) {}

  // Throws std::bad_alloc, nothing changed.
  void add(std::shared_ptr<ThreadCache> cache, std::size_t tags);
  // Its thread ends: its blocks and quota go, its counts are added.
  void retire(const ThreadCache* cache, BlockCounts& counts) noexcept;

  void revoke() noexcept;  // until `restore` no owner is inside its cache
  void restore() noexcept;
  void reset_owners() noexcept;  // in the child of a fork; pre: revoked

  void release_quotas() noexcept;  // revokes
  void flush() noexcept;           // revokes; blocks and quotas go

  // Pre of those that follow: the caches are revoked.
  void flush_large_blocks() noexcept;
  void set_bounds(Bytes limit) noexcept;  // on the bytes that each may keep
  // Until `open` nothing goes through a cache. Blocks and quotas go.
  void close() noexcept;
  void open() noexcept;
  void reset_tags() noexcept;
  void reset_peak() noexcept;
  Bytes quotas() const noexcept;
  void add_counts(BlockCounts& counts) const noexcept;

  // Pre of those that follow: the cache is revoked or one's own.
  void flush_large(ThreadCache& cache) noexcept {
    if (cache.large != nullptr) release_large(cache);
  }
  // Some of the blocks go, so that another of `charge` bytes can be kept.
  void make_space(ThreadCache& cache, Bytes charge) noexcept;

  // `own`: the calling thread's, whose lowest quota is noted anew; null: none.
  void note_peak(ThreadCache* own) noexcept {
    accounting_.note_peak(min_quotas());
    if (own != nullptr) own->min_quota.store(own->quota, std::memory_order_relaxed);
  }
  Bytes min_quotas() const noexcept {
    Bytes sum = 0;
    for (const auto& cache : caches_) {
      sum += cache->min_quota.load(std::memory_order_relaxed);
    }
    return sum;
  }
  std::size_t size() const noexcept { return caches_.size(); }

 private:
  void set_bound(ThreadCache& cache, Bytes limit) const noexcept;
  void flush(ThreadCache& cache, ThreadCache::Stack& stack, std::size_t count) noexcept;
  void flush(ThreadCache& cache) noexcept;
  void release_large(ThreadCache& cache) noexcept;
  void set_quota(ThreadCache& cache, Bytes quota) noexcept;

  Heap& heap_;
  LimitAccounting& accounting_;
  std::vector<std::shared_ptr<ThreadCache>> caches_;
  bool closed_ = false;
};

// While it lives, the caches are revoked. Pre: the pool's lock is held as long.
class CachesRevoked : private NoCopy {
 public:
  explicit CachesRevoked(ThreadCaches& caches) noexcept : caches_(caches) {
    caches_.revoke();
  }
  ~CachesRevoked() { caches_.restore(); }

 private:
  ThreadCaches& caches_;
};

}  // namespace memcfg
