// The operating system, as far as memcfg needs it. `system.cpp` is the only file
// that calls it.
#pragma once

#include <cstdint>
#include <cstring>

#include "memcfg/types.hpp"

namespace memcfg {

// What happens behind the pages that are committed.
enum class Access {
  guarded,  // a touch faults; committing is a system call
  open,     // a touch takes memory that nobody committed; committing is record-keeping,
            // and refuses only what no machine of this size could have
};

// Where memory comes from. Abstract so that tests can refuse at will and a device can
// be simulated; each method may be called from any thread.
//
// Addresses are reserved (no memory), then committed page by page (readable, writable,
// zero on first touch), decommitted, and released as a whole.
class System {
 public:
  virtual ~System() = default;

  virtual Bytes page_size() const noexcept = 0;  // bytes, a power of two >= kAlignment

  // Bytes of memory that this process can hope for: the machine's, or less where the
  // process' own address space is limited.
  virtual Bytes memory_size() const noexcept = 0;

  virtual SpaceKind kind() const noexcept { return SpaceKind::host; }

  // True: the memory belongs to this process' host, and its host limits count it.
  virtual bool on_host() const noexcept { return true; }

  // True: its memory stayed in the process that this one was forked from.
  virtual bool stayed_in_parent() const noexcept { return false; }

  // True: addresses and memory come and go together, in whole reservations.
  virtual bool whole_blocks() const noexcept { return false; }

  // Pre: size is a positive multiple of the page size. Null when the system refuses.
  virtual void* reserve(Bytes size, Access access) const noexcept = 0;

  // Pre: [address, address + size) is reserved, uncommitted, whole pages.
  // False when the system refuses; the pages are then reserved as before.
  virtual bool commit(void* address, Bytes size, Access access) const noexcept = 0;

  // Pre: the pages are committed. Post: they are reserved as before, their memory gone;
  // committed again, they are zero.
  virtual void decommit(void* address, Bytes size, Access access) const noexcept = 0;

  // Pre: pages that are committed, and stay so. True: their memory has gone back,
  // and they are zero; false: nothing has changed.
  virtual bool reset_pages(void* address, Bytes size) const noexcept {
    static_cast<void>(address);
    static_cast<void>(size);
    return false;
  }

  // Pre: the pages are committed. Takes their memory now instead of at first touch.
  // False when the system refuses; the pages are committed as before.
  virtual bool populate(void* address, Bytes size) const noexcept = 0;

  // Bytes of the huge pages that may stand behind open addresses: a touch anywhere in
  // one takes all of its memory. A power of two, or 0 where there are none.
  virtual Bytes huge_page_size() const noexcept { return 0; }

  // Advice: huge pages are wanted behind whole ones of these open addresses, or none
  // are wanted. False when the system does not heed it. Pre: whole pages.
  virtual bool advise_huge(void* address, Bytes size, bool wanted) const noexcept {
    static_cast<void>(address);
    static_cast<void>(size);
    static_cast<void>(wanted);
    return false;
  }

  // Pre: the address and size of one `reserve`. Ends every access to it.
  virtual void release(void* address, Bytes size) const noexcept = 0;

  // Zeroed memory for the metadata of a pool, taken page by page on first touch.
  // Pre: size > 0. Null when the system refuses.
  virtual void* map_metadata(Bytes size) const noexcept = 0;
  virtual void unmap_metadata(void* address, Bytes size) const noexcept = 0;

  // The same in two steps: addresses at once, memory as the metadata grow.
  // `unmap_metadata` takes both. Pre: sizes are positive multiples of the page size.
  virtual void* reserve_metadata(Bytes size) const noexcept = 0;
  virtual bool commit_metadata(void* address, Bytes size) const noexcept = 0;

  // The memory of metadata goes back and is zero again. Pre: whole pages of them.
  virtual void reset_metadata(void* address, Bytes size) const noexcept {
    static_cast<void>(address);
    static_cast<void>(size);
  }

  // Writes zeros to committed pages, or to what `allocate` gave.
  virtual void zero(void* address, Bytes size) const { std::memset(address, 0, size); }

  // Memory of any size, contents undefined. Pre: size is a positive multiple of
  // alignment, a power of two >= kAlignment. Null when the system refuses.
  virtual void* allocate(Bytes size, Bytes alignment) const noexcept = 0;
  virtual void deallocate(void* address, Bytes size) const noexcept = 0;
};

// A system whose metadata lie in the memory of another one, which outlives it. Its own
// memory is not this process', is there from the beginning, and comes in no blocks.
class BorrowedMetadata : public System {
 public:
  explicit BorrowedMetadata(const System& metadata) noexcept : metadata_(metadata) {}

  Bytes memory_size() const noexcept override { return metadata_.memory_size(); }
  bool on_host() const noexcept override { return false; }
  bool commit(void*, Bytes, Access) const noexcept override { return true; }
  void decommit(void*, Bytes, Access) const noexcept override {}
  bool populate(void*, Bytes) const noexcept final { return true; }
  void* allocate(Bytes, Bytes) const noexcept override { return nullptr; }
  void deallocate(void*, Bytes) const noexcept override {}
  void* map_metadata(Bytes size) const noexcept final {
    return metadata_.map_metadata(size);
  }
  void unmap_metadata(void* address, Bytes size) const noexcept final {
    metadata_.unmap_metadata(address, size);
  }
  void* reserve_metadata(Bytes size) const noexcept final {
    return metadata_.reserve_metadata(size);
  }
  bool commit_metadata(void* address, Bytes size) const noexcept final {
    return metadata_.commit_metadata(address, size);
  }
  void reset_metadata(void* address, Bytes size) const noexcept final {
    metadata_.reset_metadata(address, size);
  }

 private:
  const System& metadata_;
};

// The machine that this process runs on.
const System& host_system() noexcept;

// Bytes of memory that the machine can give this process now, or its control group
// allows if that is less; kNoLimit where the system does not tell.
Bytes available_size() noexcept;

// Bytes that this process has resident now; 0 where the system does not tell.
Bytes resident_size() noexcept;

// Differs between a process and its fork.
std::int64_t process_id() noexcept;

// What the system calls the running thread; positive.
std::int64_t thread_id() noexcept;

}  // namespace memcfg
