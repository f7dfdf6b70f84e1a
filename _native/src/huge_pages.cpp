#include "memcfg/huge_pages.hpp"

#include <atomic>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

std::atomic<std::size_t> all_cuts{0};

}  // namespace

HugePages::HugePages(const System& system, std::uintptr_t base, Bytes size) {
  const Bytes unit = system.huge_page_size();
  if (unit <= system.page_size()) return;
  origin_ = round_down(base, unit);
  units_ = (round_up(base + size, unit) - origin_) / unit;
  advised_ = Bits(system, units_);
  spent_ = Bits(system, units_);
  cuts_ = Bits(system, units_ + 1);
  system_ = &system;
  unit_ = unit;
  system.advise_huge(reinterpret_cast<void*>(base), size, false);
}

HugePages::~HugePages() {
  all_cuts -= cut_count_;
}

HugePages& HugePages::operator=(HugePages&& other) noexcept {
  std::swap(system_, other.system_);
  std::swap(unit_, other.unit_);
  std::swap(origin_, other.origin_);
  std::swap(units_, other.units_);
  std::swap(cut_count_, other.cut_count_);
  std::swap(advised_, other.advised_);
  std::swap(spent_, other.spent_);
  std::swap(cuts_, other.cuts_);
  return *this;
}

std::size_t HugePages::cuts_made() noexcept {
  return all_cuts;
}

void HugePages::advise(std::uintptr_t first, std::uintptr_t last) noexcept {
  if (unit_ == 0) return;
  const Unit begin = (round_up(first, unit_) - origin_) / unit_;
  const Unit end = (round_down(last, unit_) - origin_) / unit_;
  if (begin >= end || advised_.find(begin, end, false) == end) return;
  if (spent_.find(begin, end, true) != end) return;
  if (cut(begin) && cut(end) && tell(begin, end, true)) {
    advised_.assign(begin, end, true);
  }
}

// What the system refuses to take back stays advised here: another time.
void HugePages::forgo(std::uintptr_t first,
                      std::uintptr_t last,
                      bool for_good) noexcept {
  if (unit_ == 0) return;
  const Unit most = (round_up(last, unit_) - origin_) / unit_;
  Unit end = (round_down(first, unit_) - origin_) / unit_;
  for (;;) {
    Unit begin = advised_.find(end, most, true);
    if (begin == most) return;
    end = advised_.find(begin, most, false);
    while (!cut(begin)) --begin;
    while (!cut(end)) ++end;
    if (!tell(begin, end, false)) continue;
    advised_.assign(begin, end, false);
    if (for_good) spent_.assign(begin, end, true);
  }
}

// Post: true, and the low end of the unit is a cut.
bool HugePages::cut(Unit unit) noexcept {
  if (cuts_.find(unit, unit + 1, true) == unit) return true;
  std::size_t made = all_cuts;
  do {
    if (made == kMostCuts) return false;
  } while (!all_cuts.compare_exchange_weak(made, made + 1));
  ++cut_count_;
  cuts_.assign(unit, unit + 1, true);
  return true;
}

bool HugePages::tell(Unit first, Unit last, bool wanted) const noexcept {
  void* const address = reinterpret_cast<void*>(origin_ + first * unit_);
  return system_->advise_huge(address, (last - first) * unit_, wanted);
}

void HugePages::check() const {
  std::size_t count = 0;
  for (Unit unit = 0; unit_ != 0 && unit <= units_; ++unit) {
    const bool is_cut = cuts_.find(unit, unit + 1, true) == unit;
    count += is_cut ? 1 : 0;
    const bool above = unit < units_ && advised_.find(unit, unit + 1, true) == unit;
    const bool below = unit > 0 && advised_.find(unit - 1, unit, true) != unit;
    require(is_cut || above == below, "advice ends where no cut is");
  }
  require(count == cut_count_, "the cuts do not add up");
  require(all_cuts <= kMostCuts, "more cuts than there may be");
}

}  // namespace memcfg
