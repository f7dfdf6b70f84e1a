// Which tensors to drop and compute again so that a step fits a limit.
//
// A search over schedules. A tensor is held from its computation to its last reader
// before the next; so an op that is put in once more, before a reader, drops its
// outputs between that reader and the one before. Decisions look ahead: every moment of
// the step is known, and `Measure` judges each candidate exactly. Work is counted in
// steps measured, so the same arguments give the same schedule on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "memcfg/measure.hpp"
#include "memcfg/stop.hpp"

namespace memcfg::look_ahead {

// Numbers that look random and are the same everywhere (xorshift64*).
class Chance {
 public:
  explicit Chance(std::uint64_t seed) : state_(2 * seed + 1) {}
  std::size_t below(std::size_t bound) {
    return static_cast<std::size_t>((next() >> 33) % bound);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1DULL;
  }
  std::uint64_t state_;
};

class Search {
 public:
  // Once it is stopped, it gives what it has.
  explicit Search(const Step& step, const Stop& stop = {})
      : step_(step), now_(&measures_[0]), trial_(&measures_[1]), watch_(stop, kAsk) {
    mark_.assign(step.ops(), 0);
    bias_.assign(step.ops(), 1.0);
    double whole = 0;
    for (const double cost : step.cost) whole += cost;
    least_cost_ = 1e-9 * whole;
  }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  // Schedules that need less and less, each a little less than the one before; the
  // last one is within a goal, or else needs the least that is found.
  std::vector<Sequence> descend(const Sequence& start, Extent goal, std::int64_t work) {
    std::vector<Sequence> rungs{start};
    deadline_ = work_ + work;
    run(*now_, start);
    Extent peak = now_->peak;
    double factor = kRung;
    while (peak > goal && !is_over() && 1 - factor > kFinest) {
      const auto part = static_cast<Extent>(factor * static_cast<double>(peak));
      const Extent limit = std::min(part, peak - 1);
      Sequence next;
      if (!reach(start, rungs.back(), limit, next)) {
        factor = (1 + factor) / 2;
        continue;
      }
      run(*now_, next);
      peak = now_->peak;
      rungs.push_back(std::move(next));
    }
    return rungs;
  }

  // The cheapest schedule within a limit that is found from some schedules, which need
  // not be within it; empty if none is.
  Sequence within(const std::vector<Sequence>& starts,
                  Extent limit,
                  std::int64_t work) {
    deadline_ = work_ + work;
    Sequence best;
    double least = std::numeric_limits<double>::infinity();
    for (const Sequence& start : starts) {
      run(*now_, start);
      const Extent above = std::max<Extent>(now_->peak - limit, 0);
      for (const double part : kMargins) {
        Sequence trial = start;
        const auto margin = static_cast<Extent>(part * static_cast<double>(above));
        if (repair(trial, limit, margin, 0)) {
          strip(trial, limit);
          if (now_->cost < least) {
            least = now_->cost;
            best = std::move(trial);
          }
        }
        if (above == 0 || is_over()) break;
      }
    }
    if (!best.empty()) improve(best, limit);
    return best;
  }

  // Schedules within a limit that are found from one within it, each cheaper than the
  // one before, or as cheap with fewer replays; none if nothing is.
  std::vector<Sequence> cheaper(const Sequence& start,
                                Extent limit,
                                std::int64_t work) {
    deadline_ = work_ + work;
    std::vector<Sequence> found;
    Sequence best = start;
    strip(best, limit);
    if (best != start) found.push_back(best);
    improve(best, limit, &found);
    return found;
  }

 private:
  struct Candidate {
    double worth;  // cost by bytes freed: less is better
    double freed;
    Index op, step;
    Index since, tensor;  // what is dropped, from the use before
  };

  bool is_over() { return work_ >= deadline_ || is_stopped(); }
  bool is_stopped() { return watch_.is_over(work_); }

  bool run(Measure& measure, const Sequence& sequence) {
    work_ += static_cast<std::int64_t>(sequence.size());
    return measure.run(sequence);
  }

  // From the schedule of the rung above, or else from the start.
  bool reach(const Sequence& start,
             const Sequence& rung,
             Extent limit,
             Sequence& found) {
    run(*now_, start);
    const auto margin =
        static_cast<Extent>(0.1 * static_cast<double>(now_->peak - limit));
    for (const bool again : {false, true}) {
      found = again ? start : rung;
      if (!repair(found, limit, again ? margin : 0, 0)) continue;
      strip(found, limit);
      return true;
    }
    return false;
  }

