// A part of a schedule in which some ops are open: they run in any order, as often as
// is wanted, and their values come and go. All other ops stay, in their order.
//
// What the open ops read and make are the values of the model. The other ops of the
// part that have to do with them are fixed ops of the model; those between two such ops
// are one, or none where their bytes cannot matter. What no open op reads or makes is
// held as before, in bytes that depend on how many fixed ops have run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "memcfg/exact_schedule.hpp"
#include "memcfg/measure.hpp"

namespace memcfg::exact {

using look_ahead::Life;
using look_ahead::Measure;

// A legal schedule, measured, and what windows of it ask about again and again.
class Measured {
 public:
  explicit Measured(const Step& of)
      : step(of), overwriter(schedule::overwriters(of)), measure(of) {}

  void set(Sequence of) {
    sequence = std::move(of);
    legal = measure.run(sequence);
    first.assign(step.ops(), -1);
    for (std::size_t place = sequence.size(); place-- > 0;)
      first[Model::at(sequence[place])] = static_cast<Index>(place);
    state.assign(step.tensors(), 0);
    for (const Life& life : measure.lives) state[Model::at(life.tensor)] |= life.state;
  }

  bool is_update(Index op) const { return step.phase[Model::at(op)] == Phase::kUpdate; }
  bool is_forward(Index op) const {
    return step.phase[Model::at(op)] == Phase::kForward;
  }

  const Step& step;
  const std::vector<Index> overwriter;  // by tensor: an op, or their number
  Sequence sequence;
  bool legal = false;
  Measure measure;
  std::vector<Index> first;         // by op: the place of its first computation
  std::vector<std::uint8_t> state;  // by tensor: lies in a persistent tensor's buffer
};

class Window {
 public:
  // Places [begin, end) of a schedule, in which ops are open that are computed before
  // its end; others, and those that could only run where they ran, are not opened. An
  // op is opened, too, if an open one may read a value of it that is computed again
  // here.
  Window(const Measured& of,
         Index begin,
         Index end,
         const std::vector<Index>& ops,
         Extent limit)
      : of_(of), step_(of.step), begin_(begin), end_(end) {
    look_around();
    open(ops);
    if (!number_values()) return;
    list_fixed();
    relate();
    add_up();
    model.ends = 0;
    if (!number_ops(limit) || !fill()) return;
    holds = true;
  }

  // The schedule with the part replaced by one of the model.
  Sequence replaced(const Sequence& found) const {
    const Sequence& whole = of_.sequence;
    Sequence result(whole.begin(), whole.begin() + begin_);
    result.insert(result.end(), lead_.begin(), lead_.end());
    for (const Index op : found) {
      const Sequence& run = runs_[Model::at(op)];
      result.insert(result.end(), run.begin(), run.end());
    }
    result.insert(result.end(), tail_.begin(), tail_.end());
    result.insert(result.end(), whole.begin() + end_, whole.end());
    return result;
  }

  bool holds = false;  // whether the model is small enough; it is meaningful only then
  Model model;
  Cost cost{0, 0};  // of what the part computes again of open ops

 private:
  // A computation of an op that is not open.
  struct Fixed {
    Index place;
    bool touches;      // has to do with open ops
    Index item = -1;   // of the model, once it has one
    Extent bytes = 0;  // in use beside the values as it runs
  };
  // One op of the model runs only after another one, or never after it: an open one, by
  // its place among these, and a fixed one, by its place among those.
  struct Relation {
    enum class Kind { kFixedFirst, kOpenFirst, kNeverAfter } kind;
    std::size_t open, fixed;
  };

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  bool is_in(Index place) const { return begin_ <= place && place < end_; }
  bool is_open(Index op) const { return open_[at(op)] >= 0; }
  bool is_started(Index op) const { return of_.first[at(op)] < begin_; }
  bool may_repeat(Index op) const { return step_.repeatable[at(op)]; }
  bool is_value(Index tensor) const { return value_[at(tensor)] >= 0; }

