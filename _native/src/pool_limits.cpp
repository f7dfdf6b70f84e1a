#include "memcfg/pool.hpp"

// The limit of a pool, and the memory that it gives back.

#include <stdexcept>

namespace memcfg {

void Pool::require_limit(Bytes limit) {
  if (limit == 0) throw std::invalid_argument("a limit must be positive");
}

// The limit and one page; no limit stays none.
Bytes Pool::most_pages(Bytes limit) const noexcept {
  const Bytes page = system_.page_size();
  return limit > kNoLimit - page ? kNoLimit : limit + page;
}

void Pool::set_ceiling(Bytes limit) noexcept {
  const Bytes most = most_pages(limit);
  heap_.set_ceiling(most == kNoLimit ? kNoLimit : most - arena_pages_);
}

Bytes Pool::set_limit(Bytes limit) {
  require_limit(limit);
  Shortage::Cause cause{};
  try {
    const Lock lock(mutex_);
    const Bytes old = limit_.load();
    if (limit < old) {
      note_peak(nullptr);
      flush_caches();
      if (drawn_ > limit) throw Refused{Shortage::limit_lowered};
      fit_pages(limit);
    }
    const Quiet quiet(*this);
    limit_.store(limit);
    set_ceiling(limit);
    for (const auto& cache : caches_) bound_cache(*cache, limit);
    note_pages();
    return old;
  } catch (const Refused& refused) {
    cause = refused.cause;
  }
  throw refusal(*this, cause, limit);
}

// Pre: limit is not above the present one. Throws Refused when blocks hold more pages.
void Pool::fit_pages(Bytes limit) {
  const Bytes ceiling = most_pages(limit);
  if (committed() > ceiling) heap_.give_back(committed() - ceiling);
  if (committed() > ceiling) throw Refused{Shortage::fragmented};
}

Bytes Pool::trim(Bytes keep) {
  const Lock lock(mutex_);
  flush_caches();
  const Bytes idle = heap_.idle();
  const Bytes given = idle > keep ? heap_.give_back(idle - keep) : 0;
  note_pages();
  if (heap_.taken() == 0) heap_.forget();
  return given;
}

Bytes Pool::decay() {
  const Lock lock(mutex_);
  {
    const Quiet quiet(*this);
    flush_large_blocks();
  }
  const Bytes given = heap_.give_back_old();
  note_pages();
  return given;
}

}  // namespace memcfg
