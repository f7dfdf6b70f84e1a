#include "memcfg/adaptor.hpp"

#include <stdexcept>
#include <utility>

namespace memcfg {

Adaptor::Adaptor(std::shared_ptr<Resource> upstream, Ledger::Tags tags)
    : upstream_(std::move(upstream)), ledger_(tags) {
  if (upstream_ == nullptr) throw std::invalid_argument("an adaptor needs a resource");
}

void* Adaptor::take(const Request& request) {
  void* const address = upstream_->allocate(request);
  try {
    ledger_.add(address, request, align_up(request.size));
  } catch (...) {
    upstream_->deallocate(address, request.size);
    throw;
  }
  return address;
}

ResourceStats Adaptor::stats() const {
  const ResourceStats own = ledger_.stats();
  ResourceStats stats = upstream_->stats();
  stats.current = own.current;
  stats.peak = own.peak;
  stats.requested = own.requested;
  stats.metadata += own.metadata;
  stats.allocations = own.allocations;
  stats.deallocations = own.deallocations;
  return stats;
}

void Adaptor::check() const {
  ledger_.check();
  upstream_->check();
}

}  // namespace memcfg
