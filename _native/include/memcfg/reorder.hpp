// Another order of a schedule's computations, in which fewer bytes are in use at the
// busiest moment.
//
// What a computation reads stays what it was: each value is read by the same
// computations, before its tensor is computed again and before its state is
// overwritten. The order is cut where the load is highest: what runs before that op is
// chosen by a minimum cut, which is the least that this op can need in any order; then
// both sides are cut in the same way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "memcfg/liveness.hpp"
#include "memcfg/max_flow.hpp"
#include "memcfg/stop.hpp"

namespace memcfg::reorder {

using liveness::Index;
using liveness::Phase;
using liveness::Sequence;
using liveness::Step;
using packing::Extent;

inline std::size_t at(Index i) {
  return static_cast<std::size_t>(i);
}

// The computations of a schedule and the values between them. An item is a place in
// the schedule; the last one computes nothing: it stands between the forward phase and
// the updates.
class Items {
 public:
  struct Value {
    Index maker;  // item, or -1: there from the start
    Extent bytes;
    bool kept;
    std::vector<Index> readers;  // items, each once
  };
  struct Item {
    Extent scratch = 0;
    std::vector<Index> before;                   // items that it follows
    std::vector<Index> after;                    // items that follow it
    std::vector<Index> reads, makes;             // values
    std::vector<std::pair<Index, Index>> pairs;  // of one size: takes, makes
  };

  Items(const Step& step, const Sequence& sequence) : items(sequence.size() + 1) {
    liveness::Lives lives(step, sequence);
    grant_in_place(step, sequence, liveness::InPlace::kState, lives);
    add_values(step, lives);
    add_reads(step, sequence, lives);
    add_pairs(step, sequence, lives);
    add_phases(step, sequence);
    for (auto& item : items) {
      std::sort(item.before.begin(), item.before.end());
      item.before.erase(std::unique(item.before.begin(), item.before.end()),
                        item.before.end());
    }
    for (std::size_t i = 0; i < items.size(); ++i)
      for (const Index b : items[i].before)
        items[at(b)].after.push_back(static_cast<Index>(i));
  }

  std::vector<Value> values;
  std::vector<Item> items;
  Extent base = 0;  // bytes of the persistent tensors
  Extent ends = 0;  // bytes at the start, or at the end if they are more

 private:
  void add_values(const Step& step, const liveness::Lives& lives) {
    Extent start = 0, end = 0;
    for (const auto& life : lives.list) {
      const Extent bytes = step.bytes[at(life.tensor)];
      const bool kept = at(life.end) + 1 == items.size();
      if (life.begin < 0) (life.state ? base : start) += bytes;
      if (kept && !life.state) end += bytes;
      values.push_back({life.begin, life.state ? 0 : bytes, kept, {}});
    }
    ends = base + std::max(start, end);
  }

  void add_reads(const Step& step, const Sequence& sequence, liveness::Lives& lives) {
    std::vector<Index> newest(step.tensors(), -1);
    for (std::size_t v = 0; v < values.size() && values[v].maker < 0; ++v)
      newest[at(lives.list[v].tensor)] = static_cast<Index>(v);
    for (std::size_t s = 0; s < sequence.size(); ++s) {
      const auto item = static_cast<Index>(s);
      const auto count = static_cast<std::size_t>(step.inputs[sequence[s]].end() -
                                                  step.inputs[sequence[s]].begin());
      for (std::size_t k = 0; k < count; ++k) {
        const Index read = lives.reads[at(lives.first[s]) + k];
        auto& readers = values[at(read)].readers;
        if (!readers.empty() && readers.back() == item) continue;
        readers.push_back(item);
        items[s].reads.push_back(read);
        if (values[at(read)].maker >= 0)
          items[s].before.push_back(values[at(read)].maker);
      }
      Index made = lives.made[s];
      for (const Index t : step.outputs[sequence[s]]) {
        const Index earlier = newest[at(t)];
        if (earlier >= 0) {  // its readers come before this one
          auto& before = items[s].before;
          for (const Index r : values[at(earlier)].readers) before.push_back(r);
          if (values[at(earlier)].maker >= 0)
            before.push_back(values[at(earlier)].maker);
        }
        newest[at(t)] = made;
        items[s].makes.push_back(made++);
      }
    }
    for (const auto& life : lives.list) {
      if (!life.state || life.taker < 0) continue;
      const Index update = lives.at(life.taker).begin;
      const auto value = static_cast<std::size_t>(&life - lives.list.data());
      for (const Index r : values[value].readers)
        if (r != update) items[at(update)].before.push_back(r);
    }
  }

