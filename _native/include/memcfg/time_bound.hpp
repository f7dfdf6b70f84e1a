// A time that no schedule of a step is below within a limit: any order of the ops, any
// number of repetitions.
//
// Take the first execution of an op, its *moment*. All ancestors were executed before,
// no descendant was. What descendants read, or the end keeps, is resident then, or its
// op is executed again later; and so is, in turn, what that reads. Ops that are neither
// ancestors nor descendants may come before or after, as suits best. With x the extra
// executions of each op, at most 1 counted, the bytes at the moment are at least
//
//   working set + max over flows of (sum over ops of flow into the op * (1 - x))
//
// where flows start at what is needed, pass each tensor at most with its bytes, and go
// on from an op to what it reads, as if it were executed again: the dual of the minimal
// cut between what is executed later and what is not. One flow is one row of a linear
// program that covers what exceeds the limit; rows that the program's solution violates
// are found by flows that go to the ops of small x first. Every row holds for every
// schedule, so the program's bound holds however early it is stopped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "memcfg/covering_program.hpp"
#include "memcfg/liveness.hpp"
#include "memcfg/stop.hpp"

namespace memcfg::time_bound {

using liveness::Index;
using liveness::Rows;
using liveness::Step;
using packing::Extent;

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// Flow from node 0 in a network that is built arc by arc, pushed along shortest paths
// (Dinic 1970). Arcs to the sink are opened later, and flow that has arrived stays.
class Network {
 public:
  static constexpr Extent kUnlimited = std::numeric_limits<Extent>::max() / 4;

  explicit Network(std::size_t nodes) : first_(nodes, -1), sink_(nodes, 0) {}

  void join(Index from, Index to, Extent capacity) {
    arcs_.push_back({to, first_[at(from)], capacity});
    first_[at(from)] = static_cast<Index>(arcs_.size()) - 1;
    arcs_.push_back({from, first_[at(to)], 0});
    first_[at(to)] = static_cast<Index>(arcs_.size()) - 1;
  }

  // Makes a node a sink: it swallows whatever arrives.
  void open(Index node) { sink_[at(node)] = 1; }

  // Sends all that can go to the sinks; adds to `arrived` by node.
  void run(std::vector<Extent>& arrived) {
    while (label()) {
      next_ = first_;
      while (push(arrived) > 0) {
      }
    }
  }

  std::int64_t work() const { return work_; }

 private:
  struct Arc {
    Index to;
    Index next;  // of the node that it leaves
    Extent left;
  };

  bool label() {
    level_.assign(first_.size(), -1);
    level_[0] = 0;
    queue_.assign(1, 0);
    bool reached = false;
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      const Index node = queue_[head];
      if (sink_[at(node)]) {
        reached = true;
        continue;
      }
      for (Index a = first_[at(node)]; a >= 0; a = arcs_[at(a)].next) {
        ++work_;
        const Arc& arc = arcs_[at(a)];
        if (arc.left == 0 || level_[at(arc.to)] >= 0) continue;
        level_[at(arc.to)] = level_[at(node)] + 1;
        queue_.push_back(arc.to);
      }
    }
    return reached;
  }

  // Sends along one path of rising levels; 0 if there is none.
  Extent push(std::vector<Extent>& arrived) {
    path_.clear();
    Index node = 0;
    while (true) {
      if (sink_[at(node)]) {
        Extent sent = kUnlimited;
        for (const Index a : path_) sent = std::min(sent, arcs_[at(a)].left);
        for (const Index a : path_) {
          arcs_[at(a)].left -= sent;
          arcs_[at(a ^ 1)].left += sent;
        }
        arrived[at(node)] += sent;
        return sent;
      }
      Index& a = next_[at(node)];
      while (a >= 0) {
        ++work_;
        const Arc& arc = arcs_[at(a)];
        if (arc.left > 0 && level_[at(arc.to)] == level_[at(node)] + 1) break;
        a = arc.next;
      }
      if (a >= 0) {
        path_.push_back(a);
        node = arcs_[at(a)].to;
        continue;
      }
      if (path_.empty()) return 0;
      node = arcs_[at(path_.back() ^ 1)].to;
      path_.pop_back();
      next_[at(node)] = arcs_[at(next_[at(node)])].next;
    }
  }

  std::vector<Index> first_;  // by node: its first arc, or -1
  std::vector<std::uint8_t> sink_;
  std::vector<Arc> arcs_;  // each with its reverse behind it
  std::vector<Index> level_, queue_, next_, path_;
  std::int64_t work_ = 0;
};