  // -- repair -----------------------------------------------------------------------

  // Puts replays in until the limit holds; false where none is found that helps.
  //
  // What a replay is worth is its cost by what it frees of the bytes above the limit
  // less a margin: without one, a large tensor counts little where little is missing.
  // `noise` is the power of two by which random numbers change the costs.
  bool repair(Sequence& sequence, Extent limit, Extent margin, double noise) {
    limit_ = limit;
    goal_ = limit - margin;
    for (double& bias : bias_)
      bias = noise > 0 ? std::exp2(noise * (2 * chance_.unit() - 1)) : 1.0;
    if (!run(*now_, sequence)) return false;
    while (now_->peak > limit) {
      if (is_over()) return false;
      list_candidates();
      if (candidates_.size() + dear_ > kMany && take_many(sequence)) continue;
      if (!take_best(sequence)) return false;
    }
    return true;
  }

  // Every gap between two uses of an instance that spans a moment above the goal. The
  // end uses what is kept.
  void list_candidates() {
    sum_up();
    const Measure& m = *now_;
    candidates_.clear();
    worths_.clear();
    dear_ = 0;
    used_.clear();
    for (const Life& life : m.lives) used_.push_back(life.begin);
    for (Index s = 0; s < m.steps(); ++s) {
      const auto at = static_cast<std::size_t>(s);
      for (Index r = m.first[at]; r < m.first[at + 1]; ++r) {
        const auto life =
            static_cast<std::size_t>(m.reads[static_cast<std::size_t>(r)]);
        const Index since = std::exchange(used_[life], s);
        if (since >= 0 && since + 1 < s) add_candidate(m.lives[life].tensor, since, s);
      }
    }
    for (std::size_t life = 0; life < m.lives.size(); ++life)  // what is kept
      if (m.lives[life].end == m.steps() && used_[life] + 1 < m.steps())
        add_candidate(m.lives[life].tensor, used_[life], m.steps());
  }

  void add_candidate(Index tensor, Index since, Index step) {
    const auto t = static_cast<std::size_t>(tensor);
    const auto from = static_cast<std::size_t>(since) + 2;
    const auto to = static_cast<std::size_t>(step) + 1;
    const Index crowded = count_[to] - count_[from];
    const Index op = step_.producer[t];
    if (crowded == 0 || op < 0) return;
    if (!step_.repeatable[static_cast<std::size_t>(op)]) return;
    const double most = static_cast<double>(step_.bytes[t]) * crowded;
    const double freed = std::min(sum_[to] - sum_[from], most);
    const double bias = bias_[static_cast<std::size_t>(op)];
    most_cost_ = worths_.size() < kListed ? kNever : worths_.front() * freed / bias;
    const bool is_found = close(op, step);
    most_cost_ = kNever;
    if (!is_found) {
      dear_ += is_dear_;
      return;
    }
    double cost = least_cost_;
    for (const Index again : closure_)
      cost += step_.cost[static_cast<std::size_t>(again)];
    cost *= bias;
    candidates_.push_back({cost / freed, freed, op, step, since, tensor});
    note_worth(cost / freed);
  }

  // Keeps the least worths, of which the largest comes first.
  void note_worth(double worth) {
    if (worths_.size() == kListed) {
      if (worth >= worths_.front()) return;
      std::pop_heap(worths_.begin(), worths_.end());
      worths_.pop_back();
    }
    worths_.push_back(worth);
    std::push_heap(worths_.begin(), worths_.end());
  }

  // Sums over the moments: of the bytes above the goal, of such moments, and the most
  // bytes by block of moments.
  void sum_up() {
    const std::size_t moments = now_->load.size();
    sum_.assign(moments + 1, 0);
    count_.assign(moments + 1, 0);
    blocks_.assign(moments / kBlock + 1, 0);
    for (std::size_t i = 0; i < moments; ++i) {
      const Extent over = std::max<Extent>(now_->load[i] - goal_, 0);
      sum_[i + 1] = sum_[i] + static_cast<double>(over);
      count_[i + 1] = count_[i] + (over > 0);
      blocks_[i / kBlock] = std::max(blocks_[i / kBlock], now_->load[i]);
    }
    for (std::size_t width = 1; 2 * width <= blocks_.size(); width *= 2) {
      const std::size_t level = levels_of(width);
      if (spans_.size() == level) spans_.emplace_back();
      const std::vector<Extent>& half = level == 0 ? blocks_ : spans_[level - 1];
      std::vector<Extent>& whole = spans_[level];
      whole.resize(blocks_.size() + 1 - 2 * width);
      for (std::size_t b = 0; b < whole.size(); ++b)
        whole[b] = std::max(half[b], half[b + width]);
    }
  }

