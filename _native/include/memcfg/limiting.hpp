// A ceiling on what goes through.
#pragma once

#include <memory>
#include <mutex>

#include "memcfg/adaptor.hpp"
#include "memcfg/limit.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Reserves on its limit before it asks upstream, and releases it when upstream
// refuses, or after upstream has the block again. So at every moment
//
//     current <= used <= limit, used - current == bytes of the calls in flight.
class LimitingResource final : public Adaptor {
 public:
  // Bytes, each block rounded up to kAlignment; kNoLimit is none. Throws
  // std::invalid_argument for a limit of 0.
  LimitingResource(std::shared_ptr<Resource> upstream, Bytes limit);

  void* allocate(const Request& request) override;
  void deallocate(void* address, Bytes size) override;
  bool resize(void* address, Bytes size, Bytes new_size) override;
  ResourceStats stats() const override;
  void check() const override;

  Bytes limit() const noexcept { return limit_.limit(); }
  // The limit before. Throws out_of_memory when more is used; nothing changes then.
  Bytes set_limit(Bytes limit);

 private:
  void lost(Bytes size) noexcept override { limit_.release(align_up(size)); }

  Limit limit_;
  std::mutex setting_;  // set_limit against itself
};

}  // namespace memcfg
