// What a sequence of ops needs, measured again and again: pure functions over a step.
//
// It says the same as `schedule.hpp`, which says it once: a search measures ten
// thousands of sequences, so nothing is allocated for one, and faults have no words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/schedule.hpp"

namespace memcfg::look_ahead {

using liveness::Index;
using liveness::Phase;
using liveness::Rows;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

// An instance of a tensor, as in `liveness::Instance`.
struct Life {
  Index tensor;
  Index begin;     // the step that computes it; -1: there from the start
  Index end;       // the last step that reads it; the number of steps: to the end
  Index previous;  // the instance of the same tensor before it, or -1
  bool state;      // lives in the buffer of a persistent tensor
  bool taken;      // its buffer is taken over at its end
  bool taking;     // it takes a buffer over
};

class Measure {
 public:
  explicit Measure(const Step& step)
      : step_(step), overwriter_(schedule::overwriters(step)) {
    for (std::size_t op = 0; op < step.ops(); ++op) add_pairs(static_cast<Index>(op));
    for (const Phase phase : step.phase) forward_ += phase == Phase::kForward;
    for (std::size_t t = 0; t < step.tensors(); ++t) {
      if (step.producer[t] < 0) sources_.push_back(static_cast<Index>(t));
      if (step.keep[t]) kept_.push_back(static_cast<Index>(t));
      if (step.producer[t] < 0 && step.persistent[t]) base_ += step.bytes[t];
    }
    latest_.resize(step.tensors());
    computed_.resize(step.ops());
  }

  // Whether the sequence is legal; the rest is meaningful only then.
  bool run(const Sequence& sequence) {
    steps_ = static_cast<Index>(sequence.size());
    return follow(sequence) && take_over(sequence) && (add_up(sequence), true);
  }

  // The bytes above a limit, summed over the moments.
  double excess(Extent limit) const {
    double sum = 0;
    for (const Extent bytes : load)
      if (bytes > limit) sum += static_cast<double>(bytes - limit);
    return sum;
  }

  // The instance of a tensor that there is before a step.
  const Life& before(Index tensor, Index step) const {
    const Life* life =
        &lives[static_cast<std::size_t>(latest_[static_cast<std::size_t>(tensor)])];
    while (life->begin >= step && life->previous >= 0)
      life = &lives[static_cast<std::size_t>(life->previous)];
    return *life;
  }

  Index steps() const { return steps_; }

  double cost = 0;           // of what is computed again
  Index replayed = 0;        // ops computed again
  Extent peak = 0;           // bytes in use at the busiest moment
  std::vector<Extent> load;  // by moment: the start, the steps, the end
  std::vector<Life> lives;
  std::vector<Index> reads;  // instances read, step after step, in the op's order
  std::vector<Index> first;  // by step and one more: where its reads start in `reads`
  std::vector<Index> made;   // by step: its first output's instance

 private:
  struct Pair {
    Index input, output;  // places among the op's inputs and outputs
    bool equal;           // of equal size
    bool fits;            // the output is not larger
  };

  void add_pairs(Index op) {
    const auto pairs = step_.pairs[op];
    const auto inputs = step_.inputs[op], outputs = step_.outputs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      const auto in = std::find(inputs.begin(), inputs.end(), pair[0]);
      const auto out = std::find(outputs.begin(), outputs.end(), pair[1]);
      const Extent had = step_.bytes[static_cast<std::size_t>(pair[0])];
      const Extent wanted = step_.bytes[static_cast<std::size_t>(pair[1])];
      pairs_.push_back({static_cast<Index>(in - inputs.begin()),
                        static_cast<Index>(out - outputs.begin()),
                        wanted == had,
                        wanted <= had});
    }
    pair_start_.push_back(static_cast<Index>(pairs_.size()));
  }