// What every moment asks of a step.
class Moments {
 public:
  Moments(const Step& step, Extent limit) : step_(step), limit_(limit) {
    inside_ = step.persistent;
    for (Index op = 0; op < ops(); ++op) {
      const auto pairs = step.pairs[op];
      for (const Index* pair = pairs.first; pair != pairs.last; pair += 2)
        if (inside_[at(pair[0])]) inside_[at(pair[1])] = 1;
    }
    fixed_.assign(step.ops(), 0);
    for (Index op = 0; op < ops(); ++op) fixed_[at(op)] = is_fixed(op);
    readers_.resize(step.tensors());
    for (Index op = 0; op < ops(); ++op)
      for (const Index t : step.inputs[op])
        if (readers_[at(t)].empty() || readers_[at(t)].back() != op)
          readers_[at(t)].push_back(op);
    for (std::size_t t = 0; t < step.tensors(); ++t)
      if (step.persistent[t]) state_ += step.bytes[t];
  }

  Index ops() const { return static_cast<Index>(step_.ops()); }
  std::int64_t work() const { return work_; }

  // Makes the row of an op's moment that x violates most, or one that is violated less;
  // false if it asks nothing. Its least may be more than all of its terms: then nothing
  // fits within the limit.
  bool make_row(Index op, const std::vector<double>& x, linear::Row& row) {
    order(op);
    const Extent working = working_set(op);  // fills survivor_
    const auto n = static_cast<std::size_t>(ops());
    const std::size_t nodes = 2 + n + step_.tensors();
    Network network(nodes);
    connect(network);
    arrived_.assign(nodes, 0);
    network.open(source_node());
    // Sinks by rising x, which their flow is worth less for; those of x = 1 nothing.
    sinks_.clear();
    for (Index a = 0; a < ops(); ++a) {
      if (side_[at(a)] != kBefore) continue;
      if (fixed_[at(a)])
        network.open(op_node(a));
      else if (x[at(a)] < 1.0 - 1e-6)
        sinks_.emplace_back(x[at(a)], a);
    }
    std::sort(sinks_.begin(), sinks_.end());
    network.run(arrived_);
    for (std::size_t k = 0; k < sinks_.size();) {
      const double level = sinks_[k].first + 1e-3;
      for (; k < sinks_.size() && sinks_[k].first <= level; ++k)
        network.open(op_node(sinks_[k].second));
      network.run(arrived_);
    }
    work_ += network.work() + static_cast<std::int64_t>(n + step_.tensors());
    Extent least = state_ + working - limit_;
    row.terms.clear();
    for (std::size_t node = 0; node < arrived_.size(); ++node) {
      if (arrived_[node] == 0) continue;
      least += arrived_[node];
      if (node >= 1 && node <= n && !fixed_[node - 1])
        row.terms.emplace_back(static_cast<Index>(node - 1),
                               static_cast<double>(arrived_[node]));
    }
    row.least = static_cast<double>(least);
    excess_ = least;
    for (const auto& term : row.terms) excess_ -= static_cast<Extent>(term.second);
    return least > 0;
  }

  // Whether the last row asks for more than there is, in whole bytes.
  bool hopeless() const { return excess_ > 0; }

 private:
  enum Side : std::uint8_t { kEither, kBefore, kAfter, kNow };

  static Index op_node(Index op) { return 1 + op; }
  Index source_node() const { return 1 + ops(); }  // makes what no op makes
  Index tensor_node(Index t) const { return 2 + ops() + t; }

