#include "memcfg/arena.hpp"

#include <algorithm>
#include <stdexcept>

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

namespace {

constexpr Bytes kLargestSize = kNoLimit / 2;  // bytes; rounding up cannot overflow

// Addresses of any size that the system grants, at most `capacity`, itself rounded.
void* reserve_at_most(const System& system, Bytes& capacity) noexcept {
  const Bytes page = system.page_size();
  for (; capacity >= page; capacity /= 2) {
    const Bytes size = align_up(capacity, page);
    if (void* base = system.reserve(size, Access::guarded)) {
      capacity = size;
      return base;
    }
  }
  return nullptr;
}

}  // namespace

Arena::Arena(std::shared_ptr<Pool> pool, Bytes capacity, const std::string& owner)
    : account_(std::move(pool), owner) {
  const System& system = account_.pool().system();
  const Bytes page = system.page_size();
  void* base = nullptr;
  if (capacity == 0) {
    const Bytes limit = account_.pool().limit();
    capacity_ = std::max(limit == kNoLimit ? page : limit, system.memory_size());
    capacity_ = std::min(capacity_, kLargestSize);
    base = reserve_at_most(system, capacity_);
  } else if (capacity <= kLargestSize) {
    capacity_ = align_up(capacity, page);
    base = system.reserve(capacity_, Access::guarded);
  }
  if (base == nullptr) {
    account_.fail({capacity, 0, 0}, OutOfMemoryInfo::no_addresses);
  }
  base_ = static_cast<std::byte*>(base);
}

Arena::~Arena() {
  if (!freed_) account_.pool().system().release(base_, capacity_);
}

Bytes Arena::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return account_.holding().charged;
}

bool Arena::freed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return freed_;
}

void Arena::require_alive() const {
  if (freed_) throw std::invalid_argument("the arena has been freed");
}

void Arena::require_unheld(const char* what) const {
  if (pins_ == 0) return;
  throw still_held("the arena cannot be " + std::string(what) + ": " +
                   std::to_string(pins_) +
                   " programs or exported buffers point into it");
}

void Arena::grow(Bytes requested) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  const Holding& held = account_.holding();
  if (requested <= held.charged) return;
  const Bytes more = requested - held.charged;
  const bool fits = requested <= capacity_;  // then rounding up stays inside it too
  const Bytes charge = fits ? align_up(more) : more;
  const System& system = account_.pool().system();
  const Bytes pages =
      fits ? align_up(held.charged + charge, system.page_size()) - committed_ : 0;
  account_.reserve({more, charge, pages});
  if (!fits) account_.fail({more, charge, pages}, OutOfMemoryInfo::no_addresses);
  if (pages > 0 && !system.commit(base_ + committed_, pages, Access::guarded)) {
    account_.fail({more, charge, pages}, OutOfMemoryInfo::no_memory);
  }
  committed_ += pages;
  account_.commit({requested - held.requested, charge, pages});
  requested_ = requested;
}

void Arena::shrink(Bytes requested) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  const Holding held = account_.holding();
  if (requested >= held.requested) return;
  const Bytes size = align_up(requested);
  if (size < held.charged) require_unheld("shrunk");
  const System& system = account_.pool().system();
  const Bytes kept = align_up(size, system.page_size());
  const Bytes pages = committed_ - kept;
  if (pages > 0) system.decommit(base_ + kept, pages, Access::guarded);
  if (system.touchable()) {
    std::fill(base_ + size, base_ + std::min(kept, held.charged), std::byte{0});
  }
  committed_ = kept;
  requested_ = requested;
  account_.release({held.requested - requested, held.charged - size, pages});
}

void Arena::free() {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  require_unheld("freed");
  account_.pool().system().release(base_, capacity_);
  freed_ = true;
  committed_ = 0;
  requested_ = 0;
  account_.release(account_.holding());
}

void Arena::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Holding& held = account_.holding();
  const Bytes page = account_.pool().system().page_size();
  require(held.charged <= committed_ && committed_ <= capacity_,
          "not size <= committed <= capacity");
  require(committed_ == align_up(held.charged, page), "not whole pages committed");
  require(held.reserved == committed_, "the pages booked are not those committed");
  require(!freed_ || held.charged == 0, "a freed arena is charged");
  require(held.requested == requested_ && held.charged == align_up(requested_),
          "the charge is not the request rounded up");
}

Pin::Pin(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {
  const std::lock_guard<std::mutex> lock(arena_->mutex_);
  arena_->require_alive();
  ++arena_->pins_;
}

Pin::~Pin() {
  const std::lock_guard<std::mutex> lock(arena_->mutex_);
  --arena_->pins_;
}

}  // namespace memcfg