  // Which values are there at both ends, and what runs between them.
  void look_around() {
    there_.assign(step_.tensors(), 0);
    stays_.assign(step_.tensors(), 0);
    times_.assign(step_.ops(), 0);
    for (const Life& life : of_.measure.lives) {
      if (life.begin < begin_ && life.end >= begin_) there_[at(life.tensor)] = 1;
      if (life.begin < end_ && life.end >= end_) stays_[at(life.tensor)] = 1;
    }
    for (Index place = begin_; place < end_; ++place)
      ++times_[at(of_.sequence[at(place)])];
  }

  void open(const std::vector<Index>& ops) {
    open_.assign(step_.ops(), -1);
    const auto add = [&](Index op) {
      if (is_open(op) || of_.first[at(op)] >= end_) return;
      if (is_started(op) && !may_repeat(op)) return;
      open_[at(op)] = 0;
      ops_.push_back(op);
    };
    for (const Index op : ops) add(op);
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      for (const Index t : step_.inputs[ops_[k]]) {
        const Index from = step_.producer[at(t)];
        if (from < 0 || of_.state[at(t)]) continue;
        if (there_[at(t)] + times_[at(from)] > 1) add(from);
      }
    }
    std::sort(ops_.begin(), ops_.end());
    for (std::size_t k = 0; k < ops_.size(); ++k)
      open_[at(ops_[k])] = static_cast<Index>(k);
  }

  bool number_values() {
    value_.assign(step_.tensors(), -1);
    if (ops_.empty() || ops_.size() > kMostOps) return false;
    for (const Index op : ops_) {
      for (const Index t : step_.inputs[op])
        if (!of_.state[at(t)]) value_[at(t)] = 0;
      for (const Index t : step_.outputs[op])
        if (!of_.state[at(t)]) value_[at(t)] = 0;
    }
    for (std::size_t t = 0; t < value_.size(); ++t) {
      if (value_[t] < 0) continue;
      value_[t] = static_cast<Index>(model.bytes.size());
      model.bytes.push_back(step_.bytes[t]);
      const Values one = Values::one(at(value_[t]));
      if (model.bytes.size() > kMostValues) return false;
      if (there_[t]) model.initial = model.initial | one;
      if (!stays_[t]) continue;
      model.kept = model.kept | one;
      const Index from = step_.producer[t];
      if (from < 0 || !is_open(from) || !may_repeat(from))
        model.pinned = model.pinned | one;
    }
    return true;
  }

  bool touches_values(Index op) const {
    for (const Index t : step_.inputs[op])
      if (is_value(t)) return true;
    for (const Index t : step_.outputs[op])
      if (is_value(t)) return true;
    return false;
  }

  void list_fixed() {
    for (Index place = begin_; place < end_; ++place) {
      const Index op = of_.sequence[at(place)];
      if (is_open(op)) {
        if (place != of_.first[at(op)]) cost = cost + Cost{step_.cost[at(op)], 1};
      } else {
        fixed_.push_back({place, touches_values(op)});
      }
    }
  }

  Index fixed_op(std::size_t k) const { return of_.sequence[at(fixed_[k].place)]; }

  bool is_first(std::size_t k) const {
    return of_.first[at(fixed_op(k))] == fixed_[k].place;
  }

  // The last fixed op that is asked for, or the first; their number: there is none.
  template <class Asked>
  std::size_t last_fixed(const Asked& asked) const {
    for (std::size_t k = fixed_.size(); k-- > 0;)
      if (asked(k)) return k;
    return fixed_.size();
  }
  template <class Asked>
  std::size_t first_fixed(const Asked& asked) const {
    std::size_t k = 0;
    while (k < fixed_.size() && !asked(k)) ++k;
    return k;
  }

  void add(Relation::Kind kind, std::size_t open, std::size_t fixed) {
    if (fixed == fixed_.size()) return;
    fixed_[fixed].touches = true;
    relations_.push_back({kind, open, fixed});
  }

  static bool has(const liveness::Rows& rows, Index op, Index tensor) {
    const auto row = rows[op];
    return std::find(row.begin(), row.end(), tensor) != row.end();
  }

