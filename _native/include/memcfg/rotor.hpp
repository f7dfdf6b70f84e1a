// The optimum of a heterogeneous chain within a number of memory slots: pure functions.
//
// Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for
// heterogeneous chains", 2019, arXiv:1911.13214: a dynamic program over the first
// stage, the last stage, and the slots that are free.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace memcfg::rotor {

// A chain of stages; sizes in slots.
struct Chain {
  std::vector<double> cost;            // of a stage forward
  std::vector<std::int32_t> crossing;  // what the next stage reads
  std::vector<std::int32_t> kept;      // all that stays when a stage is kept
  std::vector<std::int32_t> gradient;  // what the stage's backward reads of the next's
  std::vector<std::int32_t> forward;   // beside that, while a stage goes forward
  std::vector<std::int32_t> backward;  // beside `kept`, gradients among it

  std::size_t stages() const { return cost.size(); }
};

// The least cost for stages first ... last with so many free slots, and what to do: -1
// nothing can be done, 0 keep all of the first stage, k > 0 advance k stages, keep what
// crosses, and do what is behind before what is in front.
class Table {
 public:
  Table() = default;
  Table(const Chain& chain, std::int32_t slots)
      : stages_(chain.stages()),
        width_(static_cast<std::size_t>(slots) + 1),
        cost_(stages_ * (stages_ + 1) / 2 * width_, kNever),
        choice_(cost_.size(), -1) {
    for (std::size_t length = 1; length <= stages_; ++length)
      for (std::size_t first = 0; first + length <= stages_; ++first)
        solve(chain, first, first + length - 1);
  }

  double cost(std::size_t first, std::size_t last, std::size_t slots) const {
    return cost_[row(first, last) + slots];
  }
  std::int32_t choice(std::size_t first, std::size_t last, std::size_t slots) const {
    return choice_[row(first, last) + slots];
  }
  std::size_t stages() const { return stages_; }
  std::size_t slots() const { return width_ - 1; }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  std::size_t row(std::size_t first, std::size_t last) const {
    return (last * (last + 1) / 2 + first) * width_;
  }

  void solve(const Chain& chain, std::size_t first, std::size_t last) {
    double* const best = &cost_[row(first, last)];
    std::int16_t* const choice = &choice_[row(first, last)];
    const std::int32_t kept = chain.kept[first];
    const std::int32_t whole =
        kept +
        std::max(chain.forward[first] + chain.gradient[last], chain.backward[first]);
    for (auto m = static_cast<std::size_t>(whole); m < width_; ++m) {
      double cost = chain.cost[first];
      if (first < last)
        cost += cost_[row(first + 1, last) + m - static_cast<std::size_t>(kept)];
      if (cost < best[m]) {
        best[m] = cost;
        choice[m] = 0;
      }
    }
    double advance = 0;
    std::int32_t before = 0, busiest = 0;
    for (std::size_t next = first + 1; next <= last; ++next) {
      const std::int32_t crossing = chain.crossing[next - 1];
      advance += chain.cost[next - 1];
      busiest = std::max(busiest, before + crossing + chain.forward[next - 1]);
      before = crossing;
      const auto shift = static_cast<std::size_t>(crossing);
      const double* const behind = &cost_[row(next, last)];
      const double* const front = &cost_[row(first, next - 1)];
      const auto least =
          static_cast<std::size_t>(std::max(busiest + chain.gradient[last], crossing));
      for (std::size_t m = least; m < width_; ++m) {
        const double cost = advance + behind[m - shift] + front[m];
        if (cost < best[m]) {
          best[m] = cost;
          choice[m] = static_cast<std::int16_t>(next - first);
        }
      }
    }
  }

  std::size_t stages_ = 0, width_ = 0;
  std::vector<double> cost_;
  std::vector<std::int16_t> choice_;
};

}  // namespace memcfg::rotor