  bool is_fixed(Index op) const {
    if (!step_.repeatable[at(op)]) return true;
    if (step_.phase[at(op)] != liveness::Phase::kUpdate) return false;
    const auto pairs = step_.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2)
      if (step_.persistent[at(pair[0])]) return true;  // the old value is gone
    return false;
  }

  void order(Index op) {
    side_.assign(step_.ops(), kEither);
    side_[at(op)] = kNow;
    stack_.assign(1, op);
    while (!stack_.empty()) {
      const Index reader = stack_.back();
      stack_.pop_back();
      for (const Index t : step_.inputs[reader]) {
        ++work_;
        const Index maker = step_.producer[at(t)];
        if (maker < 0 || side_[at(maker)] != kEither) continue;
        side_[at(maker)] = kBefore;
        stack_.push_back(maker);
      }
    }
    stack_.assign(1, op);
    while (!stack_.empty()) {
      const Index maker = stack_.back();
      stack_.pop_back();
      for (const Index t : step_.outputs[maker])
        for (const Index reader : readers_[at(t)]) {
          ++work_;
          if (side_[at(reader)] != kEither) continue;
          side_[at(reader)] = kAfter;
          stack_.push_back(reader);
        }
    }
  }

  Extent size(Index t) const { return inside_[at(t)] ? 0 : step_.bytes[at(t)]; }

  // The bytes while an op runs, outputs in place where they can be. `survivor_` has,
  // for inputs, what it adds when they must be there afterwards: then no output has
  // their bytes. (What all of them add together is at least the sum, since the most
  // bytes in place are a submodular function of the inputs that may be overwritten.)
  Extent working_set(Index op) {
    Extent sum = step_.scratch[at(op)];
    survivor_.assign(step_.tensors(), -1);
    for (const Index t : step_.inputs[op]) {
      if (survivor_[at(t)] < 0) sum += size(t);
      survivor_[at(t)] = 0;
    }
    for (const Index t : step_.outputs[op]) sum += size(t);
    const Extent most = in_place_bytes(op, -1);
    if (most > 0)
      for (const Index t : step_.inputs[op])
        survivor_[at(t)] = most - in_place_bytes(op, t);
    return sum - most;
  }

  // The most bytes of outputs in buffers of inputs, one each, but for one input.
  // Outputs that can be matched form a matroid, so the largest go first.
  Extent in_place_bytes(Index op, Index without) {
    const auto pairs = step_.pairs[op];
    if (pairs.first == pairs.last) return 0;
    std::vector<Index> outputs(step_.outputs[op].begin(), step_.outputs[op].end());
    std::sort(outputs.begin(), outputs.end(), [&](Index a, Index b) {
      return size(a) != size(b) ? size(a) > size(b) : a < b;
    });
    holders_.clear();
    Extent sum = 0;
    for (const Index output : outputs) {
      tried_.clear();
      if (size(output) > 0 && match(pairs, output, without)) sum += size(output);
    }
    return sum;
  }

  bool match(Rows::Range pairs, Index output, Index without) {
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      const Index input = pair[0];
      if (pair[1] != output || input == without || size(input) < size(output)) continue;
      if (std::find(tried_.begin(), tried_.end(), input) != tried_.end()) continue;
      tried_.push_back(input);
      const auto holder =
          std::find_if(holders_.begin(), holders_.end(), [&](const auto& each) {
            return each.first == input;
          });
      if (holder == holders_.end()) {
        holders_.emplace_back(input, output);
        return true;
      }
      const auto place = holder - holders_.begin();
      if (match(pairs, holder->second, without)) {
        holders_[static_cast<std::size_t>(place)].second = output;
        return true;
      }
    }
    return false;
  }

  // From node 0 to what is needed later, on to its makers, and to what they read.
  void connect(Network& network) {
    for (Index t = 0; t < static_cast<Index>(step_.tensors()); ++t) {
      const Index maker = step_.producer[at(t)];
      const Extent bytes = survivor_[at(t)] >= 0 ? survivor_[at(t)] : size(t);
      if (bytes == 0) continue;
      if (maker >= 0 && (side_[at(maker)] == kAfter || side_[at(maker)] == kNow))
        continue;
      bool needed = step_.keep[at(t)];
      bool wanted = false;
      for (const Index reader : readers_[at(t)]) {
        if (side_[at(reader)] == kAfter) needed = true;
        if (side_[at(reader)] == kEither ||
            (side_[at(reader)] == kBefore && !fixed_[at(reader)])) {
          network.join(op_node(reader), tensor_node(t), bytes);
          wanted = true;
        }
      }
      if (needed) network.join(0, tensor_node(t), bytes);
      if (needed || wanted)
        network.join(tensor_node(t), maker < 0 ? source_node() : op_node(maker), bytes);
    }
  }

  const Step& step_;
  Extent limit_;
  Extent state_ = 0;
  Extent excess_ = 0;
  std::vector<std::uint8_t> inside_;  // by tensor: may lie in the state's bytes
  std::vector<std::uint8_t> fixed_;   // by op: executed once
  std::vector<std::vector<Index>> readers_;
  std::vector<Side> side_;  // by op, of the moment
  std::vector<Extent> survivor_;
  std::vector<Extent> arrived_;
  std::vector<std::pair<double, Index>> sinks_;
  std::vector<std::pair<Index, Index>> holders_;  // input, output
  std::vector<Index> stack_, tried_;
  std::int64_t work_ = 0;
};

// The ops whose moments are looked at: all, or of a large step, of each window of ops
// in order, the one with most bytes alive.
inline std::vector<Index> busiest(const Step& step, std::size_t most) {
  liveness::Sequence sequence(step.ops());
  std::iota(sequence.begin(), sequence.end(), 0);
  if (sequence.size() <= most) return sequence;
  const liveness::Lives lives(step, sequence);
  const auto table = make_buffers(step, sequence, lives);
  const auto load = load_by_time(table, step.ops());
  std::vector<Index> found;
  const std::size_t window = (step.ops() + most - 1) / most;
  for (std::size_t begin = 0; begin < step.ops(); begin += window) {
    const auto first = load.begin() + static_cast<std::ptrdiff_t>(begin) + 1;
    const std::size_t length = std::min(window, step.ops() - begin);
    const auto top =
        std::max_element(first, first + static_cast<std::ptrdiff_t>(length));
    found.push_back(static_cast<Index>(top - load.begin() - 1));
  }
  return found;
}

