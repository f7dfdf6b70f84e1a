// Whether buffers with fixed lifetimes fit a capacity: a complete search.
//
// Branch and bound over canonical placements, after Moffitt, "MiniMalloc: a lightweight
// memory allocator for hardware-accelerated machine learning", ASPLOS 2023: buffers are
// placed by rising offset, each on what lies below it; a buffer goes nowhere that
// leaves room for a whole other one below; each section of time has a floor under what
// is not placed yet, and ends the branch if that does not fit above it; parts that
// share no section are searched by themselves. New here: the search begins again after
// a number of branches, first with what stood in the sections that were too full
// (Boussemart et al., "Boosting systematic search by weighting constraints", ECAI
// 2004).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "memcfg/packing.hpp"
#include "memcfg/stop.hpp"

namespace memcfg::packing {

enum class Verdict : std::int32_t {
  kFits = 0,
  kTooHigh = 1,  // no placement fits
  kUnknown = 2,  // the effort was spent, or the search was stopped
};

// One search. Pre: no buffer is larger than the capacity, and none has a size of 0.
class ExactSearch {
 public:
  ExactSearch(const Buffers& buffers, Extent capacity)
      : capacity_(capacity), sizes_(buffers.size()), spans_(buffers.size()) {
    std::vector<Time> times;
    for (const Buffer& b : buffers) {
      times.push_back(b.lower);
      times.push_back(b.upper);
    }
    std::sort(times.begin(), times.end());
    times.erase(std::unique(times.begin(), times.end()), times.end());
    const auto section = [&](Time time) {
      return static_cast<Index>(std::lower_bound(times.begin(), times.end(), time) -
                                times.begin());
    };
    members_.resize(times.empty() ? 0 : times.size() - 1);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      sizes_[i] = buffers[i].size;
      spans_[i] = {section(buffers[i].lower), section(buffers[i].upper)};
      for (Index s = spans_[i].begin; s < spans_[i].end; ++s)
        members_[s].push_back(static_cast<Index>(i));
    }
    meets_.resize(buffers.size());
    for (std::size_t i = 0; i < buffers.size(); ++i)
      for (std::size_t j = 0; j < buffers.size(); ++j)
        if (i != j && spans_[i].begin < spans_[j].end &&
            spans_[j].begin < spans_[i].end)
          meets_[i].push_back(static_cast<Index>(j));
    whole_.resize(members_.size());
    for (std::size_t s = 0; s < members_.size(); ++s)
      for (const Index i : members_[s]) whole_[s] += sizes_[i];
    conflicts_.resize(buffers.size());
  }

  // Searches until `effort` is spent or something is certain; `offsets` by buffer are
  // filled if all fit. What is certain does not depend on the effort.
  Verdict run(std::int64_t effort, const Stop& stop, std::vector<Extent>& offsets) {
    const std::vector<Permutation> orders = static_orders();
    std::vector<std::vector<double>> conflicts(orders.size(), conflicts_);
    effort_ = effort;
    next_question_ = effort - kQuestion;
    stop_ = &stop;
    is_over_ = false;
    double branches = kBranches;
    for (;; branches *= kGrowth) {
      for (std::size_t o = 0; o < orders.size(); ++o) {
        conflicts_.swap(conflicts[o]);
        rank_by(orders[o]);
        begin(static_cast<std::int64_t>(branches));
        const bool fits = search_parts(everything(), 0, -1);
        for (double& conflict : conflicts_) conflict *= kForget;
        conflicts_.swap(conflicts[o]);
        if (fits) {
          offsets = offsets_;
          return Verdict::kFits;
        }
        if (effort_ <= 0 || is_over_ || stop.now()) return Verdict::kUnknown;
        if (branches_ >= 0) return Verdict::kTooHigh;  // nothing was left out
      }
    }
  }

 private:
  using Index = std::uint32_t;
  using Part = std::vector<Index>;  // buffers that are not placed yet
  struct Span {                     // of sections
    Index begin;
    Index end;
  };
  struct Change {
    Extent* value;
    Extent before;
  };

  // Measured on the public instances of MiniMalloc, which others within a factor of two
  // solve as well, one of them at times ten times later.
  static constexpr double kBranches = 1000, kGrowth = 1.05, kForget = 0.7;
  static constexpr std::int64_t kQuestion = 20'000'000;  // comparisons: about 0.05 s
  static constexpr double kConflicts = 4;  // their part in an order, the static one's 1