  void add_pairs(const Step& step,
                 const Sequence& sequence,
                 const liveness::Lives& lives) {
    for (std::size_t s = 0; s < sequence.size(); ++s) {
      items[s].scratch = step.scratch[at(sequence[s])];
      const auto inputs = step.inputs[sequence[s]];
      const auto outputs = step.outputs[sequence[s]];
      const auto pairs = step.pairs[sequence[s]];
      for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
        const auto in = std::find(inputs.begin(), inputs.end(), pair[0]);
        const auto out = std::find(outputs.begin(), outputs.end(), pair[1]);
        const Index from = lives.reads[at(lives.first[s]) +
                                       static_cast<std::size_t>(in - inputs.begin())];
        const Index to = lives.made[s] + static_cast<Index>(out - outputs.begin());
        const Extent bytes = values[at(from)].bytes;
        if (bytes > 0 && bytes == values[at(to)].bytes && !values[at(from)].kept)
          items[s].pairs.emplace_back(from, to);
      }
    }
  }

  void add_phases(const Step& step, const Sequence& sequence) {
    const auto barrier = static_cast<Index>(sequence.size());
    std::vector<std::uint8_t> seen(step.ops(), 0);
    for (std::size_t s = 0; s < sequence.size(); ++s) {
      const auto op = at(sequence[s]);
      if (step.phase[op] == Phase::kForward && !seen[op])
        items.back().before.push_back(static_cast<Index>(s));
      if (step.phase[op] == Phase::kUpdate) items[s].before.push_back(barrier);
      seen[op] = 1;
    }
  }
};

struct Result {
  Sequence sequence;
  Extent load;   // bytes in use at its busiest moment
  Extent floor;  // no order of these computations has a lower load
};

constexpr std::int64_t kBetweenQuestions = 1'000'000;  // of work: some milliseconds

class Search {
 public:
  // `effort` is a number of arcs, values and items that are looked at.
  Search(const Step& step,
         const Sequence& sequence,
         std::int64_t effort,
         const Stop& stop)
      : sequence_(sequence),
        items_(step, sequence),
        effort_(effort),
        watch_(stop, kBetweenQuestions) {
    order_in_time();
    best_load_ = evaluate(best_);
    floor_ = items_.ends;
  }

  Result run() {
    do {
      for (int vain = 0; vain < 2 && !is_over(); near_ = !near_)
        vain = cut_peaks() ? 0 : vain + 1;
    } while (!is_over() && move_across_peak());
    Result result{{}, best_load_.first, std::min(floor_, best_load_.first)};
    for (const Index item : best_)
      if (at(item) < sequence_.size()) result.sequence.push_back(sequence_[at(item)]);
    return result;
  }

 private:
  using Order = std::vector<Index>;        // of items
  using Load = std::pair<Extent, Extent>;  // at the peak; in all above the crest

  bool is_over() {
    return work_ >= effort_ || best_load_.first <= floor_ || watch_.is_over(work_);
  }

  // The order as given, the barrier as early as it may be.
  void order_in_time() {
    const auto barrier = static_cast<Index>(sequence_.size());
    Index last = -1;
    for (const Index b : items_.items.back().before) last = std::max(last, b);
    for (Index i = 0; i < barrier; ++i) {
      if (i == last + 1) best_.push_back(barrier);
      best_.push_back(i);
    }
    if (last + 1 == barrier) best_.push_back(barrier);
  }