// The search for rows, and the program that they make.
//
// Rows are looked for between the program's solution and where they were looked for
// before, which takes a tenth of the rounds that the solutions alone do (Ben-Ameur and
// Neto 2007, in-out separation).
class ExtraCost {
 public:
  ExtraCost(const Step& step, Extent limit, std::int64_t effort, const Stop& stop)
      : moments_(step, limit),
        program_(step.cost),
        little_(1e-3 * static_cast<double>(limit)),
        enough_(1e-4 * std::accumulate(step.cost.begin(), step.cost.end(), 0.0)),
        x_(step.ops(), 0.0),
        between_(step.ops(), 0.0),
        effort_(effort),
        watch_(stop, kAsk) {
    const auto size = step.ops() + step.tensors() + 2 * step.inputs.index.size();
    const auto looks = static_cast<std::size_t>(effort / 4) / (size + 1) + 1;
    for (const Index op : busiest(step, looks)) {
      if (watch_.is_over(work())) return;
      if (!moments_.make_row(op, x_, row_)) continue;
      possible_ = possible_ && !moments_.hopeless();
      candidates_.push_back({row_.least, op});
    }
  }

  // What was proven when the effort was spent, it was stopped, or it rose no more;
  // infinite if nothing fits within the limit.
  double run() {
    if (!possible_) return std::numeric_limits<double>::infinity();
    std::vector<double> history;
    while (work() < effort_ && !watch_.is_over(work()) &&
           (separate(between_) || separate(x_))) {
      program_.solve(effort_ - work());
      if (program_.rows() > kManyRows) program_.purge(kSlack);
      for (std::size_t op = 0; op < x_.size(); ++op) {
        x_[op] = program_.value(static_cast<Index>(op));
        between_[op] = (between_[op] + x_[op]) / 2;
      }
      history.push_back(program_.bound());
      const std::size_t rounds = history.size();
      if (rounds > kRounds && history[rounds - 1] < history[rounds - kRounds] + enough_)
        break;
    }
    return history.empty() ? 0.0 : *std::max_element(history.begin(), history.end());
  }

 private:
  static constexpr std::size_t kRows = 4;  // added before the program is solved again
  static constexpr std::size_t kManyRows = 64;
  static constexpr double kSlack = 0.01;
  static constexpr std::int64_t kAsk = 1'000'000;  // numbers looked at: about 10 ms
  static constexpr std::size_t kRounds = 12;  // that have to raise the bound by enough_

  struct Candidate {
    double missing;  // bytes, when it was looked at last
    Index op;
  };

  std::int64_t work() const { return moments_.work() + program_.work(); }

  // Adds rows that the solution violates, found at `where`; false if there are none.
  bool separate(const std::vector<double>& where) {
    std::sort(candidates_.begin(),
              candidates_.end(),
              [](const Candidate& a, const Candidate& b) {
                return a.missing != b.missing ? a.missing > b.missing : a.op < b.op;
              });
    std::size_t added = 0;
    for (Candidate& candidate : candidates_) {
      if (added == kRows || watch_.is_over(work())) break;
      candidate.missing = 0.0;
      if (!moments_.make_row(candidate.op, where, row_)) continue;
      candidate.missing = row_.least;
      for (const auto& [op, bytes] : row_.terms)
        candidate.missing -= bytes * x_[at(op)];
      if (candidate.missing <= little_) continue;
      program_.add(std::move(row_));
      row_ = {};
      ++added;
    }
    return added > 0;
  }

  Moments moments_;
  linear::CoveringProgram program_;
  double little_;  // bytes that are not worth a row
  double enough_;
  bool possible_ = true;
  std::vector<double> x_, between_;  // by op
  std::vector<Candidate> candidates_;
  linear::Row row_;
  std::int64_t effort_;
  Watch watch_;
};

// The least sum of costs of what is executed beyond the first time, as far as it was
// proven with `effort` or until it was stopped; infinite if nothing fits within
// `limit`.
inline double extra_cost(const Step& step,
                         Extent limit,
                         std::int64_t effort,
                         const Stop& stop = {}) {
  return ExtraCost(step, limit, effort, stop).run();
}

}  // namespace memcfg::time_bound
