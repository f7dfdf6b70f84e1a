#include "memcfg/account.hpp"

namespace memcfg {

Account::Account(std::shared_ptr<Pool> pool, const std::string& owner)
    : pool_(std::move(pool)), owner_(owner) {
  const Pool::Lock lock(pool_->mutex_);
  tag_ = pool_->number_of(owner);
  pool_->tags_.add_arena(tag_);
}

Account::~Account() {
  release(holding_);
  const Pool::Lock lock(pool_->mutex_);
  pool_->tags_.remove_arena(tag_);
}

void Account::reserve(const Holding& more) {
  pool_->reserve_holding(more.requested, more.charged, more.reserved);
}

void Account::fail(const Holding& more, OutOfMemoryInfo::Cause cause) {
  {
    const Pool::Lock lock(pool_->mutex_);
    pool_->release_arena(more.reserved);
    pool_->roll_back(more.charged);
  }
  throw out_of_memory_error(*pool_, cause, more.requested);
}

void Account::commit(const Holding& more) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  holding_.requested += more.requested;
  holding_.charged += more.charged;
  holding_.reserved += more.reserved;
  pool_->counts_.allocate(more.requested, more.charged, tag_);
  pool_->commit(more.charged);
  pool_->caches_.note_peak(nullptr);
}

void Account::release(Holding less) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  pool_->caches_.note_peak(nullptr);
  holding_.requested -= less.requested;
  holding_.charged -= less.charged;
  holding_.reserved -= less.reserved;
  pool_->counts_.resize(Bytes{0} - less.requested, Bytes{0} - less.charged, tag_);
  pool_->release_arena(less.reserved);
  pool_->accounting_.release(less.charged);
}

}  // namespace memcfg
