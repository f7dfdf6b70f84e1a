#include "memcfg/adaptor.hpp"

#include <stdexcept>
#include <utility>

namespace memcfg {

Adaptor::Adaptor(std::shared_ptr<Resource> upstream,
                 Ledger::Tags tags,
                 Watcher* watcher)
    : upstream_(std::move(upstream)), ledger_(tags, watcher) {
  if (upstream_ == nullptr) throw std::invalid_argument("an adaptor needs a resource");
}

void* Adaptor::take(const Request& request, const Note& note) {
  void* const address = upstream_->allocate(request);
  Bytes dropped = 0;
  try {
    ledger_.add(address, request, align_up(request.size), note, &dropped);
  } catch (...) {
    if (dropped > 0) lost(dropped);
    upstream_->deallocate(address, request.size);
    throw;
  }
  if (dropped > 0) lost(dropped);
  return address;
}

bool Adaptor::resize(void* address, Bytes size, Bytes new_size) {
  return ledger_.resize(address, size, new_size, [&] {
    return upstream_->resize(address, size, new_size);
  });
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