  static std::size_t levels_of(std::size_t width) {
    std::size_t level = 0;
    for (; width > 1; width /= 2) ++level;
    return level;
  }

  // What has to be computed before a step so that an op can be, and that op: inputs
  // that are there, or can be held until then, are not.
  //
  // False where that cannot be, or is so much that the candidate is dear: it costs more
  // than `most_cost_`, so that others come first.
  bool close(Index op, Index step) {
    closure_.clear();
    ++epoch_;
    closure_cost_ = 0;
    marked_ = 0;
    is_dear_ = false;
    return require(op, step);
  }

  bool require(Index op, Index step) {
    mark_[static_cast<std::size_t>(op)] = epoch_;
    closure_cost_ += step_.cost[static_cast<std::size_t>(op)];
    if (++marked_ > kShort && closure_cost_ > most_cost_) {
      is_dear_ = true;
      return false;
    }
    for (const Index t : step_.inputs[op]) {
      const Life& life = now_->before(t, step);
      if (life.state) {
        if (life.taken && life.end < step) return false;  // its update was there
        continue;
      }
      if (life.end >= step) continue;
      const Index from = step_.producer[static_cast<std::size_t>(t)];
      if (from < 0 || mark_[static_cast<std::size_t>(from)] == epoch_) continue;
      if (!step_.repeatable[static_cast<std::size_t>(from)]) continue;
      const Extent room = limit_ - step_.bytes[static_cast<std::size_t>(t)];
      if (most_between(life.end + 2, step + 1) <= room) continue;
      if (closure_.size() >= kLongest || !require(from, step)) return false;
    }
    closure_.push_back(op);
    return true;
  }

  // The most bytes in use at moments [begin, end).
  Extent most_between(Index begin, Index end) const {
    Extent most = 0;
    auto moment = static_cast<std::size_t>(begin);
    const auto last = static_cast<std::size_t>(end);
    if (moment >= last) return most;
    const std::size_t first_whole = (moment + kBlock - 1) / kBlock;
    const std::size_t last_whole = last / kBlock;
    if (first_whole < last_whole) {
      for (; moment < first_whole * kBlock; ++moment)
        most = std::max(most, now_->load[moment]);
      most = std::max(most, most_of_blocks(first_whole, last_whole));
      moment = last_whole * kBlock;
    }
    for (; moment < last; ++moment) most = std::max(most, now_->load[moment]);
    return most;
  }

  // Pre: begin < end.
  Extent most_of_blocks(std::size_t begin, std::size_t end) const {
    if (end - begin == 1) return blocks_[begin];
    std::size_t width = 2, level = 0;
    for (; 2 * width <= end - begin; width *= 2) ++level;
    return std::max(spans_[level][begin], spans_[level][end - width]);
  }

  static bool is_better(const Candidate& a, const Candidate& b) {
    return a.worth < b.worth;
  }

  // Takes the candidate that costs least by what it frees, of the best few or, if none
  // of these frees anything, of more and more.
  bool take_best(Sequence& sequence) {
    const double before = now_->excess(goal_), cost = now_->cost;
    const double none = std::numeric_limits<double>::infinity();
    std::size_t tried = 0;
    while (tried < std::min(candidates_.size(), kMost)) {
      const std::size_t some = std::min(candidates_.size(), kFew + 3 * tried);
      const auto begin = candidates_.begin();
      std::partial_sort(begin + static_cast<std::ptrdiff_t>(tried),
                        begin + static_cast<std::ptrdiff_t>(some),
                        candidates_.end(),
                        is_better);
      double best = none;
      for (; tried < some; ++tried) {
        if (is_stopped()) return false;
        const Candidate& candidate = candidates_[tried];
        double freed = 0;
        for (Index place : {candidate.step, Index{-1}}) {
          if (place < 0 && early_ && freed < kKept * candidate.freed)
            place = early_place(candidate);
          if (place < 0) break;
          insert(sequence, candidate.op, place);
          if (!run(*trial_, edited_)) continue;
          freed = before - trial_->excess(goal_);
          if (freed <= 0) continue;
          const double worth = bias_[static_cast<std::size_t>(candidate.op)] *
                               (trial_->cost - cost + least_cost_) / freed;
          if (worth >= best) continue;
          best = worth;
          std::swap(best_, edited_);
        }
      }
      if (best == none) continue;
      std::swap(sequence, best_);
      return run(*now_, sequence);
    }
    return false;
  }

