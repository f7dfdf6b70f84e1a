// The pages of a mapped file, as a system for one heap.
#pragma once

#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// One reservation, of all pages there are, which have memory from the beginning: the
// file's. Nothing is ever given back below. The memory is the file's and not counted as
// the host's, the books of a heap are those of another system.
class FileSystem final : public System {
 public:
  FileSystem(void* address, Bytes size, const System& books) noexcept
      : address_(address), size_(size), books_(books) {}

  Bytes page_size() const noexcept override { return host_system().page_size(); }
  Bytes memory_size() const noexcept override { return books_.memory_size(); }
  bool on_host() const noexcept override { return false; }

  void* reserve(Bytes size, Access) const noexcept override {
    if (reserved_ || size != size_) return nullptr;
    reserved_ = true;
    return address_;
  }
  bool commit(void*, Bytes, Access) const noexcept override { return true; }
  void decommit(void*, Bytes, Access) const noexcept override {}
  bool populate(void*, Bytes) const noexcept override { return true; }
  void release(void*, Bytes) const noexcept override { reserved_ = false; }

  void* map_books(Bytes size) const noexcept override { return books_.map_books(size); }
  void unmap_books(void* address, Bytes size) const noexcept override {
    books_.unmap_books(address, size);
  }
  void* reserve_books(Bytes size) const noexcept override {
    return books_.reserve_books(size);
  }
  bool commit_books(void* address, Bytes size) const noexcept override {
    return books_.commit_books(address, size);
  }
  void forget_books(void* address, Bytes size) const noexcept override {
    books_.forget_books(address, size);
  }
  void* allocate(Bytes, Bytes) const noexcept override { return nullptr; }
  void deallocate(void*, Bytes) const noexcept override {}

 private:
  void* const address_;
  const Bytes size_;
  const System& books_;
  mutable bool reserved_ = false;
};

}  // namespace memcfg
