#include "memcfg/pool.hpp"

#include <algorithm>
#include <stdexcept>

namespace memcfg {
namespace {

constexpr std::size_t kOwnersInShortage = 5;  // enough to see who holds the memory

Bytes largest_request(const Limit& limit) noexcept {
  if (limit.limit() == kNoLimit) return kNoLimit;
  return limit.free() / kAlignment * kAlignment;
}

}  // namespace

Pool::Pool(std::string name, Bytes limit, const System& system)
    : name_(std::move(name)), system_(system), limit_(limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
}

Bytes Pool::set_limit(Bytes limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Bytes old = limit_.limit();
    if (limit_.set(limit)) return old;
  }
  throw shortage(Shortage::limit_lowered, limit);
}

PoolStats Pool::stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {now_, peak_, limit_.limit(), largest_request(limit_), grants_};
}

void Pool::reset_peak() {
  const std::lock_guard<std::mutex> lock(mutex_);
  peak_ = now_.charged;
}

std::vector<std::pair<std::string, Bytes>> Pool::owners() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::pair<std::string, Bytes>> rows;
  for (const auto& [name, owner] : owners_) {
    if (owner.bytes > 0) rows.emplace_back(name, owner.bytes);
  }
  return rows;
}

void Pool::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  Bytes sum = 0;
  for (const auto& row : owners_) {
    require(row.second.accounts > 0, "an owner has no account");
    sum += row.second.bytes;
  }
  require(sum == now_.charged, "the owners' bytes do not add up to the bytes in use");
  require(now_.charged <= limit_.limit() - limit_.free(), "more in use than drawn");
  require(now_.charged <= limit_.limit(), "more in use than the limit");
  require(now_.requested <= now_.charged, "more requested than charged");
  require(now_.charged <= now_.reserved, "more charged than taken from the system");
  require(now_.charged <= peak_, "the peak is below the bytes in use");
  require(now_.charged % kAlignment == 0, "the bytes in use are not whole lines");
}

out_of_memory Pool::shortage(Shortage::Cause cause, Bytes requested) const {
  Shortage report;
  report.cause = cause;
  report.requested = requested;
  report.device = name_;
  report.owners = owners();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    report.limit = limit_.limit();
    const Bytes free = limit_.free();
    report.in_use = report.limit - free;
    if (report.limit != kNoLimit) report.largest_free = free / kAlignment * kAlignment;
  }
  std::stable_sort(report.owners.begin(),
                   report.owners.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  report.owners.resize(std::min(report.owners.size(), kOwnersInShortage));
  return out_of_memory(std::move(report));
}

Account::Account(std::shared_ptr<Pool> pool, const std::string& owner)
    : pool_(std::move(pool)) {
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  owner_ = pool_->owners_.try_emplace(owner).first;
  ++owner_->second.accounts;
}

Account::~Account() {
  settle(holding_);
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  if (--owner_->second.accounts == 0) pool_->owners_.erase(owner_);
}

void Account::draw(Bytes size, Bytes requested) {
  if (pool_->limit_.draw(size)) return;
  throw pool_->shortage(Shortage::limit_reached, requested);
}

void Account::refuse(Bytes size, Bytes requested, Shortage::Cause cause) {
  pool_->limit_.give_back(size);
  throw pool_->shortage(cause, requested);
}

void Account::book(const Holding& more) noexcept {
  const std::lock_guard<std::mutex> lock(pool_->mutex_);
  for (Holding* books : {&holding_, &pool_->now_}) {
    books->requested += more.requested;
    books->charged += more.charged;
    books->reserved += more.reserved;
  }
  owner_->second.bytes += more.charged;
  pool_->peak_ = std::max(pool_->peak_, pool_->now_.charged);
  ++pool_->grants_;
}

void Account::settle(Holding less) noexcept {
  {
    const std::lock_guard<std::mutex> lock(pool_->mutex_);
    for (Holding* books : {&holding_, &pool_->now_}) {
      books->requested -= less.requested;
      books->charged -= less.charged;
      books->reserved -= less.reserved;
    }
    owner_->second.bytes -= less.charged;
  }
  pool_->limit_.give_back(less.charged);
}

Block::Block(std::shared_ptr<Pool> pool, Bytes requested, const std::string& owner)
    : account_(std::move(pool), owner) {
  if (requested == 0) throw std::invalid_argument("a block has at least one byte");
  const bool fits = requested <= kNoLimit - kAlignment;  // else rounding up overflows
  const Bytes size = fits ? align_up(requested) : kNoLimit;
  account_.draw(size, requested);
  address_ = fits ? account_.pool().system().allocate(size) : nullptr;
  if (address_ == nullptr) {
    account_.refuse(size, requested, Shortage::no_memory);
  }
  account_.book({requested, size, size});
}

Block::~Block() {
  account_.pool().system().deallocate(address_, size());
}

}  // namespace memcfg
