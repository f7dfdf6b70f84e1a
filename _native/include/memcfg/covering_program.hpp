// Linear programs that cover: least cost of x in [0, 1] with rows . x >= least.
//
// The dual simplex method with bounded variables on a dense tableau, to which rows are
// added while it runs. Whatever it has done so far, its multipliers prove a bound.
// Deterministic; effort is counted in numbers of the tableau that were touched.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace memcfg::linear {

using Index = std::int32_t;

// The sum of factor * x[variable] is at least `least`.
struct Row {
  std::vector<std::pair<Index, double>> terms;  // each variable once, factors > 0
  double least;
};

class CoveringProgram {
 public:
  // Pre: costs are finite and >= 0.
  explicit CoveringProgram(std::vector<double> costs)
      : costs_(std::move(costs)), reduced_(costs_), values_(costs_.size(), 0.0) {
    for (std::size_t i = 0; i < costs_.size(); ++i) {
      slots_.push_back(static_cast<Index>(i));
      place_.push_back(static_cast<Index>(i));
    }
  }

  // Adds a row, scaled so that its least is 1. Pre: least > 0.
  void add(Row row) {
    for (auto& term : row.terms) term.second /= row.least;
    row.least = 1.0;
    std::vector<double> line(costs_.size(), 0.0);
    double value = -row.least;
    for (const auto& [variable, factor] : row.terms) {
      value += factor * values_[at(variable)];
      const Index place = place_[at(variable)];
      if (place >= 0) {
        line[at(place)] += factor;
        continue;
      }
      const std::vector<double>& from = lines_[at(~place)];
      for (std::size_t j = 0; j < line.size(); ++j) line[j] += factor * from[j];
    }
    work_ += static_cast<std::int64_t>(line.size() * row.terms.size());
    place_.push_back(~static_cast<Index>(lines_.size()));
    basis_.push_back(static_cast<Index>(costs_.size() + rows_.size()));
    values_.push_back(value);
    lines_.push_back(std::move(line));
    rows_.push_back(std::move(row));
  }

  // Runs until no row is violated, none can be mended, or the effort is spent.
  void solve(std::int64_t effort) {
    const std::int64_t until = work_ + effort;
    while (work_ < until) {
      const std::size_t leaving = most_violated();
      if (leaving == lines_.size() || !mend(leaving)) return;
    }
  }

  // Drops the rows whose multipliers are 0 and that hold with more than `slack` of
  // their least to spare.
  void purge(double slack) {
    for (std::size_t i = lines_.size(); i-- > 0;) {
      const Index variable = basis_[i];
      if (!is_row(variable) || values_[at(variable)] <= slack) continue;
      lines_[i].swap(lines_.back());
      lines_.pop_back();
      basis_[i] = basis_.back();
      basis_.pop_back();
      if (i < lines_.size()) place_[at(basis_[i])] = ~static_cast<Index>(i);
    }
  }

  std::size_t rows() const { return lines_.size(); }
  std::int64_t work() const { return work_; }
  double value(Index variable) const {
    return std::min(1.0, std::max(0.0, values_[at(variable)]));
  }

