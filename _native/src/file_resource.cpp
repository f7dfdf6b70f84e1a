#include "memcfg/file_resource.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {

// The end grows that has to grow less.
void FileResource::Used::note(Offset first, Offset last) noexcept {
  if (last <= low || first >= high) return;
  if (last - low <= high - first) {
    low = last;
    high = std::max(low, high);
  } else {
    high = std::max(low, first);
  }
}

FileResource::FileResource(FileOptions options,
                           const FileOperations& files,
                           const System& metadata)
    : mapping_(files, options),
      name_(std::move(options.path)),
      usable_(std::max(round_down(mapping_.size(), kAlignment), kAlignment)),
      system_(mapping_.address(),
              round_up(mapping_.size(), host_system().page_size()),
              metadata),
      heap_(std::make_unique<Heap>(system_)),
      used_{std::min(mapping_.old_size(), usable_), usable_} {
  const Bytes pages = round_up(mapping_.size(), system_.page_size());
  tail_ = pages - usable_;
  try {
    const ChunkId all = heap_->allocate(pages, kAlignment, Lifetime::unknown).id;
    heap_->release((*heap_)[all]);
    if (tail_ > 0) heap_->allocate(tail_, kAlignment, Lifetime::short_lived);
  } catch (const AllocationFailed&) {  // a heap that asks for what there is cannot fail
    throw invariant_broken("a heap cannot allocate the pages of its file");
  }
  mapping_.commit();
}

// What a block takes of the heap: whole lines, but the last one of the file.
Bytes FileResource::chunk_bytes(Bytes size) const noexcept {
  return std::min(align_up(size), usable_);
}

Offset FileResource::offset_of(const void* address) const noexcept {
  return static_cast<Offset>(static_cast<const std::byte*>(address) -
                             static_cast<const std::byte*>(mapping_.address()));
}

void FileResource::require_open() const {
  if (heap_ == nullptr) throw std::invalid_argument("the file is closed");
  if (mapping_.exclusive()) return;
  throw std::runtime_error("in the child of a fork the file is still its parent's");
}

void* FileResource::allocate(const Request& request) {
  require_valid(request);
  bool zero = request.zeroed;
  void* const address = allocate_bytes(request, zero);
  try {
    ledger_.add(address, request, align_up(request.size));
  } catch (...) {
    release_chunk(address);
    throw;
  }
  if (zero) std::memset(address, 0, request.size);
  return address;
}

// `zero`: whether the bytes are to be zero; post: whether they are to be made so.
void* FileResource::allocate_bytes(const Request& request, bool& zero) {
  try {
    const ForkLock lock(mutex_);
    require_open();
    if (request.size > size()) throw AllocationFailed{OutOfMemoryInfo::file_full};
    return allocate_in_heap(request, zero);
  } catch (const AllocationFailed&) {
    throw out_of_memory_error(*this, why_not(request.size), request.size);
  }
}

// Pre: the lock is held.
void* FileResource::allocate_in_heap(const Request& request, bool& zero) {
  const Bytes bytes = chunk_bytes(request.size);
  void* const address = find_chunk(bytes, request.alignment, request.lifetime);
  const Offset first = offset_of(address);
  const bool fresh = used_.low <= first && first + bytes <= used_.high;
  used_.note(first, first + bytes);
  zero = zero && !(fresh && mapping_.owned());
  return address;
}

// The heap wants bytes to move a block to an aligned address. Where there are none
// left, the block may be aligned by itself: the first of a file does.
void* FileResource::find_chunk(Bytes bytes, Bytes alignment, Lifetime lifetime) {
  const auto address = [this](ChunkId id) { return (*heap_)[id].address.load(); };
  if (alignment > kAlignment) {
    try {
      const ChunkId id = heap_->allocate(bytes, alignment, lifetime).id;
      return reinterpret_cast<void*>(address(id));
    } catch (const AllocationFailed&) {
      lifetime = Lifetime::unknown;  // from the low end
    }
  }
  const ChunkId id = heap_->allocate(bytes, kAlignment, lifetime).id;
  if (alignment <= kAlignment || address(id) % alignment == 0) {
    return reinterpret_cast<void*>(address(id));
  }
  heap_->release((*heap_)[id]);
  throw AllocationFailed{OutOfMemoryInfo::fragmented};
}

OutOfMemoryInfo::Cause FileResource::why_not(Bytes size) const {
  if (size > std::min(usable_, this->size())) return OutOfMemoryInfo::file_full;
  const ForkLock lock(mutex_);
  const bool fits = heap_ != nullptr && chunk_bytes(size) <= heap_->spare();
  return fits ? OutOfMemoryInfo::fragmented : OutOfMemoryInfo::file_full;
}

void FileResource::release_chunk(void* address) noexcept {
  const ForkLock lock(mutex_);
  if (heap_ != nullptr) heap_->release((*heap_)[heap_->find(address)]);
}

void FileResource::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  release_chunk(address);
}

bool FileResource::resize(void* address, Bytes size, Bytes new_size) {
  require_valid_size(new_size);
  return ledger_.resize(
      address, size, new_size, [&] { return change(address, size, new_size); });
}

bool FileResource::change(void* address, Bytes size, Bytes new_size) {
  if (new_size > this->size()) return false;
  const Bytes before = chunk_bytes(size);
  const Bytes now = chunk_bytes(new_size);
  const ForkLock lock(mutex_);
  if (heap_ == nullptr) return false;
  Chunk& chunk = (*heap_)[heap_->find(address)];
  const Offset first = offset_of(address);
  try {
    if (now < before) return heap_->shrink(chunk, now);
    if (now > before && !heap_->extend(chunk, now)) return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  used_.note(first, first + now);
  return true;
}

ResourceStats FileResource::stats() const {
  ResourceStats stats = ledger_.stats();
  stats.limit = align_up(size());
  const ForkLock lock(mutex_);
  stats.largest_free = 0;
  if (heap_ == nullptr) return stats;
  stats.reserved = stats.peak_reserved = stats.addresses = stats.limit;
  stats.free_bytes = stats.reserved - std::min(stats.reserved, stats.current);
  const Bytes largest = heap_->largest_spare();
  const bool empty = largest == usable_;  // then a block of the whole file fits
  stats.largest_free_chunk = std::min(stats.free_bytes, empty ? stats.limit : largest);
  stats.largest_free = empty ? size() : largest;
  stats.metadata += heap_->metadata();
  return stats;
}

void FileResource::check() const {
  ledger_.check();
  const ForkLock lock(mutex_);
  if (heap_ == nullptr) return;
  heap_->check();
  require(heap_->addresses() == usable_ + tail_, "the heap is not the whole file");
  require(heap_->allocated() >= tail_, "the end of the last page is free");
  require(used_.low <= used_.high && used_.high <= usable_, "the file's ends overlap");
}

bool FileResource::closed() const {
  const ForkLock lock(mutex_);
  return heap_ == nullptr;
}

void FileResource::close() {
  std::unique_ptr<Heap> heap;
  {
    const ForkLock lock(mutex_);
    if (heap_ != nullptr && heap_->allocated() > tail_) {
      throw still_held("the file cannot be closed: blocks of it, " +
                       std::to_string(heap_->allocated() - tail_) + " bytes, are out");
    }
    heap.swap(heap_);
  }
  try {
    mapping_.close();
  } catch (...) {
    const ForkLock lock(mutex_);
    if (heap_ == nullptr) heap_.swap(heap);
    throw;
  }
}

void FileResource::abandon() {
  {
    const ForkLock lock(mutex_);
    heap_.reset();
  }
  mapping_.close();
}

}  // namespace memcfg
