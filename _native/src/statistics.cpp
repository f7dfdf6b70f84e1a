#include "memcfg/statistics.hpp"

#include <utility>

namespace memcfg {

StatisticsResource::StatisticsResource(std::shared_ptr<Resource> upstream)
    : Adaptor(std::move(upstream), Ledger::Tags::ever) {}

void StatisticsResource::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  upstream_->deallocate(address, size);
}

}  // namespace memcfg