  // Sets load_, place_ and end_ of an order.
  Load evaluate(const Order& order) {
    const std::size_t count = order.size();
    place_.resize(count);
    for (std::size_t k = 0; k < count; ++k)
      place_[at(order[k])] = static_cast<Index>(k);
    load_.assign(count + 2, 0);
    end_.resize(items_.values.size());
    for (std::size_t v = 0; v < items_.values.size(); ++v) {
      const Items::Value& value = items_.values[v];
      const Index first = value.maker < 0 ? 0 : place_[at(value.maker)];
      Index last = value.maker < 0 ? -1 : first;
      if (value.kept) last = static_cast<Index>(count);
      for (const Index r : value.readers) last = std::max(last, place_[at(r)]);
      end_[v] = last;
      work_ += 1 + static_cast<std::int64_t>(value.readers.size());
      load_[at(first)] += value.bytes;
      load_[at(last + 1)] -= value.bytes;
    }
    Load total{items_.ends, 0};
    Extent live = items_.base;
    for (std::size_t k = 0; k < count; ++k) {
      live += load_[k];
      load_[k] = live + items_.items[at(order[k])].scratch -
                 in_place(order[k], static_cast<Index>(k));
      total.first = std::max(total.first, load_[k]);
      if (load_[k] > crest_) total.second += load_[k] - crest_;
    }
    return total;
  }

  // Bytes of outputs in buffers of inputs, by the rule of grant_in_place.
  Extent in_place(Index item, Index place) {
    Extent bytes = 0;
    taken_.clear();
    for (const auto& [from, to] : items_.items[at(item)].pairs) {
      if (end_[at(from)] != place) continue;
      bool free = true;
      for (const Index t : taken_) free = free && t != from && t != to;
      if (!free) continue;
      taken_.push_back(from);
      taken_.push_back(to);
      bytes += items_.values[at(to)].bytes;
    }
    return bytes;
  }

  // Cuts at the peak, then at the peak of what results, until a peak can't be cut.
  bool cut_peaks() {
    const Load before = best_load_;
    Order order = best_;
    std::set<std::size_t> bounds{0, order.size()};
    while (!is_over()) {
      const Load load = evaluate(order);
      if (load < best_load_) {
        best_load_ = load;
        best_ = order;
      }
      const auto last = load_.begin() + static_cast<std::ptrdiff_t>(order.size());
      const auto peak = static_cast<std::size_t>(std::max_element(load_.begin(), last) -
                                                 load_.begin());
      const auto upper = bounds.upper_bound(peak);
      const std::size_t end = *upper, begin = *std::prev(upper);
      if (end - begin < 3) break;
      const std::size_t middle = cut(order, begin, peak, end);
      bounds.insert(middle);
      bounds.insert(middle + 1);
    }
    return best_load_ < before;
  }

