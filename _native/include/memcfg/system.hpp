// The operating system, as far as memcfg needs it. `system.cpp` is the only file
// that calls it.
#pragma once

#include <cstdint>

#include "memcfg/types.hpp"

namespace memcfg {

// Where memory comes from. Abstract so that tests can refuse at will; the
// implementation keeps no state, so one object serves every pool and thread.
//
// Addresses are reserved (no access, no memory), then committed page by page from
// the front (readable, writable, zero on first touch), decommitted from the back, and
// released as a whole.
class System {
 public:
  virtual ~System() = default;

  virtual Bytes page_size() const noexcept = 0;  // bytes, a power of two >= kAlignment

  // Bytes of memory that this process can hope for: the machine's, or less where the
  // process' own address space is limited.
  virtual Bytes memory_size() const noexcept = 0;

  // Pre: size is a positive multiple of the page size. Null when the system refuses.
  virtual void* reserve(Bytes size) const noexcept = 0;

  // Pre: [address, address + size) is reserved, uncommitted, whole pages.
  // False when the system refuses; the pages are then reserved as before.
  virtual bool commit(void* address, Bytes size) const noexcept = 0;

  // Pre: the pages are committed. Post: they are reserved as before, their memory gone.
  virtual void decommit(void* address, Bytes size) const noexcept = 0;

  // Pre: the address and size of one `reserve`. Ends every access to it.
  virtual void release(void* address, Bytes size) const noexcept = 0;

  // Memory of any size, aligned to kAlignment, contents undefined.
  // Pre: size is a positive multiple of kAlignment. Null when the system refuses.
  virtual void* allocate(Bytes size) const noexcept = 0;
  virtual void deallocate(void* address, Bytes size) const noexcept = 0;
};

// The machine that this process runs on.
const System& host_system() noexcept;

// Differs between a process and its fork.
std::int64_t process_id() noexcept;

}  // namespace memcfg
