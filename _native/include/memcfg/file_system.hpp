// The pages of a mapped file, as a system for one heap.
#pragma once

#include "memcfg/system.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// One reservation, of all pages there are, which have memory from the beginning: the
// file's. Nothing is ever given back below. The memory is the file's and not counted as
// the host's, the metadata of a heap are those of another system.
class FileSystem final : public BorrowedMetadata {
 public:
  FileSystem(void* address, Bytes size, const System& metadata) noexcept
      : BorrowedMetadata(metadata), address_(address), size_(size) {}

  Bytes page_size() const noexcept override { return host_system().page_size(); }
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
  void* allocate(Bytes, Bytes) const noexcept override { return nullptr; }
  void deallocate(void*, Bytes) const noexcept override {}

 private:
  void* const address_;
  const Bytes size_;
  mutable bool reserved_ = false;
};

}  // namespace memcfg