  // Orders the items of [begin, end) anew around the one at `peak`: first those of a
  // minimum cut. Gives the place of that item.
  //
  // What the item at the peak needs is before it in any order, and what needs it is
  // behind it: these are the two ends of the network, and only the others are nodes.
  std::size_t cut(Order& order, std::size_t begin, std::size_t peak, std::size_t end) {
    const Index middle = order[peak];
    const auto lower = static_cast<Index>(begin), upper = static_cast<Index>(end);
    const auto inside = [&](Index item) {
      return place_[at(item)] >= lower && place_[at(item)] < upper;
    };
    constexpr flow::Node kFirst = 0, kLast = 1;
    work_ += static_cast<std::int64_t>(end - begin + items_.values.size());
    node_.assign(order.size(), -1);
    mark(middle, &Items::Item::before, kFirst, inside);
    mark(middle, &Items::Item::after, kLast, inside);
    node_[at(middle)] = kLast;
    flow::Node nodes = 2;
    for (std::size_t k = begin; k < end; ++k)
      if (node_[at(order[k])] < 0) node_[at(order[k])] = nodes++;
    flow::MaxFlow network(static_cast<std::size_t>(nodes));
    const auto add = [&](flow::Node from, flow::Node to, flow::Amount capacity) {
      if (from != to && from != kLast && to != kFirst)
        network.add_arc(from, to, capacity);
    };
    const Items::Item& item = items_.items[at(middle)];
    for (std::size_t k = begin; k < end; ++k) {
      const flow::Node from = node_[at(order[k])];
      if (from == kFirst || from == kLast) continue;
      for (const Index b : items_.items[at(order[k])].before)
        if (inside(b)) add(from, node_[at(b)], flow::kUnbounded);
    }
    // Bytes that are in use whatever is cut, and those in use unless `readers` are
    // done.
    Extent fixed = items_.base + item.scratch;
    const auto hold = [&](flow::Node from, Extent bytes) {  // until after the cut
      if (from == kFirst)
        fixed += bytes;
      else
        add(from, kLast, bytes);
    };
    const auto cost = [&](flow::Node from, const Items::Value& value, Extent bytes) {
      if (from == kLast) return;
      bool is_read = false, is_held = false;
      for (const Index r : value.readers) {
        if (place_[at(r)] < lower || r == middle) continue;
        is_read = is_read || node_[at(r)] != kFirst;
        is_held = is_held || node_[at(r)] == kLast;
      }
      if (is_held) return hold(from, bytes);
      if (!is_read) return;
      const flow::Node gate = network.add_node();
      network.add_arc(from, gate, bytes);
      for (const Index r : value.readers)
        if (place_[at(r)] >= lower && r != middle)
          add(gate, node_[at(r)], flow::kUnbounded);
    };
    for (std::size_t v = 0; v < items_.values.size(); ++v) {
      const Items::Value& value = items_.values[v];
      if (value.bytes == 0 || value.maker == middle) continue;
      const bool early = value.maker < 0 || place_[at(value.maker)] < lower;
      if (!early && place_[at(value.maker)] >= upper) continue;
      if (early && end_[v] < lower) continue;
      const bool late = end_[v] >= upper ||
                        std::find(value.readers.begin(), value.readers.end(), middle) !=
                            value.readers.end();
      if (early && late) {
        fixed += value.bytes;
      } else if (late) {
        hold(node_[at(value.maker)], value.bytes);
      } else {
        cost(early ? kFirst : node_[at(value.maker)], value, value.bytes);
      }
    }
    for (const Index v : item.makes) fixed += items_.values[at(v)].bytes;
    for (const Index v : item.makes) {
      Index from = -1;
      int ways = 0;
      for (const auto& pair : item.pairs) {
        if (pair.second != v) continue;
        from = pair.first;
        ++ways;
        for (const auto& other : item.pairs)
          ways += other.first == from && other.second != v;
      }
      if (ways == 0 || (ways == 1 && end_[at(from)] >= upper)) continue;
      fixed -= items_.values[at(v)].bytes;  // at best
      if (ways == 1) cost(kFirst, items_.values[at(from)], items_.values[at(v)].bytes);
    }
    const flow::Amount least = network.run(kFirst, kLast, work_);
    if (begin == 0 && end == order.size()) floor_ = std::max(floor_, fixed + least);
    const auto side = near_ ? network.near_side(kFirst) : network.far_side(kLast);
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(end);
    const auto split = std::stable_partition(first, last, [&](Index i) {
      return i != middle && side[static_cast<std::size_t>(node_[at(i)])];
    });
    const auto now = std::find(split, last, middle);
    std::rotate(split, now, now + 1);
    return static_cast<std::size_t>(split - order.begin());
  }

