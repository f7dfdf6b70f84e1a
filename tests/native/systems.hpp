// Systems that refuse at will, count what they gave, and end the program when somebody
// breaks what `System` asks of its callers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "memcfg/system.hpp"

// Takes its memory past `operator new`, which a test may have made fail.
template <typename T>
struct PlainAllocator {
  using value_type = T;
  PlainAllocator() = default;
  template <typename U>
  PlainAllocator(const PlainAllocator<U>&) {}
  T* allocate(std::size_t count) {
    void* const address = std::malloc(count * sizeof(T));
    if (address == nullptr) std::abort();
    return static_cast<T*>(address);
  }
  void deallocate(T* address, std::size_t) { std::free(address); }
  template <typename U>
  bool operator==(const PlainAllocator<U>&) const {
    return true;
  }
  template <typename U>
  bool operator!=(const PlainAllocator<U>&) const {
    return false;
  }
};

// Stretches of addresses that never overlap.
class Intervals {
 public:
  using Place = std::uintptr_t;

  // Whether a byte of [first, last) is in, whether all of them are.
  bool touches(Place first, Place last) const {
    const auto next = rows_.upper_bound(first);
    if (next != rows_.end() && next->first < last) return true;
    return next != rows_.begin() && std::prev(next)->second > first;
  }
  bool has(Place first, Place last) const {
    const auto next = rows_.upper_bound(first);
    return next != rows_.begin() && std::prev(next)->second >= last;
  }
  Place end_of(Place first) const {  // 0: no stretch starts there
    const auto row = rows_.find(first);
    return row == rows_.end() ? 0 : row->second;
  }

  // Neighbours become one.
  void add(Place first, Place last) {
    auto next = rows_.upper_bound(last);
    while (next != rows_.begin() && std::prev(next)->second >= first) {
      first = std::min(first, std::prev(next)->first);
      last = std::max(last, std::prev(next)->second);
      next = rows_.erase(std::prev(next));
    }
    rows_.emplace(first, last);
  }
  // Takes [first, last) out. Returns how many bytes of it were in.
  memcfg::Bytes cut(Place first, Place last) {
    memcfg::Bytes sum = 0;
    auto row = rows_.upper_bound(first);
    if (row != rows_.begin()) --row;
    while (row != rows_.end() && row->first < last) {
      const auto [from, to] = *row;
      if (to <= first) {
        ++row;
        continue;
      }
      row = rows_.erase(row);
      if (from < first) rows_.emplace(from, first);
      if (to > last) rows_.emplace(last, to);
      sum += std::min(to, last) - std::max(from, first);
    }
    return sum;
  }
  // Keeps a stretch apart from its neighbours.
  void put(Place first, Place last) { rows_.emplace(first, last); }
  void take(Place first) { rows_.erase(first); }

 private:
  using Row = std::pair<const Place, Place>;
  std::map<Place, Place, std::less<>, PlainAllocator<Row>> rows_;
};

// The host, until `calls_left` runs out; then it refuses every call that may be
// refused, or `once`. Giving back is never refused.
class Faulty final : public memcfg::System {
 public:
  using Bytes = memcfg::Bytes;
  using Access = memcfg::Access;

  static constexpr int kMany = 1 << 30;

  mutable std::atomic<int> calls_left{kMany};
  mutable std::atomic<bool> once{false};
  mutable std::atomic<Bytes> reserved{0};   // addresses out
  mutable std::atomic<Bytes> open{0};       // committed pages that are out
  mutable std::atomic<Bytes> guarded{0};    // the same of guarded addresses
  mutable std::atomic<Bytes> metadata{0};   // addresses of metadata out
  mutable std::atomic<Bytes> allocated{0};  // blocks out
  mutable std::atomic<Bytes> most{0};       // highest open + guarded so far
  mutable std::atomic<int> hints{0};        // calls of advise_huge
  mutable std::atomic<int> decommits{0};    // calls of decommit
  mutable std::atomic<bool> eager{false};   // huge pages wherever nobody is against

  explicit Faulty(Bytes page = host().page_size()) : page_(page) {}
  ~Faulty() override = default;

  bool has_all_back() const {
    return reserved == 0 && open == 0 && guarded == 0 && metadata == 0 &&
           allocated == 0;
  }

  Bytes page_size() const noexcept override { return page_; }
  Bytes memory_size() const noexcept override { return Bytes{1} << 30; }

  void* reserve(Bytes size, Access access) const noexcept override {
    demand(size > 0 && size % page_ == 0, "reserve: not whole pages");
    void* const address = allow() ? host().reserve(size, access) : nullptr;
    if (address == nullptr) return nullptr;
    if (eager) host().advise_huge(address, size, true);
    const std::lock_guard<std::mutex> lock(mutex_);
    (access == Access::open ? open_ : guarded_)
        .put(number(address), end(address, size));
    reserved += size;
    return address;
  }

