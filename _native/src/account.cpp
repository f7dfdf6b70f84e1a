#include "memcfg/account.hpp"

#include "memcfg/pool_registry.hpp"

namespace memcfg {

Account::Account(std::shared_ptr<Pool> pool, const std::string& owner)
    : pool_(std::move(pool)), owner_(owner) {
  const Pool::Lock lock(pool_->mutex_);
  tag_ = pool_->number(owner);
  ++pool_->arenas_[tag_];
}

Account::~Account() {
  settle(holding_);
  const Pool::Lock lock(pool_->mutex_);
  --pool_->arenas_[tag_];
}

void Account::draw(const Holding& more) {
  Shortage::Cause cause{};
  for (bool again : {true, false}) {
    try {
      const Pool::Lock lock(pool_->mutex_);
      pool_->note_peak(nullptr);
      pool_->draw(more.charged);
      try {
        pool_->afford_arena(more.reserved);
      } catch (...) {
        pool_->cancel(more.charged);
        throw;
      }
      return;
    } catch (const Refused& refused) {
      cause = refused.cause;
    }
    if (cause != Shortage::tracked_limit) break;
    if (again) PoolRegistry::instance().reclaim_quotas();
  }
  throw refusal(*pool_, cause, more.requested);
}

// The pages of holes make way for an arena's. Throws Refused, nothing taken.
void Pool::afford_arena(Bytes more) {
  const Bytes room = heap_.ceiling();
  if (room != kNoLimit) {
    const Bytes wanted = heap_.committed() + more;
    if (wanted > room) {
      flush_caches();
      heap_.give_back(wanted - room);
    }
    if (heap_.committed() + more > room) throw Refused{Shortage::fragmented};
  }
  if (meter_ != nullptr && more > 0 && !meter_->reserve(more)) {
    flush_caches();
    heap_.give_back(kNoLimit);
    if (!meter_->reserve(more)) throw Refused{Shortage::rss_limit};
  }
  arena_pages_ += more;
  set_ceiling(limit());
}

void Pool::release_arena(Bytes pages) noexcept {
  if (meter_ != nullptr && pages > 0) meter_->release(pages);
  arena_pages_ -= pages;
  set_ceiling(limit());
}

void Account::refuse(const Holding& more, Shortage::Cause cause) {
  {
    const Pool::Lock lock(pool_->mutex_);
    pool_->release_arena(more.reserved);
    pool_->cancel(more.charged);
  }
  throw refusal(*pool_, cause, more.requested);
}

void Account::book(const Holding& more) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  holding_.requested += more.requested;
  holding_.charged += more.charged;
  holding_.reserved += more.reserved;
  pool_->requested_ += static_cast<std::int64_t>(more.requested);
  pool_->charged_[tag_] += static_cast<std::int64_t>(more.charged);
  ++pool_->allocations_;
  pool_->grant(more.charged);
  pool_->note_peak(nullptr);
}

void Account::settle(Holding less) noexcept {
  const Pool::Lock lock(pool_->mutex_);
  pool_->note_peak(nullptr);
  holding_.requested -= less.requested;
  holding_.charged -= less.charged;
  holding_.reserved -= less.reserved;
  pool_->requested_ -= static_cast<std::int64_t>(less.requested);
  pool_->charged_[tag_] -= static_cast<std::int64_t>(less.charged);
  pool_->release_arena(less.reserved);
  pool_->undraw(less.charged);
}

}  // namespace memcfg