  bool follow(const Sequence& sequence) {
    lives.clear(), reads.clear(), first.clear(), made.clear();
    cost = 0, replayed = 0;
    std::fill(latest_.begin(), latest_.end(), -1);
    std::fill(computed_.begin(), computed_.end(), std::uint8_t{0});
    for (const Index t : sources_)
      open(t, -1, step_.persistent[static_cast<std::size_t>(t)]);
    Index forward = forward_;
    std::size_t left = step_.ops();
    for (Index s = 0; s < steps_; ++s) {
      const Index op = sequence[static_cast<std::size_t>(s)];
      const auto o = static_cast<std::size_t>(op);
      if (computed_[o]) {
        if (!step_.repeatable[o]) return false;
        cost += step_.cost[o];
        ++replayed;
      } else {
        computed_[o] = 1;
        --left;
        forward -= step_.phase[o] == Phase::kForward;
      }
      if (step_.phase[o] == Phase::kUpdate && forward > 0) return false;
      first.push_back(static_cast<Index>(reads.size()));
      for (const Index t : step_.inputs[op]) {
        const Index read = latest_[static_cast<std::size_t>(t)];
        if (read < 0) return false;
        lives[static_cast<std::size_t>(read)].end = s;
        reads.push_back(read);
      }
      made.push_back(static_cast<Index>(lives.size()));
      for (const Index t : step_.outputs[op]) open(t, s, false);
    }
    first.push_back(static_cast<Index>(reads.size()));
    if (left > 0) return false;
    for (const Index t : kept_)
      lives[static_cast<std::size_t>(latest_[static_cast<std::size_t>(t)])].end =
          steps_;
    return true;
  }

  void open(Index tensor, Index begin, bool state) {
    Index& latest = latest_[static_cast<std::size_t>(tensor)];
    const auto number = static_cast<Index>(lives.size());
    lives.push_back({tensor, begin, begin, latest, state, false, false});
    latest = number;
  }

  // Grants in-place pairs; false where an update cannot overwrite its state.
  bool take_over(const Sequence& sequence) {
    for (Index s = 0; s < steps_; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const auto op = static_cast<std::size_t>(sequence[at]);
      const auto last = static_cast<std::size_t>(pair_start_[op + 1]);
      for (auto p = static_cast<std::size_t>(pair_start_[op]); p < last; ++p) {
        const Pair& pair = pairs_[p];
        Life& from = lives[static_cast<std::size_t>(
            reads[static_cast<std::size_t>(first[at] + pair.input)])];
        Life& to = lives[static_cast<std::size_t>(made[at] + pair.output)];
        if (from.taken || to.taking) continue;
        if (from.state) {
          if (step_.phase[op] != Phase::kUpdate) continue;
          const Index taker = overwriter_[static_cast<std::size_t>(from.tensor)];
          if (from.end != s && taker == sequence[at]) return false;
          if (from.end != s || !pair.fits) continue;
        } else if (from.end != s || !pair.equal) {
          continue;
        }
        from.taken = to.taking = true;
        to.state = from.state;
      }
    }
    return true;
  }

  void add_up(const Sequence& sequence) {
    load.assign(static_cast<std::size_t>(steps_) + 3, 0);
    load[0] = base_;
    for (const Life& life : lives) {
      if (life.state) continue;
      const Extent size = step_.bytes[static_cast<std::size_t>(life.tensor)];
      load[static_cast<std::size_t>(life.begin + 1 + life.taking)] += size;
      load[static_cast<std::size_t>(life.end + 2)] -= size;
    }
    Extent sum = 0;
    peak = 0;
    load.pop_back();
    for (std::size_t moment = 0; moment < load.size(); ++moment) {
      sum += load[moment];
      load[moment] = sum;
      if (moment > 0 && moment + 1 < load.size())
        load[moment] += step_.scratch[static_cast<std::size_t>(sequence[moment - 1])];
      peak = std::max(peak, load[moment]);
    }
  }

  const Step& step_;
  Index steps_ = 0, forward_ = 0;
  Extent base_ = 0;
  std::vector<Index> overwriter_;  // by tensor
  std::vector<Index> sources_, kept_;
  std::vector<Pair> pairs_;
  std::vector<Index> pair_start_{0};  // by op and one more
  std::vector<Index> latest_;         // by tensor: its last instance so far
  std::vector<std::uint8_t> computed_;
};

}  // namespace memcfg::look_ahead