  // Sets the node of all that an item waits for, or that waits for it, of those inside.
  template <typename Inside>
  void mark(Index item,
            std::vector<Index> Items::Item::* next,
            flow::Node node,
            const Inside& inside) {
    std::vector<Index> open{item};
    while (!open.empty()) {
      const Items::Item& at_hand = items_.items[at(open.back())];
      open.pop_back();
      work_ += static_cast<std::int64_t>((at_hand.*next).size());
      for (const Index other : at_hand.*next) {
        if (node_[at(other)] == node || !inside(other)) continue;
        node_[at(other)] = node;
        open.push_back(other);
      }
    }
  }

  // Moves a reader of what is in use at the peak before it, with all that it waits for,
  // or a maker behind it, with all that waits for it: the first that helps.
  bool move_across_peak() {
    crest_ = best_load_.first - best_load_.first / 64;
    best_load_ = evaluate(best_);
    const auto last = load_.begin() + static_cast<std::ptrdiff_t>(best_.size());
    const auto peak =
        static_cast<Index>(std::max_element(load_.begin(), last) - load_.begin());
    const std::vector<Index> place = place_;  // of best_: tries change place_
    std::vector<Index> late, early;
    for (std::size_t v = 0; v < items_.values.size(); ++v) {
      const Items::Value& value = items_.values[v];
      const Index made = value.maker < 0 ? -1 : place[at(value.maker)];
      if (value.bytes == 0 || made > peak || end_[v] < peak) continue;
      if (made >= 0 && made < peak) early.push_back(value.maker);
      for (const Index r : value.readers)
        if (place[at(r)] > peak) late.push_back(r);
    }
    for (auto* moved : {&late, &early}) {
      std::sort(moved->begin(), moved->end());
      moved->erase(std::unique(moved->begin(), moved->end()), moved->end());
    }
    for (const Index item : late)
      if (try_block(place, peak, item, true)) return true;
    for (const Index item : early)
      if (try_block(place, peak, item, false)) return true;
    return false;
  }

  // Moves an item and all between it and the peak that it needs, or that need it.
  bool try_block(const std::vector<Index>& place,
                 Index peak,
                 Index item,
                 bool forward) {
    if (is_over()) return false;
    std::vector<std::uint8_t> chosen(best_.size(), 0);
    std::vector<Index> open{item};
    chosen[at(item)] = 1;
    while (!open.empty()) {
      const Items::Item& next = items_.items[at(open.back())];
      open.pop_back();
      for (const Index other : forward ? next.before : next.after) {
        if (chosen[at(other)]) continue;
        const Index where = place[at(other)];
        if (where == peak) return false;  // the peak's own op would move along
        if (forward ? where < peak : where > peak) continue;
        chosen[at(other)] = 1;
        open.push_back(other);
      }
    }
    work_ += static_cast<std::int64_t>(best_.size());
    Order order = best_;
    const auto first = order.begin() + peak;
    if (forward)
      std::stable_partition(first, order.end(), [&](Index i) { return chosen[at(i)]; });
    else
      std::stable_partition(
          order.begin(), first + 1, [&](Index i) { return !chosen[at(i)]; });
    const Load load = evaluate(order);
    if (!(load < best_load_)) return false;
    best_load_ = load;
    best_ = std::move(order);
    return true;
  }

  const Sequence& sequence_;
  const Items items_;
  const std::int64_t effort_;
  std::int64_t work_ = 0;
  Watch watch_;
  Extent floor_ = 0;
  Extent crest_ = 0;  // loads above it count beside the peak
  bool near_ = true;  // which of the minimum cuts is taken
  Order best_;
  Load best_load_;
  std::vector<Index> place_;      // by item
  std::vector<Index> end_;        // by value: place of its last reader
  std::vector<flow::Node> node_;  // by item: in the network of a cut
  std::vector<Extent> load_;      // by place
  std::vector<Index> taken_;
};

// Pre: find_fault(step, sequence) finds none. Stopped, it returns the best so far.
inline Result reorder(const Step& step,
                      const Sequence& sequence,
                      std::int64_t effort,
                      const Stop& stop = {}) {
  return Search(step, sequence, effort, stop).run();
}

}  // namespace memcfg::reorder
