// Counts what goes through: over all, by region, by tag.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/adaptor.hpp"

namespace memcfg {

// Regions nest, as those of RMM's statistics_resource_adaptor: one counts what happens
// between its push and its pop, by whatever thread; when it ends, its numbers are added
// to the region around it. A region that frees a block from before has a current below
// zero.
class StatisticsResource final : public Adaptor {
 public:
  explicit StatisticsResource(std::shared_ptr<Resource> upstream);

  void* allocate(const Request& request) override { return take(request); }
  void deallocate(void* address, Bytes size) override;

  void push() { ledger_.push(); }
  // Throws std::invalid_argument when no region is open.
  Counters pop() { return ledger_.pop(); }

  // Every tag that was ever used, by name.
  std::vector<std::pair<std::string, Counters>> by_tag() const {
    return ledger_.by_tag();
  }
};

}  // namespace memcfg