  bool commit(void* address, Bytes size, Access access) const noexcept override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      demand_inside(address, size, access);
      demand(!pages_.touches(number(address), end(address, size)),
             "commit: a page is committed already");
    }
    if (!allow() || !host().commit(address, size, access)) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    pages_.add(number(address), end(address, size));
    count(access) += size;
    most = std::max<Bytes>(most, open + guarded);
    return true;
  }

  void decommit(void* address, Bytes size, Access access) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    demand_inside(address, size, access);
    demand(pages_.has(number(address), end(address, size)),
           "decommit: a page is not committed");
    ++decommits;
    demand(!huge_.touches(number(address), end(address, size)),
           "decommit: a page of a huge unit");
    pages_.cut(number(address), end(address, size));
    count(access) -= size;
    host().decommit(address, size, access);
  }

  // What is advised has all of its pages, in whole units.
  Bytes huge_page_size() const noexcept override { return host().huge_page_size(); }
  bool advise_huge(void* address, Bytes size, bool wanted) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    demand_inside(address, size, Access::open);
    ++hints;
    if (!wanted) {
      huge_.cut(number(address), end(address, size));
      return host().advise_huge(address, size, wanted);
    }
    demand(number(address) % huge_page_size() == 0 && size % huge_page_size() == 0,
           "advise_huge: not whole units");
    demand(pages_.has(number(address), end(address, size)),
           "advise_huge: a page is not committed");
    if (!allow() || !host().advise_huge(address, size, wanted)) return false;
    huge_.add(number(address), end(address, size));
    return true;
  }
  bool is_huge(void* address, Bytes size) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return huge_.has(number(address), end(address, size));
  }

  bool reset_pages(void* address, Bytes size) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    demand(size > 0 && size % page_ == 0, "not whole pages");
    demand(pages_.has(number(address), end(address, size)),
           "reset_pages: a page is not committed");
    return allow() && host().reset_pages(address, size);
  }

  bool populate(void* address, Bytes size) const noexcept override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      demand(pages_.has(number(address), end(address, size)),
             "populate: a page is not committed");
    }
    return allow() && host().populate(address, size);
  }

  void release(void* address, Bytes size) const noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_open = open_.end_of(number(address)) == end(address, size);
    demand(is_open || guarded_.end_of(number(address)) == end(address, size),
           "release: not a reservation");
    (is_open ? open_ : guarded_).take(number(address));
    count(is_open ? Access::open : Access::guarded) -=
        pages_.cut(number(address), end(address, size));
    huge_.cut(number(address), end(address, size));
    reserved -= size;
    host().release(address, size);
  }

  void* map_metadata(Bytes size) const noexcept override {
    demand(size > 0, "map_metadata: no bytes");
    return record(allow() ? host().map_metadata(size) : nullptr, size);
  }
  void* reserve_metadata(Bytes size) const noexcept override {
    demand(size > 0 && size % host().page_size() == 0,
           "reserve_metadata: not whole pages");
    return record(allow() ? host().reserve_metadata(size) : nullptr, size);
  }
  bool commit_metadata(void* address, Bytes size) const noexcept override {
    demand(size > 0 && size % host().page_size() == 0,
           "commit_metadata: not whole pages");
    return allow() && host().commit_metadata(address, size);
  }
  void reset_metadata(void* address, Bytes size) const noexcept override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      demand(size % host().page_size() == 0, "reset_metadata: not whole pages");
      demand(metadata_.has(number(address), end(address, size)),
             "reset_metadata: no metadata");
    }
    host().reset_metadata(address, size);
  }
  void unmap_metadata(void* address, Bytes size) const noexcept override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      demand(metadata_.end_of(number(address)) == end(address, size),
             "unmap_metadata: not metadata of this size");
      metadata_.take(number(address));
    }
    metadata -= size;
    host().unmap_metadata(address, size);
  }

  void* allocate(Bytes size, Bytes alignment) const noexcept override {
    void* const address = allow() ? host().allocate(size, alignment) : nullptr;
    if (address != nullptr) allocated += size;
    return address;
  }
  void deallocate(void* address, Bytes size) const noexcept override {
    allocated -= size;
    host().deallocate(address, size);
  }

 private:
  static const memcfg::System& host() { return memcfg::host_system(); }
  static std::uintptr_t number(void* address) {
    return reinterpret_cast<std::uintptr_t>(address);
  }
  static std::uintptr_t end(void* address, Bytes size) {
    return number(address) + size;
  }

  bool allow() const noexcept {
    const int left = calls_left--;
    if (left == 0) return false;
    return left > 0 || once;
  }

  std::atomic<Bytes>& count(Access access) const {
    return access == Access::open ? open : guarded;
  }

  void* record(void* address, Bytes size) const noexcept {
    if (address == nullptr) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    metadata_.put(number(address), end(address, size));
    metadata += size;
    return address;
  }

  // The caller has broken a rule, inside a function that must not throw.
  static void demand(bool holds, const char* what) noexcept {
    if (holds) return;
    std::printf("Faulty: %s\n", what);
    std::fflush(stdout);
    std::abort();
  }
  void demand_inside(void* address, Bytes size, Access access) const noexcept {
    const Intervals& rows = access == Access::open ? open_ : guarded_;
    demand(size > 0 && size % page_ == 0, "not whole pages");
    demand(rows.has(number(address), end(address, size)), "not reserved like this");
  }

  const Bytes page_;
  mutable std::mutex mutex_;  // guards all below
  mutable Intervals open_;    // reservations
  mutable Intervals guarded_;
  mutable Intervals pages_;  // committed
  mutable Intervals huge_;   // of them: huge pages may stand behind
  mutable Intervals metadata_;
};
