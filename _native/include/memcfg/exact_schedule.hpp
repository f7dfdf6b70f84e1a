// Complete search over all schedules of a small step, or of a part of one: any order,
// any repetitions.
//
// A state is which ops have run and which values are resident. Running an op may need
// room: then a least set of values is dropped, and an input that is dropped with the op
// may give its buffer to an output (`Sharing`). A value that is kept to the end may be
// dropped, too, if it can be computed again. A value that nothing can want any more is
// dropped at once. The cost still to come is bounded by the ops
// that must run again, since a value that is wanted is gone (A*: Hart, Nilsson, Raphael
// 1968); a state in which another one's values are all resident, at no more cost and
// with the same ops run, makes that one needless.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "memcfg/liveness.hpp"
#include "memcfg/schedule.hpp"
#include "memcfg/stop.hpp"

namespace memcfg::exact {

using liveness::Index;
using liveness::Phase;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

inline constexpr std::size_t kMostOps = 64;
inline constexpr std::size_t kMostValues = 128;    // tensors, the state's too
inline constexpr std::size_t kMostPairs = 8;       // of an op: all subsets are tried
inline constexpr std::size_t kMostCompared = 128;  // states with a new one
inline constexpr std::size_t kMostStates = 2'000'000;  // held at a time, of 64 bytes
inline constexpr std::int64_t kAsk = 20'000;           // states compared: about 10 ms

using Ops = std::uint64_t;  // a set of ops

// A set of values.
struct Values {
  std::uint64_t low = 0, high = 0;

