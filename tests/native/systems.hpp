// Systems that refuse at will and count what they gave.
#pragma once

#include <atomic>

#include "memcfg/system.hpp"

// The host, until `grants_left` runs out.
class Faulty final : public memcfg::System {
 public:
  using Bytes = memcfg::Bytes;

  mutable std::atomic<int> grants_left{1 << 30};
  mutable std::atomic<Bytes> reserved{0};   // addresses out
  mutable std::atomic<Bytes> allocated{0};  // blocks out
  mutable std::atomic<Bytes> committed{0};  // pages ever committed

  Bytes page_size() const noexcept override { return host().page_size(); }
  Bytes memory_size() const noexcept override { return Bytes{1} << 30; }

  void* reserve(Bytes size) const noexcept override {
    void* const address = grant() ? host().reserve(size) : nullptr;
    if (address != nullptr) reserved += size;
    return address;
  }
  bool commit(void* address, Bytes size) const noexcept override {
    if (!grant() || !host().commit(address, size)) return false;
    committed += size;
    return true;
  }
  void decommit(void* address, Bytes size) const noexcept override {
    host().decommit(address, size);
  }
  void release(void* address, Bytes size) const noexcept override {
    reserved -= size;
    host().release(address, size);
  }
  void* allocate(Bytes size) const noexcept override {
    void* const address = grant() ? host().allocate(size) : nullptr;
    if (address != nullptr) allocated += size;
    return address;
  }
  void deallocate(void* address, Bytes size) const noexcept override {
    allocated -= size;
    host().deallocate(address, size);
  }

 private:
  static const memcfg::System& host() { return memcfg::host_system(); }
  bool grant() const noexcept { return grants_left-- > 0; }
};
