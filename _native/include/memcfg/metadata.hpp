// Memory for a heap's own metadata: it never moves, so others may read while it grows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// `count` zeroed records in pages that are allocated on first touch.
// Pre: a T of zero bytes is a valid T, and needs no destructor.
template <typename T>
class MetadataArray {
 public:
  MetadataArray() = default;
  MetadataArray(const System& system, std::size_t count)  // throws std::bad_alloc
      : system_(&system), count_(count) {
    records_ = static_cast<T*>(system.map_metadata(bytes()));
    if (records_ == nullptr) throw std::bad_alloc();
  }
  ~MetadataArray() {
    if (records_ != nullptr) system_->unmap_metadata(records_, bytes());
  }
  MetadataArray(MetadataArray&& other) noexcept {
    *this = static_cast<MetadataArray&&>(other);
  }
  MetadataArray& operator=(MetadataArray&& other) noexcept {
    std::swap(system_, other.system_);
    std::swap(records_, other.records_);
    std::swap(count_, other.count_);
    return *this;
  }
  MetadataArray(const MetadataArray&) = delete;
  MetadataArray& operator=(const MetadataArray&) = delete;

  T& operator[](std::size_t index) const noexcept { return records_[index]; }

  // Every record is zero again, and its memory goes back.
  void reset() noexcept {
    if (records_ != nullptr) system_->reset_metadata(records_, bytes());
  }
  T* data() const noexcept { return records_; }
  Bytes bytes() const noexcept { return count_ * sizeof(T); }

 private:
  const System* system_ = nullptr;
  T* records_ = nullptr;
  std::size_t count_ = 0;
};

// Records by number, from 1; a spare one is linked to the next by T::link(). Reading a
// record needs no lock: it stays where it is until the store goes.
template <typename T>
class Store : private NoCopy {
 public:
  using Id = std::uint32_t;

  // Addresses for the maximum of records, or as many as the system grants. Throws
  // std::bad_alloc.
  explicit Store(const System& system) : system_(system) {
    const Bytes share = system.memory_size() / kShare;
    const Bytes maximum = std::clamp(share, kLeastBytes, kMostBytes);
    for (std::size_t steps = maximum / sizeof(T) / kStep; steps > 0; steps /= 2) {
      limit_ = steps * kStep;
      records_ = static_cast<T*>(system.reserve_metadata(limit_ * sizeof(T)));
      if (records_ != nullptr) return;
    }
    throw std::bad_alloc();
  }
  ~Store() { system_.unmap_metadata(records_, limit_ * sizeof(T)); }

  T& operator[](Id id) const noexcept { return records_[id]; }

  // Post: the next `count` takes succeed. Throws std::bad_alloc, nothing changed.
  void secure(std::size_t count) {
    while (spare_count_ + end_ < count + next_) add_step();
  }

  // Pre: secured. The record is zeroed, or as it was given.
  Id take() noexcept {
    if (spare_ == 0) return next_++;
    const Id id = spare_;
    spare_ = records_[id].link();
    --spare_count_;
    return id;
  }

  void release(Id id) noexcept {
    records_[id].link() = spare_;
    spare_ = id;
    ++spare_count_;
  }

  // Post: no record is allocated, and the memory of all goes back.
  void reset() noexcept {
    if (end_ > 0) system_.reset_metadata(records_, end_ * sizeof(T));
    next_ = 1;
    spare_ = 0;
    spare_count_ = 0;
  }

  // Bytes of the records that were ever allocated.
  Bytes bytes() const noexcept { return Bytes{next_} * sizeof(T); }

 private:
  static constexpr std::size_t kStep = 4096;  // records
  static constexpr Bytes kMostBytes = Bytes{4} << 30;
  static constexpr Bytes kLeastBytes = Bytes{64} << 20;
  static constexpr Bytes kShare = 16;  // of the memory: one part in so many

  void add_step() {
    if (end_ + kStep > limit_) throw std::bad_alloc();
    if (!system_.commit_metadata(records_ + end_, kStep * sizeof(T))) {
      throw std::bad_alloc();
    }
    end_ += static_cast<Id>(kStep);
  }

  const System& system_;
  T* records_ = nullptr;
  std::size_t limit_ = 0;
  Id next_ = 1;  // 0 is no record
  Id end_ = 0;   // records before it have memory
  Id spare_ = 0;
  std::size_t spare_count_ = 0;
};

}  // namespace memcfg
