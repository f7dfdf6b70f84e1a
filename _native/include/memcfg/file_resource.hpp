// Blocks in a file.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "memcfg/file_mapping.hpp"
#include "memcfg/heap.hpp"
#include "memcfg/ledger.hpp"
#include "memcfg/resource.hpp"
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

  void* reserve(Bytes size, Access) const noexcept override {
    if (reserved_ || size != size_) return nullptr;
    reserved_ = true;
    return address_;
  }
  void release(void*, Bytes) const noexcept override { reserved_ = false; }

 private:
  void* const address_;
  const Bytes size_;
  mutable bool reserved_ = false;
};

// A heap in the mapping of a file: a block's bytes are the file's. No block reaches
// behind the file's last byte, so the bytes of a last line of less than kAlignment are
// only in a block of the whole file. In the child of a fork blocks are the child's own
// (see FileMapping); where the options share the pages, a request of a child throws
// std::runtime_error, since its metadata are a copy of its parent's.
//
// Invariant: heap's chunks == the ledger's blocks and the tail behind them;
// current <= reserved == file's bytes, rounded up to kAlignment.
class FileResource final : public LedgerResource {
 public:
  // Throws file_error, std::invalid_argument, std::bad_alloc; file and folder are then
  // as they were.
  explicit FileResource(FileOptions options,
                        const FileOperations& files = host_files(),
                        const System& metadata = host_system());

  const std::string& name() const noexcept override { return name_; }
  bool touchable() const noexcept override { return true; }
  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool resize(void* address, Bytes size, Bytes new_size) override;
  ResourceStats stats() const override;
  void check() const override;

  Bytes size() const noexcept { return mapping_.size(); }  // bytes of the file

  // As those of FileMapping.
  void flush() { mapping_.flush(); }
  Bytes drop(Bytes from, Bytes size) { return mapping_.drop(from, size); }

  // Pre: `address` is in the file. Its offset, in bytes from the beginning.
  Offset offset_of(const void* address) const noexcept;

  // Throws still_held while blocks are out, else as FileMapping::close does; it is not
  // closed then. Afterwards a request is std::invalid_argument.
  void close();
  bool closed() const;

  // The same while blocks are out, whose memory ends. It is closed, whatever is thrown.
  void abandon();

 private:
  // Bytes at the low and the high end that blocks have had, or that were there before.
  // What lies between is zero.
  struct Used {
    Offset low, high;
    void note(Offset first, Offset last) noexcept;
  };

  Bytes chunk_bytes(Bytes size) const noexcept;  // pre: size <= size()
  void* allocate_bytes(const Request& request, bool& zero);
  void* allocate_in_heap(const Request& request, bool& zero);
  void* find_chunk(Bytes bytes, Bytes alignment, Lifetime lifetime);
  OutOfMemoryInfo::Cause why_not(Bytes size) const;
  void release_chunk(void* address) noexcept;
  bool change(void* address, Bytes size, Bytes new_size);
  void require_open() const;

  FileMapping mapping_;
  const std::string name_;
  const Bytes usable_;  // bytes, whole lines; at least one, which then is not whole
  const FileSystem system_;
  mutable std::mutex mutex_;    // guards all below
  std::unique_ptr<Heap> heap_;  // null: closed, or about to be
  Bytes tail_ = 0;              // bytes of the heap behind what is usable
  Used used_;
};

}  // namespace memcfg