  // Orders that no value asks for: of the forward phase and updates, and of what reads
  // a state and what overwrites it.
  void relate() {
    using Kind = Relation::Kind;
    const auto none = static_cast<Index>(step_.ops());
    blocked_.assign(ops_.size(), 0);
    for (std::size_t k = 0; k < ops_.size(); ++k) {
      const Index op = ops_[k];
      if (of_.is_update(op))
        add(Kind::kFixedFirst, k, last_fixed([&](std::size_t f) {
              return is_first(f) && of_.is_forward(fixed_op(f));
            }));
      if (of_.is_forward(op) && !is_started(op))
        add(Kind::kOpenFirst, k, first_fixed([&](std::size_t f) {
              return of_.is_update(fixed_op(f));
            }));
      for (const Index t : step_.inputs[op]) {
        if (!of_.state[at(t)]) continue;
        const Index from = step_.producer[at(t)], taker = of_.overwriter[at(t)];
        if (from >= 0)
          add(Kind::kFixedFirst, k, first_fixed([&](std::size_t f) {
                return fixed_op(f) == from;
              }));
        if (taker == none) continue;
        if (taker == op) {
          add(Kind::kFixedFirst, k, last_fixed([&](std::size_t f) {
                return has(step_.inputs, fixed_op(f), t);
              }));
        } else if (is_started(taker)) {
          blocked_[k] = 1;
        } else if (!is_open(taker)) {
          const std::size_t f =
              first_fixed([&](std::size_t g) { return fixed_op(g) == taker; });
          add(Kind::kNeverAfter, k, f);
          if (!is_started(op)) add(Kind::kOpenFirst, k, f);
        }
      }
      for (const Index t : step_.outputs[op])
        if (of_.state[at(t)])
          add(Kind::kOpenFirst, k, first_fixed([&](std::size_t f) {
                return has(step_.inputs, fixed_op(f), t);
              }));
    }
  }

  // The bytes beside the values: as each fixed op runs, and before and after it.
  void add_up() {
    const std::size_t count = fixed_.size();
    std::vector<Index> number(at(end_ - begin_), -1);  // by place: the fixed op
    for (std::size_t k = 0; k < count; ++k)
      number[at(fixed_[k].place - begin_)] = static_cast<Index>(k);
    std::vector<Extent> during(count + 2, 0);
    between_.assign(count + 2, 0);
    for (std::size_t t = 0; t < step_.tensors(); ++t)
      if (step_.persistent[t] && step_.producer[t] < 0)
        during[0] += step_.bytes[t], between_[0] += step_.bytes[t];
    for (const Life& life : of_.measure.lives) {
      if (life.state || is_value(life.tensor)) continue;
      if (life.end < begin_ || life.begin >= end_) continue;
      const Extent size = step_.bytes[at(life.tensor)];
      const Index from = life.begin < begin_ ? -1 : number[at(life.begin - begin_)];
      const auto to = life.end >= end_ ? count : at(number[at(life.end - begin_)]);
      const auto start = at(from + (from >= 0 && takes_over(life)));
      during[from < 0 ? 0 : start] += size;
      during[std::min(to + 1, count)] -= size;
      between_[at(from + 1)] += size;
      between_[to + 1] -= size;
    }
    for (std::size_t k = 0; k < count; ++k) {
      if (k > 0) during[k] += during[k - 1];
      fixed_[k].bytes = during[k] + step_.scratch[at(fixed_op(k))];
    }
    for (std::size_t k = 1; k <= count; ++k) between_[k] += between_[k - 1];
  }

