// Large-neighbourhood search over schedules: parts of one are planned anew, completely.
//
// What is open of a part (`exact::Window`) is drawn at random: all ops of some places
// in a row; an op that is computed again, with ops around it in the graph; or some that
// are computed again one after the other, with what reads them. The best plan of the
// part is found, or proven to be what there is. Work is counted in states compared and
// places looked at, so the same arguments give the same schedules on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memcfg/exact_window.hpp"
#include "memcfg/look_ahead.hpp"

namespace memcfg::large_neighbourhood {

using exact::Measured;
using exact::Window;
using liveness::Index;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

class Search {
 public:
  // Once it is stopped, it gives what it has.
  explicit Search(const Step& step, const Stop& stop = {})
      : step_(step), stop_(stop), watch_(stop, exact::kAsk), now_(step), trial_(step) {
    readers_.resize(step.ops());
    for (Index op = 0; op < static_cast<Index>(step.ops()); ++op)
      for (const Index t : step.inputs[op])
        if (const Index from = step.producer[at(t)]; from >= 0)
          readers_[at(from)].push_back(op);
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Schedules within a limit, each cheaper than the one before, from a legal one within
  // it on; none if nothing is found.
  std::vector<Sequence> run(const Sequence& start, Extent limit, std::int64_t effort) {
    std::vector<Sequence> found;
    effort_ = effort;
    now_.set(start);
    look();
    std::size_t known = 0;  // parts in a row that were planned before
    while (!again_.empty() && !is_over() && known < kKnown) {
      choose();
      if (!tried_.insert(key()).second) {
        ++known, ++work_;
        continue;
      }
      known = 0;
      if (replan(limit)) found.push_back(now_.sequence);
    }
    return found;
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  bool is_over() { return work_ >= effort_ || watch_.is_over(work_); }

  Index op_at(Index place) const { return now_.sequence[at(place)]; }
  Index length() const { return static_cast<Index>(now_.sequence.size()); }

  // Lists what the schedule computes again at a cost.
  void look() {
    work_ += length();
    tried_.clear();
    again_.clear();
    for (Index place = 0; place < length(); ++place) {
      const Index op = op_at(place);
      if (now_.first[at(op)] != place && step_.cost[at(op)] > 0)
        again_.push_back(place);
    }
  }

  // -- what is open -----------------------------------------------------------------

  void choose() {
    const std::size_t which = chance_.below(again_.size());
    const std::size_t kind = chance_.below(8);
    ops_.clear();
    is_row_ = kind == 0;
    if (is_row_) {
      const Index width = kRow + static_cast<Index>(chance_.below(kRow));
      const auto back = static_cast<Index>(chance_.below(at(width)));
      begin_ = std::max<Index>(0, again_[which] - back);
      end_ = std::min<Index>(length(), begin_ + width);
      open_row();
      return;
    }
    const std::size_t most = kFewest + chance_.below(kMore);
    if (kind < 4)
      open_around(op_at(again_[which]), most);
    else
      open_readers(which, most);
    span();
  }

  void open_row() {
    ops_.assign(now_.sequence.begin() + begin_, now_.sequence.begin() + end_);
  }

  void open_around(Index op, std::size_t most) {
    add(op);
    for (std::size_t tries = 0; ops_.size() < most && tries < 4 * most; ++tries)
      add(neighbour(ops_[chance_.below(ops_.size())]));
  }

  void open_readers(std::size_t which, std::size_t most) {
    for (; which < again_.size() && ops_.size() < most; ++which) {
      const Index op = op_at(again_[which]);
      add(op);
      for (const Index reader : readers_[at(op)])
        if (ops_.size() < most) add(reader);
    }
  }

  void add(Index op) {
    if (std::find(ops_.begin(), ops_.end(), op) == ops_.end()) ops_.push_back(op);
  }

  // An op that makes what an op reads, or reads what it makes; itself: there is none.
  Index neighbour(Index op) {
    const auto inputs = step_.inputs[op];
    const auto& readers = readers_[at(op)];
    const auto count = static_cast<std::size_t>(inputs.end() - inputs.begin());
    if (count + readers.size() == 0) return op;
    const std::size_t which = chance_.below(count + readers.size());
    if (which >= count) return readers[which - count];
    const Index from = step_.producer[at(inputs.first[which])];
    return from < 0 ? op : from;
  }

  // Sets the part to where the open ops run and what they make is read.
  void span() {
    mark_.assign(step_.ops(), 0);
    for (const Index op : ops_) mark_[at(op)] = 1;
    begin_ = length(), end_ = 0;
    for (Index place = 0; place < length(); ++place) {
      if (!touches(op_at(place))) continue;
      begin_ = std::min(begin_, place);
      end_ = place + 1;
    }
  }

  bool touches(Index op) const {
    if (mark_[at(op)]) return true;
    for (const Index t : step_.inputs[op])
      if (const Index from = step_.producer[at(t)]; from >= 0 && mark_[at(from)])
        return true;
    return false;
  }

  // Opens less of a part that is too large; false: there is nothing left to open.
  bool shrink() {
    if (is_row_) {
      end_ -= (end_ - begin_ + 3) / 4;
      open_row();
    } else {
      ops_.resize(ops_.size() - (ops_.size() + 3) / 4);
      span();
    }
    return !ops_.empty();
  }

  // A number of what is open.
  std::uint64_t key() {
    if (is_row_)
      return std::uint64_t{1} << 63 | static_cast<std::uint64_t>(begin_) << 32 |
             static_cast<std::uint64_t>(end_);
    std::uint64_t sum = 0;
    for (const Index op : ops_) {
      std::uint64_t part = static_cast<std::uint64_t>(op + 1) * 0x9E3779B97F4A7C15ull;
      part ^= part >> 29;
      sum += part * 0xBF58476D1CE4E5B9ull;
    }
    return sum >> 1;
  }

  // ---------------------------------------------------------------------------------

  // Plans the part anew; whether that is cheaper.
  bool replan(Extent limit) {
    while (true) {
      work_ += length() / 4 + 1;
      const Window window(now_, begin_, end_, ops_, limit);
      if (!window.holds) {
        if (!shrink()) return false;
        continue;
      }
      const exact::Cost below{window.cost.cost * (1 - kRounding), 0};
      if (!(below.cost > 0)) return false;
      const std::int64_t most = std::min(effort_ - work_, kStates);
      const auto found =
          exact::Search(window.model, limit, true, most, stop_, below).run();
      work_ += found.work;
      return found.verdict == exact::Verdict::kFound &&
             take(window.replaced(found.sequence), limit);
    }
  }

  // Takes a schedule that the measure finds cheaper and within the limit. It may find
  // more bytes than the window where an op has several pairs of which it grants others.
  bool take(Sequence&& sequence, Extent limit) {
    trial_.set(std::move(sequence));
    if (!trial_.legal || trial_.measure.peak > limit ||
        trial_.measure.cost >= now_.measure.cost)
      return false;
    now_.set(trial_.sequence);
    look();
    return true;
  }

  static constexpr double kRounding = 1e-12;             // of a sum of costs
  static constexpr std::int64_t kStates = 3000;          // compared for one part
  static constexpr std::size_t kKnown = 100;             // then all are taken for tried
  static constexpr std::size_t kFewest = 2, kMore = 12;  // open ops of a set
  static constexpr Index kRow = 12;  // places in a row, up to twice it

  const Step& step_;
  const Stop stop_;
  Watch watch_;
  Measured now_, trial_;
  look_ahead::Chance chance_{1};
  std::int64_t work_ = 0, effort_ = 0;
  std::vector<std::vector<Index>> readers_;  // by op
  std::vector<Index> again_;                 // places of what is computed again
  std::vector<Index> ops_;                   // that are open
  Index begin_ = 0, end_ = 0;                // the part's places
  bool is_row_ = false;                      // all its ops are open
  std::vector<std::uint8_t> mark_;           // by op: it is open
  std::unordered_set<std::uint64_t> tried_;  // of the schedule: keys of parts
};

// See `Search::run`.
inline std::vector<Sequence> replanned(const Step& step,
                                       const Sequence& start,
                                       Extent limit,
                                       std::int64_t effort,
                                       const Stop& stop = {}) {
  return Search(step, stop).run(start, limit, effort);
}

}  // namespace memcfg::large_neighbourhood