  // Orders by lifetime (W), area (A) and the bytes of the fullest section (T), the
  // first key first: those of the paper, and one by area.
  std::vector<Permutation> static_orders() const {
    const std::size_t n = sizes_.size();
    std::vector<double> w(n), a(n), t(n);
    for (std::size_t i = 0; i < n; ++i) {
      w[i] = static_cast<double>(spans_[i].end - spans_[i].begin);
      a[i] = w[i] * static_cast<double>(sizes_[i]);
      for (Index s = spans_[i].begin; s < spans_[i].end; ++s)
        t[i] = std::max(t[i], static_cast<double>(whole_[s]));
    }
    std::vector<Permutation> orders;
    for (const auto& keys : {std::vector<const std::vector<double>*>{&t, &w, &a},
                             {&t, &a, &w},
                             {&w, &a, &t},
                             {&a, &t, &w}}) {
      Permutation order(n);
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) {
        const auto i = static_cast<std::size_t>(x), j = static_cast<std::size_t>(y);
        for (const auto* key : keys)
          if ((*key)[i] != (*key)[j]) return (*key)[i] > (*key)[j];
        return x < y;
      });
      orders.push_back(std::move(order));
    }
    return orders;
  }

  // Ranks buffers by an order and by the conflicts that they took part in.
  void rank_by(const Permutation& order) {
    const std::size_t n = order.size();
    const double most =
        n == 0 ? 0 : *std::max_element(conflicts_.begin(), conflicts_.end());
    std::vector<double> key(n);
    for (std::size_t k = 0; k < n; ++k) {
      const auto i = static_cast<std::size_t>(order[k]);
      key[i] = -static_cast<double>(k) / static_cast<double>(n);
      if (most > 0) key[i] += kConflicts * conflicts_[i] / most;
    }
    Part ranked = everything();
    std::sort(ranked.begin(), ranked.end(), [&](Index i, Index j) {
      return key[i] != key[j] ? key[i] > key[j] : i < j;
    });
    rank_.resize(n);
    for (std::size_t k = 0; k < n; ++k) rank_[ranked[k]] = static_cast<std::int64_t>(k);
    // Of buffers that are alike, those of lower rank go first: any other way is the
    // same placement with two names exchanged.
    twin_.assign(n, kNone);
    const auto alike = [&](Index i, Index j) {
      return sizes_[i] == sizes_[j] && spans_[i].begin == spans_[j].begin &&
             spans_[i].end == spans_[j].end;
    };
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t before = k; before-- > 0;)
        if (alike(ranked[k], ranked[before])) {
          twin_[ranked[k]] = ranked[before];
          break;
        }
  }

  Part everything() const {
    Part all(sizes_.size());
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }

  // Forgets what was placed.
  void begin(std::int64_t branches) {
    const std::size_t n = sizes_.size();
    branches_ = branches;
    changes_.clear();
    offsets_.assign(n, 0);
    placed_.assign(n, 0);
    rest_.assign(n, 0);
    low_.assign(n, 0);
    floor_.assign(members_.size(), 0);
    load_ = whole_;
    queued_.assign(members_.size(), 0);
  }

  void set(Extent& value, Extent to) {
    changes_.push_back({&value, value});
    value = to;
  }

  void undo(std::size_t mark) {
    for (; changes_.size() > mark; changes_.pop_back())
      *changes_.back().value = changes_.back().before;
  }

  void look_at(Index section) {
    if (queued_[section]) return;
    queued_[section] = 1;
    queue_.push_back(section);
  }

  // Says that a buffer begins at `offset` or above.
  void raise(Index i, Extent offset) {
    if (low_[i] >= offset) return;
    set(low_[i], offset);
    for (Index s = spans_[i].begin; s < spans_[i].end; ++s) look_at(s);
  }

  // Whether what is not placed fits above a section's floor; notes a conflict if not.
  bool fits_above(Index s) {
    if (floor_[s] + load_[s] <= capacity_) return true;
    note_conflict(s);
    return false;
  }

  void note_conflict(Index s) {
    for (const Index i : members_[s])
      if (!placed_[i]) conflicts_[i] += 1;
  }

  // Raises the floors of the sections in the queue. False if one is too full.
  bool raise_floors() {
    bool fits = true;
    for (std::size_t k = 0; k < queue_.size(); ++k) {
      const Index s = queue_[k];
      queued_[s] = 0;
      if (!fits || load_[s] == 0) continue;
      Extent low = std::numeric_limits<Extent>::max();
      for (const Index i : members_[s])
        if (!placed_[i]) low = std::min(low, low_[i]);
      effort_ -= static_cast<std::int64_t>(members_[s].size());
      if (low > floor_[s]) set(floor_[s], low);
      fits = fits_above(s);
    }
    queue_.clear();
    return fits;
  }

  // Places a buffer where it rests, and says that the others of its part begin no
  // lower. False if they cannot fit any more.
  bool place(Index i, const Part& others) {
    const Extent offset = low_[i], top = offset + sizes_[i];
    offsets_[i] = offset;
    set(placed_[i], 1);
    for (Index s = spans_[i].begin; s < spans_[i].end; ++s) {
      set(load_[s], load_[s] - sizes_[i]);
      set(floor_[s], top);
      if (!fits_above(s)) return false;
    }
    for (Index s = spans_[i].begin; s < spans_[i].end; ++s) look_at(s);
    for (const Index j : meets_[i]) {
      if (placed_[j] || rest_[j] >= top) continue;
      set(rest_[j], top);
      raise(j, top);
    }
    for (const Index j : others) raise(j, offset);
    effort_ -= static_cast<std::int64_t>(meets_[i].size() + others.size());
    return raise_floors();
  }

  // Searches the parts of a part that share no section, the smallest first.
  bool search_parts(Part part, Extent least, std::int64_t least_rank) {
    std::sort(part.begin(), part.end(), [&](Index i, Index j) {
      return spans_[i].begin != spans_[j].begin ? spans_[i].begin < spans_[j].begin
                                                : i < j;
    });
    std::vector<Part> parts;
    Index end = 0;
    for (const Index i : part) {
      if (parts.empty() || spans_[i].begin >= end) parts.emplace_back();
      parts.back().push_back(i);
      end = std::max(end, spans_[i].end);
    }
    std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
      return a.size() < b.size();
    });
    return std::all_of(parts.begin(), parts.end(), [&](const Part& each) {
      return search(each, least, least_rank);
    });
  }

  // Places a part; what is placed next has at least this offset, and at this offset at
  // least this rank. Leaves offsets of what it placed, and, if it fails, nothing else.
  bool search(const Part& part, Extent least, std::int64_t least_rank) {
    if (--branches_ < 0 || effort_ <= 0 || is_over()) {
      branches_ = -1;
      return false;
    }
    Extent roof = std::numeric_limits<Extent>::max();  // a whole buffer fits below it
    Index begin = spans_[part.front()].begin, end = 0;
    for (const Index i : part) {
      roof = std::min(roof, low_[i] + sizes_[i]);
      begin = std::min(begin, spans_[i].begin);
      end = std::max(end, spans_[i].end);
    }
    Index full = begin;  // the section that would be the first to be too full
    for (Index s = begin; s < end; ++s)
      if (load_[s] > load_[full]) full = s;
    effort_ -= static_cast<std::int64_t>(part.size() + end - begin);
    Part next;
    bool too_full = false;
    for (const Index i : part) {
      if (low_[i] >= roof) continue;
      if (rest_[i] < low_[i]) continue;  // something has to come below it first
      if (low_[i] == least && rank_[i] < least_rank) continue;
      if (twin_[i] != kNone && !placed_[twin_[i]]) continue;
      if (low_[i] + load_[full] > capacity_)
        too_full = true;  // all that is left would begin no lower
      else
        next.push_back(i);
    }
    if (too_full) note_conflict(full);
    std::sort(next.begin(), next.end(), [&](Index i, Index j) {
      return low_[i] != low_[j] ? low_[i] < low_[j] : rank_[i] < rank_[j];
    });
    Part others;
    for (const Index i : next) {
      const std::size_t mark = changes_.size();
      const Extent offset = low_[i];
      others.clear();
      std::copy_if(part.begin(), part.end(), std::back_inserter(others), [&](Index j) {
        return j != i;
      });
      if (place(i, others) && search_parts(others, offset, rank_[i])) return true;
      undo(mark);
      if (branches_ < 0) return false;
    }
    return false;
  }

  // Whether whoever waits has had enough; asked now and then.
  bool is_over() {
    if (is_over_ || effort_ > next_question_) return is_over_;
    next_question_ = effort_ - kQuestion;
    return is_over_ = stop_->now();
  }

  static constexpr Index kNone = std::numeric_limits<Index>::max();

  const Extent capacity_;
  std::vector<Extent> sizes_;         // by buffer
  std::vector<Span> spans_;           // by buffer
  std::vector<Part> meets_;           // by buffer: those that live at the same time
  std::vector<Part> members_;         // by section: the buffers that live in it
  std::vector<Extent> whole_;         // by section: their bytes
  std::vector<std::int64_t> rank_;    // by buffer
  std::vector<Index> twin_;           // by buffer: one like it of the next lower rank
  std::vector<double> conflicts_;     // by buffer
  std::vector<Extent> offsets_;       // by buffer, of those that are placed
  std::vector<Extent> placed_;        // by buffer: 0 or 1
  std::vector<Extent> rest_;          // by buffer: the top of what is placed below
  std::vector<Extent> low_;           // by buffer: its offset is no lower
  std::vector<Extent> floor_;         // by section: nothing else begins below
  std::vector<Extent> load_;          // by section: bytes that are not placed
  std::vector<Change> changes_;       // the last one last
  std::vector<Index> queue_;          // sections to look at
  std::vector<std::uint8_t> queued_;  // by section
  std::int64_t branches_ = 0;         // left before the next beginning; -1: none
  std::int64_t effort_ = 0;           // left
  std::int64_t next_question_ = 0;    // the effort left when to ask again
  const Stop* stop_ = nullptr;        // while it runs
  bool is_over_ = false;
};

}  // namespace memcfg::packing