  // Whether an instance begins in the buffer of another one that is no value.
  bool takes_over(const Life& life) const {
    if (!life.taking) return false;
    const Index op = of_.sequence[at(life.begin)];
    const auto pairs = step_.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      if (pair[1] != life.tensor || is_value(pair[0])) continue;
      const Life& from = read_at(life.begin, pair[0]);
      if (from.taken && from.end == life.begin && are_equal(pair)) return true;
    }
    return false;
  }

  bool are_equal(const Index* pair) const {
    return step_.bytes[at(pair[0])] == step_.bytes[at(pair[1])];
  }

  const Life& read_at(Index place, Index tensor) const {
    const Measure& m = of_.measure;
    const auto inputs = step_.inputs[of_.sequence[at(place)]];
    const auto k = std::find(inputs.begin(), inputs.end(), tensor) - inputs.begin();
    return m.lives[at(m.reads[at(m.first[at(place)]) + static_cast<std::size_t>(k)])];
  }

  const Life& made_at(Index place, Index tensor) const {
    const Measure& m = of_.measure;
    const auto outputs = step_.outputs[of_.sequence[at(place)]];
    const auto k = std::find(outputs.begin(), outputs.end(), tensor) - outputs.begin();
    return m.lives[at(m.made[at(place)]) + static_cast<std::size_t>(k)];
  }

  // Gives the model its ops: the open ones, then the fixed ones with those between
  // them, which run where the fewest bytes are held between two of them, or are one op.
  bool number_ops(Extent limit) {
    for (const Index op : ops_) runs_.push_back({op});
    Extent room = limit;
    for (const Extent bytes : model.bytes) room -= bytes;
    for (std::size_t from = 0;; ++from) {
      std::size_t to = from;
      while (to < fixed_.size() && !fixed_[to].touches) ++to;
      const std::size_t middle = least_between(from, to);
      if (is_tight(from, middle, room)) {
        model.held.push_back(between_[from]);
        add_run(from, middle);
      } else {
        append(runs_.size() > ops_.size() ? runs_.back() : lead_, from, middle);
      }
      model.held.push_back(between_[middle]);
      Sequence head;
      if (is_tight(middle, to, room)) {
        add_run(middle, to);
        model.held.push_back(between_[to]);
      } else {
        append(head, middle, to);
      }
      if (to == fixed_.size()) {
        tail_ = std::move(head);
        return runs_.size() <= kMostOps;
      }
      fixed_[to].item = static_cast<Index>(runs_.size());
      add_run(to, to + 1);
      runs_.back().insert(runs_.back().begin(), head.begin(), head.end());
      from = to;
    }
  }

  std::size_t least_between(std::size_t from, std::size_t to) const {
    const auto begin = between_.begin();
    const auto first = begin + static_cast<std::ptrdiff_t>(from);
    const auto last = begin + static_cast<std::ptrdiff_t>(to) + 1;
    return static_cast<std::size_t>(std::min_element(first, last) - begin);
  }

  // Whether values may have to be dropped for fixed ops [from, to).
  bool is_tight(std::size_t from, std::size_t to, Extent room) const {
    for (std::size_t k = from; k < to; ++k)
      if (fixed_[k].bytes > room) return true;
    return false;
  }

  void append(Sequence& run, std::size_t from, std::size_t to) const {
    for (std::size_t k = from; k < to; ++k) run.push_back(fixed_op(k));
  }

  void add_run(std::size_t from, std::size_t to) {
    Model::Op op;
    for (std::size_t k = from; k < to; ++k)
      op.scratch = std::max(op.scratch, fixed_[k].bytes);
    op.scratch -= model.held.back();
    fixed_ops_.push_back(std::move(op));
    append(runs_.emplace_back(), from, to);
  }

  bool fill() {
    const std::size_t opened = ops_.size();
    model.maker.assign(model.bytes.size(), -1);
    model.all = Model::first_bits(runs_.size());
    model.fixed = model.all & ~Model::first_bits(opened);
    Ops forward = 0;
    for (std::size_t k = 0; k < opened; ++k) {
      const Index op = ops_[k];
      if (is_started(op)) model.started |= bit(k);
      if (may_repeat(op) && !blocked_[k]) model.repeatable |= bit(k);
      if (of_.is_forward(op)) forward |= bit(k);
      model.ops.emplace_back();
      model.ops[k].scratch = step_.scratch[at(op)];
      model.ops[k].cost = step_.cost[at(op)];
      if (!link(op, k)) return false;
    }
    for (std::size_t k = 0; k < opened; ++k) {
      const Index op = ops_[k];
      Model::Op& own = model.ops[k];
      if (of_.is_update(op)) own.before |= forward;
      for (const Index t : step_.inputs[op]) {
        const Index from = step_.producer[at(t)], taker = of_.overwriter[at(t)];
        if (from >= 0 && is_open(from)) own.before |= bit(at(open_[at(from)]));
        if (taker == static_cast<Index>(step_.ops()) || taker == op || !is_open(taker))
          continue;
        own.against |= bit(at(open_[at(taker)]));
        model.ops[at(open_[at(taker)])].before |= bit(k);
      }
    }
    for (Model::Op& op : fixed_ops_) {
      if (model.ops.size() > opened) op.before |= bit(model.ops.size() - 1);
      model.ops.push_back(std::move(op));
    }
    for (const Fixed& fixed : fixed_)
      if (fixed.item >= 0 &&
          !link(of_.sequence[at(fixed.place)], at(fixed.item), &fixed))
        return false;
    for (const Relation& relation : relations_) {
      const std::size_t item = at(fixed_[relation.fixed].item);
      if (relation.kind == Relation::Kind::kFixedFirst)
        model.ops[relation.open].before |= bit(item);
      if (relation.kind == Relation::Kind::kOpenFirst)
        model.ops[item].before |= bit(relation.open);
      if (relation.kind == Relation::Kind::kNeverAfter)
        model.ops[relation.open].against |= bit(item);
    }
    return true;
  }

  static Ops bit(std::size_t item) { return Ops{1} << item; }

  // Gives an op of the model what it reads and makes, and its pairs; false: too many.
  bool link(Index op, std::size_t item, const Fixed* fixed = nullptr) {
    Model::Op& own = model.ops[item];
    for (const Index t : step_.inputs[op])
      if (is_value(t)) own.reads = own.reads | Values::one(at(value_[at(t)]));
    for (const Index t : step_.outputs[op]) {
      if (!is_value(t)) continue;
      own.makes = own.makes | Values::one(at(value_[at(t)]));
      model.maker[at(value_[at(t)])] = static_cast<Index>(item);
    }
    const auto pairs = step_.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2)
      if (are_equal(pair) && step_.bytes[at(pair[0])] > 0) add_pair(own, pair, fixed);
    return own.pairs.size() <= kMostPairs;
  }

  void add_pair(Model::Op& own, const Index* pair, const Fixed* fixed) {
    const bool takes = is_value(pair[0]), taken = is_value(pair[1]);
    if (of_.state[at(pair[0])] || of_.state[at(pair[1])]) return;
    if (!takes && !taken) return;  // held in place as before
    Model::Pair added{Model::kNoValue, {}, step_.bytes[at(pair[1])]};
    if (takes) {
      added.from = at(value_[at(pair[0])]);
      added.both = Values::one(added.from);
      if (model.pinned.has(added.from)) return;
      if (!taken && takes_over(made_at(fixed->place, pair[1]))) return;
    } else {
      const Life& from = read_at(fixed->place, pair[0]);
      if (from.end != fixed->place) return;
    }
    if (taken) added.both = added.both | Values::one(at(value_[at(pair[1])]));
    own.pairs.push_back(added);
  }

  const Measured& of_;
  const Step& step_;
  const Index begin_, end_;
  std::vector<std::uint8_t> there_, stays_;  // by tensor: at the begin, at the end
  std::vector<Index> times_;                 // by op: computations in the part
  std::vector<Index> ops_;                   // that are open
  std::vector<Index> open_;                  // by op: its place among them, or -1
  std::vector<Index> value_;                 // by tensor: its number, or -1
  std::vector<Fixed> fixed_;
  std::vector<Relation> relations_;
  std::vector<std::uint8_t> blocked_;  // by open op: it would read what is overwritten
  std::vector<Extent> between_;        // bytes before each fixed op, and after the last
  std::vector<Model::Op> fixed_ops_;   // of the model
  std::vector<Sequence> runs_;         // by op of the model
  Sequence lead_, tail_;               // fixed ops before all others, and after
};

}  // namespace memcfg::exact
