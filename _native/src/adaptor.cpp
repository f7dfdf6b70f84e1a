#include "memcfg/adaptor.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"
#include "memcfg/forks.hpp"

namespace memcfg {

Adaptor::Adaptor(std::shared_ptr<Resource> upstream,
                 Ledger::Tags tags,
                 Watcher* watcher)
    : LedgerResource(tags, watcher), upstream_(std::move(upstream)) {
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

namespace {

// Gives a reservation back at the end, unless it is kept.
class Reservation : private NoCopy {
 public:
  Reservation(Limit& limit, Bytes size) : limit_(limit), size_(size) {}
  ~Reservation() { limit_.release(size_); }
  void keep() noexcept { size_ = 0; }

 private:
  Limit& limit_;
  Bytes size_;
};

}  // namespace

LimitingResource::LimitingResource(std::shared_ptr<Resource> upstream, Bytes limit)
    : Adaptor(std::move(upstream), Ledger::Tags::held), limit_(limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
}

void* LimitingResource::allocate(const Request& request) {
  require_valid(request);
  const bool fits = request.size <= kNoLimit - kAlignment;  // else rounding overflows
  const Bytes size = fits ? align_up(request.size) : kNoLimit;
  if (!limit_.reserve(size)) {
    throw out_of_memory_error(*this, OutOfMemoryInfo::limit_reached, request.size);
  }
  Reservation reservation(limit_, size);
  void* const address = take(request);
  reservation.keep();
  return address;
}

void LimitingResource::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  const Reservation reservation(limit_,
                                align_up(size));  // whatever upstream says: it is gone
  upstream_->deallocate(address, size);
}

// The limit is on the larger size until it is known which of the two the block has.
bool LimitingResource::resize(void* address, Bytes size, Bytes new_size) {
  require_size(size_of(address), size);
  if (new_size > kNoLimit - kAlignment) return false;
  const Bytes before = align_up(size);
  const Bytes now = align_up(new_size);
  if (now > before && !limit_.reserve(now - before)) return false;
  Reservation reservation(limit_, now > before ? now - before : 0);
  if (!Adaptor::resize(address, size, new_size)) return false;
  reservation.keep();
  if (now < before) limit_.release(before - now);
  return true;
}

ResourceStats LimitingResource::stats() const {
  ResourceStats stats = Adaptor::stats();
  stats.limit = limit_.limit();
  if (stats.limit == kNoLimit) return stats;
  const Bytes free = limit_.free() / kAlignment * kAlignment;
  stats.largest_free = std::min(stats.largest_free, free);
  return stats;
}

Bytes LimitingResource::set_limit(Bytes limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
  {
    const ForkLock lock(setting_);
    const Bytes before = limit_.limit();
    if (limit_.set(limit)) return before;
  }
  throw out_of_memory_error(*this, OutOfMemoryInfo::limit_lowered, limit);
}

void LimitingResource::check() const {
  Adaptor::check();
  // Bytes are reserved before the ledger has them and released after it had them: while
  // it is held there are no fewer.
  const bool reserved = ledger_.hold([this](const auto& blocks) {
    Bytes current = 0;
    for (const auto& [address, entry] : blocks) current += align_up(entry.size);
    return current <= limit_.used();
  });
  require(reserved, "more in use than reserved");
}

void Adaptor::deallocate(void* address, Bytes size) {
  ledger_.remove(address, size);
  upstream_->deallocate(address, size);
}

FailureCallbackResource::FailureCallbackResource(std::shared_ptr<Resource> upstream,
                                                 Callback callback)
    : upstream_(std::move(upstream)), callback_(std::move(callback)) {
  if (upstream_ == nullptr) throw std::invalid_argument("an adaptor needs a resource");
  if (!callback_) throw std::invalid_argument("there is no callback");
}

void* FailureCallbackResource::allocate(const Request& request) {
  for (;;) {
    std::exception_ptr failure;
    try {
      return upstream_->allocate(request);
    } catch (const out_of_memory&) {
      failure = std::current_exception();
    }  // the callback runs outside the handler: it may throw and catch as it likes
    if (!callback_(request.size)) std::rethrow_exception(failure);
  }
}

FailureCallbackResource::Callback foreign_callback(int (*function)(void*, Bytes),
                                                   void* context) {
  return [function, context](Bytes size) {
    const int answer = call_foreign(function, context, size);
    if (answer < 0) throw callback_raised();
    return answer > 0;
  };
}

}  // namespace memcfg
