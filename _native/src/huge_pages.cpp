#include "memcfg/huge_pages.hpp"

#include <atomic>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

std::atomic<std::size_t> all_splits{0};

}  // namespace

HugePages::HugePages(const System& system, std::uintptr_t base, Bytes size) {
  const Bytes unit = system.huge_page_size();
  if (unit <= system.page_size()) return;
  origin_ = round_down(base, unit);
  units_ = (round_up(base + size, unit) - origin_) / unit;
  advised_ = Bits(system, units_);
  spent_ = Bits(system, units_);
  splits_ = Bits(system, units_ + 1);
  system_ = &system;
  unit_ = unit;
  system.advise_huge(reinterpret_cast<void*>(base), size, false);
}

HugePages::~HugePages() {
  all_splits -= split_count_;
}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
  std::swap(system_, other.system_);
  std::swap(unit_, other.unit_);
  std::swap(origin_, other.origin_);
  std::swap(units_, other.units_);
  std::swap(split_count_, other.split_count_);
  std::swap(advised_, other.advised_);
  std::swap(spent_, other.spent_);
  std::swap(splits_, other.splits_);
  return *this;
}

std::size_t HugePages::split_count() noexcept {
  return all_splits;
}

void HugePages::advise(std::uintptr_t first, std::uintptr_t last) noexcept {
  if (unit_ == 0) return;
  const Unit begin = (round_up(first, unit_) - origin_) / unit_;
  const Unit end = (round_down(last, unit_) - origin_) / unit_;
  if (begin >= end || advised_.find(begin, end, false) == end) return;
  if (spent_.find(begin, end, true) != end) return;
  if (split(begin) && split(end) && tell(begin, end, true)) {
    advised_.assign(begin, end, true);
  }
}

// What the system refuses to take back stays advised here: another time.
void HugePages::forgo(std::uintptr_t first,
                      std::uintptr_t last,
                      bool for_good) noexcept {
  if (unit_ == 0) return;
  const Unit last_unit = (round_up(last, unit_) - origin_) / unit_;
  Unit end = (round_down(first, unit_) - origin_) / unit_;
  for (;;) {
    Unit begin = advised_.find(end, last_unit, true);
    if (begin == last_unit) return;
    end = advised_.find(begin, last_unit, false);
    while (!split(begin)) --begin;
    while (!split(end)) ++end;
    if (!tell(begin, end, false)) continue;
    advised_.assign(begin, end, false);
    if (for_good) spent_.assign(begin, end, true);
  }
}

// Post: true, and the low end of the unit is a split.
bool HugePages::split(Unit unit) noexcept {
  if (splits_.find(unit, unit + 1, true) == unit) return true;
  std::size_t made = all_splits;
  do {
    if (made == kMaxSplits) return false;
  } while (!all_splits.compare_exchange_weak(made, made + 1));
  ++split_count_;
  splits_.assign(unit, unit + 1, true);
  return true;
}

bool HugePages::tell(Unit first, Unit last, bool wanted) const noexcept {
  void* const address = reinterpret_cast<void*>(origin_ + first * unit_);
  return system_->advise_huge(address, (last - first) * unit_, wanted);
}

void HugePages::check() const {
  std::size_t count = 0;
  for (Unit unit = 0; unit_ != 0 && unit <= units_; ++unit) {
    const bool is_split = splits_.find(unit, unit + 1, true) == unit;
    count += is_split ? 1 : 0;
    const bool above = unit < units_ && advised_.find(unit, unit + 1, true) == unit;
    const bool below = unit > 0 && advised_.find(unit - 1, unit, true) != unit;
    require(is_split || above == below, "advice ends where no split is");
  }
  require(count == split_count_, "the splits do not add up");
  require(all_splits <= kMaxSplits, "more splits than there may be");
}

}  // namespace memcfg