  // The place before the reader's where the fewest bytes are in use, if the tensor can
  // be held from there on; else -1. What a replay itself needs may not fit at the
  // reader.
  Index early_place(const Candidate& candidate) const {
    const Extent room =
        limit_ - step_.bytes[static_cast<std::size_t>(candidate.tensor)];
    const auto beside = [&](Index place) {
      const auto at = static_cast<std::size_t>(place);
      return std::min(now_->load[at], now_->load[at + 1]);
    };
    Index best = -1;
    Extent least = beside(candidate.step);
    for (Index place = candidate.step - 1; place > candidate.since; --place) {
      if (now_->load[static_cast<std::size_t>(place) + 1] > room) break;
      if (candidate.step - place > kEarly) break;
      if (beside(place) >= least) continue;
      least = beside(place);
      best = place;
    }
    return best;
  }

  void insert(const Sequence& sequence, Index op, Index place) {
    close(op, place);
    const auto at = sequence.begin() + place;
    edited_.assign(sequence.begin(), at);
    edited_.insert(edited_.end(), closure_.begin(), closure_.end());
    edited_.insert(edited_.end(), at, sequence.end());
  }

  // Takes the best candidates at once, for an eighth of what is above the goal, if that
  // frees at least half of what they promise.
  bool take_many(Sequence& sequence) {
    std::sort(candidates_.begin(), candidates_.end(), is_better);
    const double before = now_->excess(goal_);
    double promised = 0;
    again_.assign(step_.ops(), 0);
    chosen_.clear();
    for (const Candidate& candidate : candidates_) {
      close(candidate.op, candidate.step);
      bool apart = true;
      for (const Index op : closure_)
        apart = apart && !again_[static_cast<std::size_t>(op)];
      if (!apart) continue;
      for (const Index op : closure_) {
        again_[static_cast<std::size_t>(op)] = 1;
        chosen_.push_back({candidate.step, op});
      }
      promised += candidate.freed;
      if (promised > before / 8) break;
    }
    std::stable_sort(chosen_.begin(), chosen_.end(), [](const auto& a, const auto& b) {
      return a.first < b.first;
    });
    edited_.clear();
    auto next = chosen_.begin();
    for (std::size_t s = 0; s < sequence.size(); ++s) {
      for (; next != chosen_.end() && next->first == static_cast<Index>(s); ++next)
        edited_.push_back(next->second);
      edited_.push_back(sequence[s]);
    }
    if (!run(*trial_, edited_) || before - trial_->excess(goal_) < promised / 2)
      return false;
    std::swap(sequence, edited_);
    std::swap(now_, trial_);
    return true;
  }

  // -- removal ----------------------------------------------------------------------

  // Leaves out what the limit does not need, the most expensive first. `now_` measures
  // what is left.
  void strip(Sequence& sequence, Extent limit) {
    limit_ = goal_ = limit;
    run(*now_, sequence);
    if (sequence.size() > kStripped) return strip_groups(sequence);
    bool any = true;
    while (any) {
      any = false;
      list_repeated(sequence);
      std::stable_sort(places_.begin(), places_.end(), [&](Index a, Index b) {
        return cost_at(sequence, a) > cost_at(sequence, b);
      });
      sum_up();
      for (std::size_t i = 0; i < places_.size(); ++i) {
        if (is_stopped()) return;
        const Index place = places_[i];
        if (!might_go(sequence, place)) continue;
        edited_ = sequence;
        edited_.erase(edited_.begin() + place);
        if (!run(*trial_, edited_) || trial_->peak > limit) continue;
        std::swap(sequence, edited_);
        std::swap(now_, trial_);
        sum_up();
        any = true;
        for (Index& other : places_) other -= other > place;
      }
    }
  }

