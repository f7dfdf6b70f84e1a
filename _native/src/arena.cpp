#include "memcfg/arena.hpp"

#include <algorithm>
#include <stdexcept>

#include "memcfg/pool_history.hpp"

namespace memcfg {

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
    : pool_(std::move(pool)), owner_(owner) {
  const System& system = pool_->system();
  void* base = nullptr;
  if (is_block()) {
    if (capacity <= kLargestSize) capacity_ = align_up(capacity, system.page_size());
  } else if (capacity == 0) {
    const Bytes limit = pool_->limit() == kNoLimit ? 0 : pool_->limit();
    const Bytes wanted = std::max({system.page_size(), limit, system.memory_size()});
    capacity_ = std::min(wanted, kLargestSize);
    base = reserve_at_most(system, capacity_);
  } else if (capacity <= kLargestSize) {
    capacity_ = align_up(capacity, system.page_size());
    base = system.reserve(capacity_, Access::guarded);
  }
  if (is_block() ? capacity_ < capacity : base == nullptr) {
    throw out_of_memory_error(*pool_, OutOfMemoryInfo::no_addresses, capacity);
  }
  base_ = static_cast<std::byte*>(base);
  try {
    const Pool::Lock lock(pool_->mutex_);
    tag_ = pool_->number_of(owner_);
    pool_->arenas_.push_back(this);
    pool_->tags_.add_arena(tag_);
  } catch (...) {
    if (base_ != nullptr) system.release(base_, capacity_);
    throw;
  }
}

Arena::~Arena() {
  if (!freed_) {
    leave_pool();
    if (base_ != nullptr) pool_->system().release(base_, capacity_);
    release(0, committed_);
  }
  const Pool::Lock lock(pool_->mutex_);
  pool_->tags_.remove_arena(tag_);
}

void Arena::fail(Bytes requested,
                 Bytes charge,
                 Bytes pages,
                 OutOfMemoryInfo::Cause cause) {
  {
    const Pool::Lock lock(pool_->mutex_);
    pool_->release_arena(pages);
    pool_->roll_back(charge);
    pool_->note_failure(requested, owner_);
  }
  throw out_of_memory_error(*pool_, cause, requested);
}

std::optional<LiveBlock> Arena::holding() const {
  const Bytes size = requested_;
  if (size == 0) return std::nullopt;
  return LiveBlock{
      reinterpret_cast<std::uintptr_t>(base_), size, align_up(size), owner_};
}

void Arena::note(Bytes requested) const noexcept {
  if (left_pool_) return;
  if (requested_ > 0) pool_->note(History::free, base_, requested_, tag_);
  if (requested > 0) pool_->note(History::allocate, base_, requested, tag_);
}

void Arena::leave_pool() noexcept {
  const Pool::Lock lock(pool_->mutex_);
  auto& arenas = pool_->arenas_;
  arenas.erase(std::find(arenas.begin(), arenas.end(), this));
  note(0);
  left_pool_ = true;
}

void Arena::commit(Bytes requested, Bytes pages) noexcept {
  const Bytes charge = align_up(requested) - align_up(requested_);
  const Pool::Lock lock(pool_->mutex_);
  pool_->counts_.allocate(requested - requested_, charge, tag_);
  pool_->commit(charge);
  pool_->caches_.note_peak(nullptr);
  note(requested);
  committed_ += pages;
  requested_ = requested;
}

void Arena::release(Bytes requested, Bytes pages) noexcept {
  const Bytes charge = align_up(requested_) - align_up(requested);
  const Pool::Lock lock(pool_->mutex_);
  pool_->caches_.note_peak(nullptr);
  pool_->counts_.resize(requested - requested_, Bytes{0} - charge, tag_);
  pool_->release_arena(pages);
  pool_->accounting_.release(charge);
  note(requested);
  committed_ -= pages;
  requested_ = requested;
}

Bytes Arena::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return align_up(requested_);
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
  const Bytes size = align_up(requested_);
  if (requested <= size) return;
  const Bytes more = requested - size;
  const System& system = pool_->system();
  const bool block = is_block();
  const bool open = block && capacity_ == 0;  // as large as its first growth
  // Rounding up stays inside of it too.
  const bool fits = requested <= (open ? kLargestSize : capacity_);
  const Bytes charge = fits ? align_up(more) : more;
  const Bytes end = align_up(size + charge, system.page_size());
  Bytes pages = 0;
  if (fits) pages = block && !open ? capacity_ - committed_ : end - committed_;
  pool_->reserve_holding(*this, more, charge, pages);
  if (!fits) fail(more, charge, pages, OutOfMemoryInfo::no_addresses);
  if (pages > 0 && !take(pages)) {
    fail(more,
         charge,
         pages,
         block ? OutOfMemoryInfo::upstream_exhausted : OutOfMemoryInfo::no_memory);
  }
  if (pages > 0 && (block || !pool_->touchable())) {  // theirs need not be zero
    try {
      system.zero(base_ + committed_, pages);
    } catch (const std::runtime_error&) {
      give_back(pages);
      fail(more, charge, pages, OutOfMemoryInfo::no_memory);
    }
  }
  if (open) capacity_ = pages;
  commit(requested, pages);
}