  // A cost that no solution is below, by weak duality from the present multipliers; the
  // last digits are rounded down.
  double bound() const {
    std::vector<double> left = costs_;
    double sum = 0.0;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const Index place = place_[costs_.size() + r];
      if (place < 0) continue;
      const double multiplier = std::max(0.0, reduced_[at(place)]);
      sum += multiplier * rows_[r].least;
      for (const auto& [variable, factor] : rows_[r].terms)
        left[at(variable)] -= multiplier * factor;
    }
    const double margin = 1e-11 * sum;
    for (const double each : left) sum += std::min(0.0, each);
    return std::max(0.0, sum - margin);
  }

 private:
  static constexpr double kTolerance = 1e-9;  // of rows whose least is 1
  static constexpr double kRounding = 1e-12;  // of sums that should be 0

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  bool is_row(Index variable) const { return at(variable) >= costs_.size(); }
  double upper(Index variable) const {
    return is_row(variable) ? std::numeric_limits<double>::infinity() : 1.0;
  }

  // How far a basic variable is outside of its bounds: < 0 below, > 0 above.
  double violation(std::size_t line) const {
    const Index variable = basis_[line];
    const double value = values_[at(variable)];
    if (value < 0) return value;
    return std::max(0.0, value - upper(variable));
  }

  std::size_t most_violated() {
    std::size_t found = lines_.size();
    double most = kTolerance;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const double by = std::abs(violation(i));
      if (by <= most) continue;
      most = by;
      found = i;
    }
    work_ += static_cast<std::int64_t>(lines_.size()) + 1;
    return found;
  }

  // Brings a basic variable to the bound that it violates: variables at their bounds
  // move, those first whose reduced cost is soonest zero; the last one takes its place.
  bool mend(std::size_t line) {
    const double by = violation(line);
    const double sign = by < 0 ? 1.0 : -1.0;  // the way that it has to go
    const std::vector<double>& factors = lines_[line];
    movable_.clear();
    for (std::size_t j = 0; j < factors.size(); ++j) {
      const double value = values_[at(slots_[j])];
      const double gain = sign * factors[j] * (value > 0.5 ? -1.0 : 1.0);
      if (gain <= kTolerance) continue;
      movable_.push_back({std::abs(reduced_[j]) / gain, gain, static_cast<Index>(j)});
    }
    work_ += static_cast<std::int64_t>(factors.size());
    std::sort(movable_.begin(), movable_.end(), [](const Move& a, const Move& b) {
      if (a.ratio != b.ratio) return a.ratio < b.ratio;
      if (a.gain != b.gain) return a.gain > b.gain;
      return a.slot < b.slot;
    });
    double missing = std::abs(by);
    for (std::size_t k = 0; k < movable_.size(); ++k) {
      missing -= movable_[k].gain * upper(slots_[at(movable_[k].slot)]);
      if (missing > kRounding) continue;
      for (std::size_t i = 0; i < k; ++i) flip(at(movable_[i].slot));
      exchange(line, at(movable_[k].slot));
      return true;
    }
    return false;
  }

  void shift(std::size_t slot, double by) {
    values_[at(slots_[slot])] += by;
    for (std::size_t i = 0; i < lines_.size(); ++i)
      values_[at(basis_[i])] += lines_[i][slot] * by;
    work_ += static_cast<std::int64_t>(lines_.size());
  }

  void flip(std::size_t slot) {
    shift(slot, values_[at(slots_[slot])] > 0.5 ? -1.0 : 1.0);
  }

  void exchange(std::size_t line, std::size_t slot) {
    const Index leaving = basis_[line], entering = slots_[slot];
    const double bound = values_[at(leaving)] < 0 ? 0.0 : upper(leaving);
    std::vector<double>& pivot = lines_[line];
    shift(slot, (bound - values_[at(leaving)]) / pivot[slot]);
    values_[at(leaving)] = bound;
    const double factor = 1.0 / pivot[slot];
    for (double& each : pivot) each *= -factor;
    pivot[slot] = factor;
    nonzero_.clear();
    for (std::size_t j = 0; j < pivot.size(); ++j)
      if (pivot[j] != 0.0) nonzero_.push_back(j);
    for (std::size_t i = 0; i < lines_.size(); ++i)
      if (i != line) substitute(lines_[i], slot, pivot);
    substitute(reduced_, slot, pivot);
    basis_[line] = entering;
    slots_[slot] = leaving;
    place_[at(entering)] = ~static_cast<Index>(line);
    place_[at(leaving)] = static_cast<Index>(slot);
  }

  void substitute(std::vector<double>& into,
                  std::size_t slot,
                  const std::vector<double>& pivot) {
    const double factor = into[slot];
    if (factor == 0.0) return;
    into[slot] = 0.0;
    for (const std::size_t j : nonzero_) into[j] += factor * pivot[j];
    work_ += static_cast<std::int64_t>(nonzero_.size());
  }

  struct Move {
    double ratio;  // reduced cost for each unit gained
    double gain;   // of the basic variable, for each unit moved
    Index slot;
  };

  std::vector<double> costs_;
  std::vector<Row> rows_;
  // Variables are those of the rows' terms, then a surplus for each row. A basic one is
  // its line times the others, which stand in the slots, each at a bound.
  std::vector<std::vector<double>> lines_;
  std::vector<double> reduced_;  // by slot
  std::vector<Index> slots_;     // variables
  std::vector<Index> basis_;     // by line, its variable
  std::vector<Index> place_;     // by variable, its slot, or ~ its line
  std::vector<double> values_;   // by variable
  std::vector<Move> movable_;
  std::vector<std::size_t> nonzero_;
  std::int64_t work_ = 0;
};

}  // namespace memcfg::linear