  static Values one(std::size_t v) {
    return v < 64 ? Values{std::uint64_t{1} << v, 0}
                  : Values{0, std::uint64_t{1} << (v - 64)};
  }
  bool has(std::size_t v) const { return (*this & one(v)).any(); }
  bool any() const { return (low | high) != 0; }
  bool includes(Values other) const { return !(other - *this).any(); }
  Values operator&(Values o) const { return {low & o.low, high & o.high}; }
  Values operator|(Values o) const { return {low | o.low, high | o.high}; }
  Values operator-(Values o) const { return {low & ~o.low, high & ~o.high}; }
  bool operator==(Values o) const { return low == o.low && high == o.high; }
};

struct Hash {
  std::size_t operator()(Values v) const {
    return (v.low ^ (v.high * 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull >> 7;
  }
};

inline std::size_t first_of(std::uint64_t bits) {
  std::size_t place = 0;
  for (; !(bits & 1); bits >>= 1) ++place;
  return place;
}

template <class Call>
void each_bit(std::uint64_t bits, std::size_t offset, const Call& call) {
  for (std::size_t place = offset; bits; bits >>= 1, ++place)
    if (bits & 1) call(place);
}

template <class Call>
void each(Values values, const Call& call) {
  each_bit(values.low, 0, call);
  each_bit(values.high, 64, call);
}

// Of computations beyond the first of each op: the least seconds, then the fewest.
struct Cost {
  double cost;
  Index again;
  bool operator<(const Cost& o) const {
    return cost != o.cost ? cost < o.cost : again < o.again;
  }
  Cost operator+(const Cost& o) const { return {cost + o.cost, again + o.again}; }
};
inline constexpr Cost kNever{std::numeric_limits<double>::infinity(), 0};

// Which outputs lie in the buffers of inputs that end.
enum class Sharing : std::uint8_t {
  kGranted,  // by the rule of grant_in_place: of the same size, the first pair first
  kAny,      // whatever a plan may do: smaller ones, too, and the best choice of pairs
};

// A step in sets of bits, or a part of a schedule (`Window`). Of a part some ops are
// fixed: they run once, one after the other, and what is held beside the values depends
// on how many of them have run.
class Model {
 public:
  // An output in the buffer of an input that ends with the op. Either may be no value
  // of the model: an input of no number is known to end.
  struct Pair {
    std::size_t from;
    Values both;
    Extent bytes;
  };
  static constexpr std::size_t kNoValue = kMostValues;

  struct Op {
    Values reads, makes;
    Ops before = 0;      // must have run at least once
    Ops against = 0;     // have overwritten what it reads, once they ran
    Extent scratch = 0;  // of a fixed op: what it needs beyond what is held before it
    double cost = 0;
    std::vector<Pair> pairs;  // of one size
  };

  // Whether a step is small enough.
  static bool holds(const Step& step) {
    if (step.ops() > kMostOps || step.tensors() > kMostValues) return false;
    for (Index op = 0; op < static_cast<Index>(step.ops()); ++op)
      if (step.pairs[op].end() - step.pairs[op].begin() >
          static_cast<std::ptrdiff_t>(2 * kMostPairs))
        return false;
    return true;
  }

  Model() = default;

  // With `kAny` it needs no more bytes than any plan of the step: what it has no
  // schedule for has no plan.
  explicit Model(const Step& step, Sharing rule = Sharing::kGranted)
      : ops(step.ops()), bytes(step.bytes), sharing(rule) {
    const auto count = static_cast<Index>(step.ops());
    const auto overwriter = schedule::overwriters(step);
    std::vector<std::uint8_t> state(step.tensors(), 0);
    Sequence once(step.ops());
    std::iota(once.begin(), once.end(), 0);
    liveness::Lives lives(step, once);
    grant_in_place(step, once, liveness::InPlace::kState, lives);
    for (const auto& life : lives.list) state[at(life.tensor)] = life.state;
    Ops forward = 0;
    Extent base = 0, start = 0, end = 0;  // base: of the persistent tensors
    for (Index o = 0; o < count; ++o)
      if (step.phase[at(o)] == Phase::kForward) forward |= bit(o);
    for (std::size_t t = 0; t < step.tensors(); ++t) {
      const bool source = step.producer[t] < 0;
      if (step.persistent[t] && source) base += step.bytes[t];
      if (state[t]) continue;
      if (source) initial = initial | Values::one(t), start += step.bytes[t];
      if (step.keep[t]) kept = kept | Values::one(t), end += step.bytes[t];
    }
    held = {base};
    ends = base + std::max(start, end);
    maker.resize(step.tensors());
    for (std::size_t t = 0; t < step.tensors(); ++t) {
      const Index from = maker[t] = step.producer[t];
      if (!kept.has(t) || (from >= 0 && step.repeatable[at(from)])) continue;
      pinned = pinned | Values::one(t);
    }
    for (Index o = 0; o < count; ++o) {
      Op& op = ops[at(o)];
      op.scratch = step.scratch[at(o)];
      op.cost = step.cost[at(o)];
      if (step.repeatable[at(o)]) repeatable |= bit(o);
      if (step.phase[at(o)] == Phase::kUpdate) op.before |= forward;
      for (const Index t : step.inputs[o]) {
        if (!state[at(t)]) op.reads = op.reads | Values::one(at(t));
        if (step.producer[at(t)] >= 0) op.before |= bit(step.producer[at(t)]);
        const Index taker = overwriter[at(t)];
        if (taker < count && taker != o) {
          op.against |= bit(taker);
          ops[at(taker)].before |= bit(o);
        }
      }
      for (const Index t : step.outputs[o])
        if (!state[at(t)]) op.makes = op.makes | Values::one(at(t));
      for (const Index* pair = step.pairs[o].first; pair != step.pairs[o].last;
           pair += 2) {
        const std::size_t from = at(pair[0]), to = at(pair[1]);
        if (state[from] || state[to] || pinned.has(from) || bytes[to] == 0) continue;
        const bool smaller = sharing == Sharing::kAny && bytes[to] < bytes[from];
        if (bytes[from] == bytes[to] || smaller)
          op.pairs.push_back({from, Values::one(from) | Values::one(to), bytes[to]});
      }
    }
    all = first_bits(step.ops());
  }

  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
  static Ops bit(Index op) { return Ops{1} << op; }
  static Ops first_bits(std::size_t count) {
    return count == kMostOps ? ~Ops{0} : (Ops{1} << count) - 1;
  }
  static int count(Ops ops) {
    int sum = 0;
    for (; ops; ops &= ops - 1) ++sum;
    return sum;
  }

  Extent size(Values values) const {
    Extent sum = 0;
    each(values, [&](std::size_t v) { sum += bytes[v]; });
    return sum;
  }

  // Bytes of outputs in buffers of inputs that end with the op.
  Extent in_place(const Op& op, Values ending) const {
    return in_place(op, ending, 0, {});
  }

  bool may_repeat(std::size_t op, Ops done) const {
    return (repeatable >> op & 1) && !(ops[op].against & done);
  }

  // Bytes that are held beside the values once some ops have run.
  Extent held_after(Ops done) const { return held[at(count(done & fixed))]; }

  std::vector<Op> ops;
  std::vector<Extent> bytes;  // by value; the values of a step are its tensors
  Sharing sharing = Sharing::kGranted;
  std::vector<Index> maker;  // by value
  Values initial;
  Values kept;    // that are there at the end
  Values pinned;  // of those, the ones that stay once they are there
  Ops repeatable = 0, all = 0;
  Ops started = 0;           // ops that have run before
  Ops fixed = 0;             // ops that run in their order
  std::vector<Extent> held;  // by number of fixed ops that have run
  Extent ends = 0;           // bytes at the start, or at the end if they are more

 private:
  // The same of the pairs from one on, without values that others have taken.
  Extent in_place(const Op& op, Values ending, std::size_t from, Values taken) const {
    Extent most = 0;
    for (std::size_t k = from; k < op.pairs.size(); ++k) {
      const Pair& pair = op.pairs[k];
      if (pair.from != kNoValue && !ending.has(pair.from)) continue;
      if ((taken & pair.both).any()) continue;
      most =
          std::max(most, pair.bytes + in_place(op, ending, k + 1, taken | pair.both));
      if (sharing == Sharing::kGranted) break;
    }
    return most;
  }
};

enum class Verdict : std::int32_t {
  kFound = 0,
  kNone = 1,     // there is no such schedule
  kUnknown = 2,  // the states did not suffice
};

struct Found {
  Verdict verdict = Verdict::kUnknown;
  Sequence sequence;
  Extent next = 0;          // of kNone: no schedule needs fewer bytes than this
  Cost least = kNever;      // no schedule costs less, whatever the verdict
  std::int64_t states = 0;  // that were looked at
  std::int64_t work = 0;    // states that were compared
};

class Search {
 public:
  // Without `timed`, any schedule within the limit will do; else only one that costs
  // less than `below`. `effort` is a number of states that are compared.
  Search(const Model& model,
         Extent limit,
         bool timed,
         std::int64_t effort,
         const Stop& stop = {},
         Cost below = kNever)
      : model_(model),
        limit_(limit),
        timed_(timed),
        effort_(effort),
        below_(below),
        watch_(stop, kAsk) {}

  Found run() {
    Found found;
    next_ = std::numeric_limits<Extent>::max();
    if (model_.ends > limit_) next_ = model_.ends;
    bar_ = {std::numeric_limits<double>::max(), 0};
    if (model_.ends <= limit_) push(model_.initial, model_.started, {0, 0}, -1, -1);
    while (!queue_.empty() && !is_over()) {
      const std::size_t index = queue_.top().node;
      bar_ = queue_.top().least;
      queue_.pop();
      if (nodes_[index].needless) continue;
      ++found.states;
      if (nodes_[index].done == model_.all &&
          nodes_[index].resident.includes(model_.kept)) {
        for (auto n = static_cast<Index>(index); nodes_[Model::at(n)].op >= 0;
             n = nodes_[Model::at(n)].parent)
          found.sequence.push_back(nodes_[Model::at(n)].op);
        std::reverse(found.sequence.begin(), found.sequence.end());
        found.verdict = Verdict::kFound;
        found.least = nodes_[index].cost;
        found.work = work_;
        return found;
      }
      above_ = kNever;
      expand(index);
      if (over_) above_ = bar_;  // not all that follows was seen
      if (above_ < kNever) enter(above_, index);
    }
    if (queue_.empty()) found.verdict = Verdict::kNone;
    found.least = queue_.empty() ? below_ : std::min(queue_.top().least, below_);
    found.next = next_;
    found.work = work_;
    return found;
  }

 private:
  struct Node {
    Values resident;
    Ops done;
    Cost cost;
    Index parent, op;
    bool needless;
  };
  struct Entry {
    Cost least;  // of a schedule through the node
    int done;
    std::size_t node;
    int rank;                               // higher ones first
    bool operator<(const Entry& o) const {  // of two, the one to take later
      if (rank != o.rank) return rank < o.rank;
      if (o.least < least) return true;
      if (least < o.least) return false;
      return done != o.done ? done < o.done : node < o.node;
    }
  };
  // What depends on the ops that have run alone.
  struct Frontier {
    Values live;    // values that some op may still read, or that are kept
    Values wanted;  // values that an op reads that has not run, or that are kept
    std::unordered_map<Values, Cost, Hash> known;  // by resident values: the least
    std::vector<Index> nodes;
  };

  // Whether the work is done. Once it is, it stays so.
  bool is_over() {
    over_ = over_ || work_ >= effort_ || nodes_.size() >= kMostStates ||
            watch_.is_over(work_);
    return over_;
  }

  Frontier& frontier(Ops done) {
    const auto [place, added] = frontiers_.try_emplace(done);
    Frontier& found = place->second;
    if (!added) return found;
    found.live = found.wanted = model_.kept;
    each_bit(model_.all & ~done, 0, [&](std::size_t op) {
      found.wanted = found.wanted | model_.ops[op].reads;
    });
    found.live = found.wanted;
    Values open = found.live;
    while (open.any()) {
      const std::size_t v = open.low ? first_of(open.low) : 64 + first_of(open.high);
      open = open - Values::one(v);
      const Index maker = model_.maker[v];
      if (maker < 0 || !model_.may_repeat(Model::at(maker), done)) continue;
      const Values more = model_.ops[Model::at(maker)].reads - found.live;
      found.live = found.live | more;
      open = open | more;
    }
    return found;
  }

  // The least that is still to be computed again; false: the state leads nowhere.
  bool remaining(Values resident, Ops done, Values wanted, Cost& cost) const {
    cost = {0, 0};
    Ops again = 0;
    Values open = wanted - resident;
    while (open.any()) {
      const std::size_t v = open.low ? first_of(open.low) : 64 + first_of(open.high);
      open = open - Values::one(v);
      const Index maker = model_.maker[v];
      if (maker < 0) return false;
      if (!(done & Model::bit(maker)) || (again & Model::bit(maker))) continue;
      if (!model_.may_repeat(Model::at(maker), done)) return false;
      again |= Model::bit(maker);
      cost = cost + Cost{model_.ops[Model::at(maker)].cost, 1};
      open = open | (model_.ops[Model::at(maker)].reads - resident);
    }
    return true;
  }

  // Adds a state unless a schedule through it takes more than the bar.
  void push(Values resident, Ops done, Cost cost, Index parent, Index op) {
    Frontier& at = frontier(done);
    resident = resident & at.live;
    const Cost least = estimate(resident, done, cost);
    if (!timed_) cost = {0, 0};
    if (!(least < below_)) return;
    if (bar_ < least) {
      above_ = std::min(above_, least);
      return;
    }
    const auto [known, added] = at.known.try_emplace(resident, cost);
    if (!added && !(cost < known->second)) return;
    known->second = cost;
    const std::size_t first =
        at.nodes.size() - std::min(at.nodes.size(), kMostCompared);
    for (std::size_t k = first; k < at.nodes.size(); ++k) {
      Node& other = nodes_[Model::at(at.nodes[k])];
      if (other.resident.includes(resident) && !(cost < other.cost)) return;
      if (resident.includes(other.resident) && !(other.cost < cost))
        other.needless = true;
    }
    at.nodes.push_back(static_cast<Index>(nodes_.size()));
    nodes_.push_back({resident, done, cost, parent, op, false});
    enter(least, nodes_.size() - 1);
  }

  // Without a clock, whatever has run most goes first: any schedule will do.
  void enter(Cost least, std::size_t index) {
    const int done = Model::count(nodes_[index].done);
    queue_.push({least, done, index, timed_ ? 0 : done});
  }

  // The least that a schedule through a state takes; kNever: there is none.
  Cost estimate(Values resident, Ops done, Cost cost) {
    ++work_;
    Cost rest;
    if (!remaining(resident, done, frontier(done).wanted, rest)) return kNever;
    return timed_ ? cost + rest : rest;
  }

  void expand(std::size_t index) {
    const Node node = nodes_[index];
    const auto parent = static_cast<Index>(index);
    const auto ops = static_cast<Index>(model_.ops.size());
    for (Index op = 0; op < ops; ++op) {
      if (may_run(node, op) && is_harmless(node, op)) {
        run_op(node, parent, op);
        return;
      }
    }
    for (Index op = 0; op < ops; ++op)
      if (may_run(node, op)) run_op(node, parent, op);
  }

  bool may_run(const Node& node, Index index) const {
    const Model::Op& op = model_.ops[Model::at(index)];
    if (!node.resident.includes(op.reads)) return false;
    if (op.before & ~node.done || op.against & node.done) return false;
    if (!(node.done & Model::bit(index))) return true;
    return (model_.repeatable & Model::bit(index)) && !node.resident.includes(op.makes);
  }

  // Whether an op may as well run now, whatever is to come: it fits, what it leaves and
  // what is held more takes no more bytes than what ends with it and could not be had
  // again, and it overwrites nothing that may be read again.
  bool is_harmless(const Node& node, Index index) {
    const Model::Op& op = model_.ops[Model::at(index)];
    if (node.done & Model::bit(index)) return false;
    const Values before = frontier(node.done).live;
    const Values live = frontier(node.done | Model::bit(index)).live;
    for (std::size_t o = 0; o < model_.ops.size(); ++o)
      if (model_.ops[o].against & Model::bit(index) &&
          model_.may_repeat(o, node.done) && (model_.ops[o].makes & before).any())
        return false;
    const Values ending = op.reads - live;
    Extent freed = 0;
    each(ending, [&](std::size_t v) {
      const Index maker = model_.maker[v];
      if (maker < 0 || !model_.may_repeat(Model::at(maker), node.done))
        freed += model_.bytes[v];
    });
    const Extent more =
        model_.held_after(node.done | Model::bit(index)) - model_.held_after(node.done);
    return model_.size((op.makes & live) - node.resident) + more <= freed &&
           needed(node, op, ending) <= limit_;
  }

  // Bytes in use while an op runs and nothing but `ending` is dropped.
  Extent needed(const Node& node, const Model::Op& op, Values ending) const {
    return model_.held_after(node.done) + model_.size(node.resident | op.makes) +
           op.scratch - model_.in_place(op, ending);
  }

  // Runs an op after every least set of drops that makes room.
  void run_op(const Node& node, Index parent, Index index) {
    const Model::Op& op = model_.ops[Model::at(index)];
    const Ops done = node.done | Model::bit(index);
    const bool again = node.done & Model::bit(index);
    const Cost cost = again ? node.cost + Cost{op.cost, 1} : node.cost;
    const Values live = frontier(done).live;
    const Values dead = op.reads - live;
    std::vector<std::size_t> givers;  // inputs that outputs may take over
    for (const auto& pair : op.pairs)
      if (pair.from != Model::kNoValue && live.has(pair.from) &&
          std::find(givers.begin(), givers.end(), pair.from) == givers.end())
        givers.push_back(pair.from);
    std::vector<std::size_t> others;
    each(node.resident - op.reads - op.makes - model_.pinned, [&](std::size_t v) {
      if (model_.bytes[v] > 0) others.push_back(v);
    });
    std::sort(others.begin(), others.end(), [&](std::size_t a, std::size_t b) {
      return model_.bytes[a] != model_.bytes[b] ? model_.bytes[a] > model_.bytes[b]
                                                : a < b;
    });
    Extent rest = 0;
    for (const std::size_t v : others) rest += model_.bytes[v];
    for (std::size_t set = 0; set < std::size_t{1} << givers.size(); ++set) {
      Values given;
      for (std::size_t k = 0; k < givers.size(); ++k)
        if (set >> k & 1) given = given | Values::one(givers[k]);
      const Extent need = needed(node, op, dead | given);
      bool least = true;  // none is given in vain
      each(given, [&](std::size_t v) {
        least = least && needed(node, op, (dead | given) - Values::one(v)) > need;
      });
      if (!least) continue;
      const auto drop = [&](auto& self,
                            std::size_t k,
                            Values dropped,
                            Extent over,
                            Extent left,
                            Extent smallest) -> void {
        if (is_over()) return;
        if (over <= 0) {  // least, if the smallest is not dropped in vain
          if (smallest > 0 && over + smallest <= 0) return;
          push((node.resident - dropped - given) | op.makes, done, cost, parent, index);
          return;
        }
        if (over > left) {
          next_ = std::min(next_, limit_ + over - left);
          return;
        }
        const Extent size = model_.bytes[others[k]];
        const Values more = dropped | Values::one(others[k]);
        const Values stays = ((node.resident - more - given) | op.makes) & live;
        const Cost bound = estimate(stays, done, cost);
        if (bar_ < bound)
          above_ = bound < below_ ? std::min(above_, bound) : above_;
        else if (bound < below_)
          self(self, k + 1, more, over - size, left - size, size);
        self(self, k + 1, dropped, over, left - size, smallest);
      };
      drop(drop, 0, {}, need - limit_, rest, 0);
    }
  }

  const Model& model_;
  const Extent limit_;
  const bool timed_;
  const std::int64_t effort_;
  const Cost below_;
  Watch watch_;
  std::int64_t work_ = 0;
  bool over_ = false;
  Extent next_ = 0;
  Cost bar_{0, 0};    // states that take more are put off
  Cost above_{0, 0};  // the least of those that were
  std::vector<Node> nodes_;
  std::priority_queue<Entry> queue_;
  std::unordered_map<Ops, Frontier> frontiers_;
};

// The least cost within a limit, of schedules that cost less than `below`. Pre:
// Model::holds(step).
inline Found least_cost(const Step& step,
                        Extent limit,
                        std::int64_t effort,
                        const Stop& stop = {},
                        Sharing sharing = Sharing::kGranted,
                        Cost below = kNever) {
  return Search(Model(step, sharing), limit, true, effort, stop, below).run();
}

struct LeastLoad {
  Sequence sequence;
  Extent load;        // of the sequence
  Extent floor;       // no schedule needs less: proven if it is the load
  std::int64_t work;  // states that were compared
};

// The schedule that needs the fewest bytes; `known` is one without fault. Whether that
// is the lowest is asked first. A limit that a search of so much effort does not decide
// is taken for too low, which proves nothing; all of them together take four times the
// effort at most. With `kAny` the load is not that of the sequence but the least limit
// that was found to do. Pre: Model::holds(step).
inline LeastLoad least_load(const Step& step,
                            const Sequence& known,
                            std::int64_t effort,
                            const Stop& stop = {},
                            Sharing sharing = Sharing::kGranted) {
  const Model model(step, sharing);
  LeastLoad result{known, schedule::score(step, known).load, model.ends, 0};
  Extent low = result.floor, limit = result.load - 1;
  while (low < result.load && result.work < 4 * effort && !stop.now()) {
    const std::int64_t left = std::min(effort, 4 * effort - result.work);
    Found found = Search(model, limit, false, left, stop).run();
    result.work += found.work;
    if (found.verdict == Verdict::kFound) {
      result.sequence = std::move(found.sequence);
      result.load = sharing == Sharing::kAny
                        ? limit
                        : schedule::score(step, result.sequence).load;
    } else {
      low = limit + 1;
      if (found.verdict == Verdict::kNone)
        low = result.floor = std::min(found.next, result.load);
    }
    limit = low + (result.load - low) / 2;
  }
  return result;
}

}  // namespace memcfg::exact