bool Arena::take(Bytes pages) noexcept {
  const System& system = pool_->system();
  if (!is_block()) return system.commit(base_ + committed_, pages, Access::guarded);
  void* base = system.reserve(pages, Access::open);
  try {
    if (base == nullptr && pool_->trim(0) > 0) {
      base = system.reserve(pages, Access::open);
    }
  } catch (const std::exception&) {  // the refusal is told
  }
  base_ = static_cast<std::byte*>(base);
  return base != nullptr;
}

void Arena::give_back(Bytes pages) noexcept {
  const System& system = pool_->system();
  if (!is_block()) {
    system.decommit(base_ + committed_, pages, Access::guarded);
    return;
  }
  system.release(base_, pages);
  base_ = nullptr;
}

void Arena::shrink(Bytes requested) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  if (requested >= requested_) return;
  const Bytes size = align_up(requested);
  const Bytes before = align_up(requested_);
  if (size < before) require_unheld("shrunk");
  const System& system = pool_->system();
  const Bytes kept = is_block() ? committed_ : align_up(size, system.page_size());
  const Bytes pages = committed_ - kept;
  if (pages > 0) system.decommit(base_ + kept, pages, Access::guarded);
  system.zero(base_ + size, std::min(kept, before) - size);
  release(requested, pages);
}

void Arena::discard(Offset offset, Bytes size) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  if (is_block() || !pool_->touchable()) return;
  const System& system = pool_->system();
  const Bytes page = system.page_size();
  const Offset begin = align_up(offset, page), end = (offset + size) / page * page;
  if (begin < end) system.reset_pages(base_ + begin, end - begin);
}

void Arena::free() {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_alive();
  require_unheld("freed");
  leave_pool();
  if (base_ != nullptr) pool_->system().release(base_, capacity_);
  freed_ = true;
  release(0, committed_);
}

void Arena::leave(std::function<bool()> ended) {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_ = std::move(ended);
}

Arena::Left Arena::look_at_left() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!left_) return Left::nothing;
  if (!left_()) return Left::goes_on;
  left_ = nullptr;
  return Left::ended;
}

bool Arena::has_left() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return left_ && !left_();
}

void Arena::check() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Bytes size = align_up(requested_);
  require(committed_ <= capacity_, "not committed <= capacity");
  const Bytes page = pool_->system().page_size();
  const Bytes block = base_ == nullptr || freed_ ? 0 : capacity_;
  require(committed_ == (is_block() ? block : align_up(size, page)),
          "not whole pages committed");
  require(size <= capacity_, "the arena is larger than its addresses");
  require(!freed_ || size == 0, "a freed arena is charged");
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