  // Of a long sequence: leaves out all replays that might go, or else halves of them,
  // with a number of tries.
  void strip_groups(Sequence& sequence) {
    list_repeated(sequence);
    again_.assign(step_.ops(), 0);
    sum_up();
    std::vector<std::vector<Index>> groups(1);
    for (const Index place : places_) {
      const auto op =
          static_cast<std::size_t>(sequence[static_cast<std::size_t>(place)]);
      if (std::exchange(again_[op], 1) && might_go(sequence, place))
        groups.back().push_back(place);
    }
    std::stable_sort(groups[0].begin(), groups[0].end(), [&](Index a, Index b) {
      return cost_at(sequence, a) > cost_at(sequence, b);
    });
    const Sequence whole = sequence;
    gone_.assign(whole.size(), 0);
    for (int tries = kGroups; tries > 0 && !groups.empty(); --tries) {
      if (is_stopped()) return;
      const std::vector<Index> group = std::move(groups.back());
      groups.pop_back();
      if (group.empty()) continue;
      for (const Index place : group) gone_[static_cast<std::size_t>(place)] = 1;
      edited_.clear();
      for (std::size_t place = 0; place < whole.size(); ++place)
        if (!gone_[place]) edited_.push_back(whole[place]);
      if (run(*trial_, edited_) && trial_->peak <= limit_) {
        std::swap(sequence, edited_);
        std::swap(now_, trial_);
        continue;
      }
      for (const Index place : group) gone_[static_cast<std::size_t>(place)] = 0;
      if (group.size() == 1) continue;
      const auto middle = group.begin() + static_cast<std::ptrdiff_t>(group.size() / 2);
      groups.emplace_back(middle, group.end());
      groups.emplace_back(group.begin(), middle);
    }
  }

  double cost_at(const Sequence& sequence, Index place) const {
    return step_
        .cost[static_cast<std::size_t>(sequence[static_cast<std::size_t>(place)])];
  }

  // The places of ops that stand in the sequence more than once.
  void list_repeated(const Sequence& sequence) {
    times_.assign(step_.ops(), 0);
    for (const Index op : sequence) ++times_[static_cast<std::size_t>(op)];
    places_.clear();
    for (std::size_t place = 0; place < sequence.size(); ++place)
      if (times_[static_cast<std::size_t>(sequence[place])] > 1)
        places_.push_back(static_cast<Index>(place));
  }

  // Whether the limit might hold without the computation at a place: before it, the
  // instances before its outputs would be held, and its inputs perhaps would not.
  bool might_go(const Sequence& sequence, Index place) const {
    const auto at = static_cast<std::size_t>(place);
    const Index op = sequence[at];
    Extent given = 0;
    for (Index r = now_->first[at]; r < now_->first[at + 1]; ++r) {
      const Life& life = now_->lives[static_cast<std::size_t>(
          now_->reads[static_cast<std::size_t>(r)])];
      if (life.end == place && !life.state)
        given += step_.bytes[static_cast<std::size_t>(life.tensor)];
    }
    auto made = static_cast<std::size_t>(now_->made[at]);
    for (const Index t : step_.outputs[op]) {
      const Life& life = now_->lives[made++];
      if (life.previous < 0 || life.end == life.begin) continue;
      const Index since = now_->lives[static_cast<std::size_t>(life.previous)].end;
      const Extent size = step_.bytes[static_cast<std::size_t>(t)];
      if (most_between(since + 2, place + 1) + size - given > limit_) return false;
    }
    return true;
  }

  // -- large neighbourhoods ---------------------------------------------------------

  // Leaves out replays of parts of the sequence and puts in others, as long as the work
  // lasts, for the least cost within the limit. Every best one goes into a list, too.
  void improve(Sequence& best, Extent limit, std::vector<Sequence>* list = nullptr) {
    run(*now_, best);
    double best_cost = now_->cost, current_cost = best_cost;
    Index best_replayed = now_->replayed;
    Sequence current = best, trial;
    while (!is_over() && best_replayed > 0) {
      trial = current;
      early_ = list != nullptr && chance_.below(2);
      destroy(trial);
      const double part = chance_.below(2) ? 0 : chance_.unit() * chance_.unit();
      const auto margin = static_cast<Extent>(part * static_cast<double>(limit));
      if (!repair(trial, limit, margin, 1)) continue;
      strip(trial, limit);
      if (now_->cost > current_cost + kSlack * best_cost * chance_.unit()) continue;
      std::swap(current, trial);
      current_cost = now_->cost;
      if (current_cost > best_cost) continue;
      if (current_cost == best_cost && now_->replayed >= best_replayed) continue;
      best = current;
      best_cost = current_cost;
      best_replayed = now_->replayed;
      if (list != nullptr) list->push_back(best);
    }
  }

  // Leaves out replays: some that follow each other, or some here and there.
  void destroy(Sequence& sequence) {
    again_.assign(step_.ops(), 0);
    places_.clear();
    for (std::size_t place = 0; place < sequence.size(); ++place)
      if (std::exchange(again_[static_cast<std::size_t>(sequence[place])], 1))
        places_.push_back(static_cast<Index>(place));
    gone_.assign(sequence.size(), 0);
    const std::size_t count = places_.size();
    if (count == 0) return;
    const std::size_t most = std::clamp<std::size_t>(count / 4, 2, kGone);
    const std::size_t some = 1 + chance_.below(most);
    const bool together = chance_.below(2);
    const std::size_t begin = chance_.below(count);
    for (std::size_t i = 0; i < some; ++i) {
      const std::size_t which = together ? (begin + i) % count : chance_.below(count);
      gone_[static_cast<std::size_t>(places_[which])] = 1;
    }
    edited_.clear();
    for (std::size_t place = 0; place < sequence.size(); ++place)
      if (!gone_[place]) edited_.push_back(sequence[place]);
    std::swap(sequence, edited_);
  }

  static constexpr double kMargins[] = {0, 0.1, 0.25, 0.5, 1, 2};
  static constexpr double kRung = 0.95, kFinest = 0.004, kSlack = 0.002;
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr std::size_t kBlock = 32;      // moments
  static constexpr std::size_t kListed = 256;    // candidates of which all are known
  static constexpr std::size_t kShort = 48;      // ops looked at before it may be dear
  static constexpr std::size_t kLongest = 1000;  // ops that one candidate repeats
  static constexpr std::size_t kFew = 6, kMost = 96, kMany = 512;  // candidates
  static constexpr double kKept = 0.75;     // of the freed bytes, else an earlier place
  static constexpr Index kEarly = 32;       // steps by which a replay may come earlier
  static constexpr std::size_t kGone = 24;  // replays left out at once
  // Ops from which a sequence is so long that replays are left out in groups, and how
  // many groups are tried then.
  static constexpr std::size_t kStripped = 20'000;
  static constexpr int kGroups = 64;
  static constexpr std::int64_t kAsk = 50'000;  // steps measured: about 10 ms

  const Step& step_;
  Measure measures_[2] = {Measure(step_), Measure(step_)};
  Measure *now_, *trial_;  // of the sequence in work, and of an edit of it
  Chance chance_{1};
  std::int64_t work_ = 0, deadline_ = 0;  // steps measured
  Watch watch_;
  double least_cost_;
  Extent limit_ = 0, goal_ = 0;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> mark_;  // by op: the last epoch that had it in a closure
  std::vector<double> bias_, sum_;
  std::vector<Candidate> candidates_;
  std::vector<double> worths_;  // the least, a heap
  std::size_t dear_ = 0;        // candidates that are not listed
  std::size_t marked_ = 0;      // ops of a closure, and their cost, so far
  double closure_cost_ = 0, most_cost_ = kNever;
  bool is_dear_ = false;
  bool early_ = false;  // whether replays are tried at earlier places, too
  std::vector<std::pair<Index, Index>> chosen_;  // step and op
  std::vector<Index> closure_, used_, count_, places_, times_;
  std::vector<Extent> blocks_;
  std::vector<std::vector<Extent>> spans_;  // by level k: the most of 2^(k+1) blocks
  std::vector<std::uint8_t> gone_, again_;
  Sequence edited_, best_;
};

inline std::vector<Sequence> descend(const Step& step,
                                     const Sequence& start,
                                     Extent goal,
                                     std::int64_t work,
                                     const Stop& stop = {}) {
  return Search(step, stop).descend(start, goal, work);
}

inline Sequence within(const Step& step,
                       const std::vector<Sequence>& starts,
                       Extent limit,
                       std::int64_t work,
                       const Stop& stop = {}) {
  return Search(step, stop).within(starts, limit, work);
}

inline std::vector<Sequence> cheaper(const Step& step,
                                     const Sequence& start,
                                     Extent limit,
                                     std::int64_t work,
                                     const Stop& stop = {}) {
  return Search(step, stop).cheaper(start, limit, work);
}

}  // namespace memcfg::look_ahead
