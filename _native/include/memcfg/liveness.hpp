// What lives when: from a sequence of ops to buffers with lifetimes.
//
// Pure functions over a step given as arrays of numbers. An *instance* is the value of
// a tensor from one computation of its op to the last read before the next; a tensor
// that is recomputed has several. A *buffer* is bytes in the arena: one instance, or a
// chain of instances of which each takes over its predecessor in place.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memcfg/packing.hpp"

namespace memcfg::liveness {

using Index = std::int32_t;
using packing::Extent;

// Rows of numbers: row i is index[start[i]] ... index[start[i + 1] - 1].
struct Rows {
  std::vector<Index> start{0};
  std::vector<Index> index;
  struct Range {
    const Index* first;
    const Index* last;
    const Index* begin() const { return first; }
    const Index* end() const { return last; }
  };
  Range operator[](Index row) const {
    const auto r = static_cast<std::size_t>(row);
    return {index.data() + start[r], index.data() + start[r + 1]};
  }
  void add(const std::vector<Index>& row) {
    index.insert(index.end(), row.begin(), row.end());
    start.push_back(static_cast<Index>(index.size()));
  }
};

enum class Phase : std::uint8_t { kForward = 0, kBackward = 1, kUpdate = 2 };

// A training step. Ops stand in topological order; sizes are rounded to the
// alignment. Row sizes: by op for inputs, outputs, pairs; `pairs` holds i, o, i, o...
struct Step {
  std::vector<Extent> bytes;             // by tensor
  std::vector<std::uint8_t> persistent;  // by tensor: lives throughout
  std::vector<std::uint8_t> keep;        // by tensor: lives to the end
  std::vector<Index> producer;           // by tensor: its op, or -1
  Rows inputs, outputs, pairs;
  std::vector<Extent> scratch;           // by op
  std::vector<Phase> phase;              // by op
  std::vector<double> cost;              // by op: seconds, or any unit of work
  std::vector<std::uint8_t> droppable;   // by op: a choice may drop its outputs
  std::vector<std::uint8_t> repeatable;  // by op: a schedule may compute it again

  std::size_t tensors() const { return bytes.size(); }
  std::size_t ops() const { return phase.size(); }

  // Whether an op comes behind the forward phase for what it reads: one of the backward
  // phase, and an update of what that gives. Others, of statistics, are due before it.
  bool is_late(Index op) const {
    const Phase of = phase[static_cast<std::size_t>(op)];
    if (of != Phase::kUpdate) return of == Phase::kBackward;
    for (const Index t : inputs[op]) {
      const Index from = producer[static_cast<std::size_t>(t)];
      if (from >= 0 && phase[static_cast<std::size_t>(from)] == Phase::kBackward) {
        return true;
      }
    }
    return false;
  }
};

using Sequence = std::vector<Index>;        // ops in order of execution
using Dropped = std::vector<std::uint8_t>;  // by op: its outputs are not kept

struct Instance {
  Index tensor;
  Index begin;   // the step that computes it; -1: there from the start
  Index end;     // the last step that reads it; the number of steps: to the end
  Index source;  // the instance whose buffer it takes over, or -1
  Index taker;   // the instance that takes over its buffer, or -1
  bool state;    // lives in the buffer of a persistent tensor
};

// The instances of a sequence, with their ends and no buffers shared.
class Lives {
 public:
  Lives(const Step& step, const Sequence& sequence) {
    const auto steps = static_cast<Index>(sequence.size());
    current_.assign(step.tensors(), -1);
    for (std::size_t t = 0; t < step.tensors(); ++t)
      if (step.producer[t] < 0) open(static_cast<Index>(t), -1, step.persistent[t]);
    for (Index s = 0; s < steps; ++s) {
      const Index op = sequence[static_cast<std::size_t>(s)];
      first.push_back(static_cast<Index>(reads.size()));
      for (const Index t : step.inputs[op]) {
        const Index read = current_[static_cast<std::size_t>(t)];
        at(read).end = s;
        reads.push_back(read);
      }
      made.push_back(static_cast<Index>(list.size()));
      for (const Index t : step.outputs[op]) open(t, s, false);
    }
    for (std::size_t t = 0; t < step.tensors(); ++t) {
      if (!step.keep[t]) continue;
      at(current_[t]).end = steps;
    }
  }

  Instance& at(Index i) { return list[static_cast<std::size_t>(i)]; }
  const Instance& at(Index i) const { return list[static_cast<std::size_t>(i)]; }

  std::vector<Instance> list;
  std::vector<Index> reads;  // instances read, step after step, in the op's order
  std::vector<Index> first;  // by step: where its reads start in `reads`
  std::vector<Index> made;   // by step: its first output's instance

 private:
  void open(Index tensor, Index begin, bool state) {
    current_[static_cast<std::size_t>(tensor)] = static_cast<Index>(list.size());
    list.push_back({tensor, begin, begin, -1, -1, state});
  }
  std::vector<Index> current_;
};

// How freely buffers are taken over.
enum class InPlace : std::int32_t {
  kState = 0,  // only by the update of a persistent tensor
  kEqual = 1,  // and by outputs of the same rounded size
  kAny = 2,    // and by smaller outputs, in the whole buffer of the input
};

// Lets outputs take over the buffers of inputs: declared pairs only, the input's last
// reader only, each buffer once. A persistent tensor is taken over only by an op of
// the update phase, and then the output lives on in its buffer.
inline void grant_in_place(const Step& step,
                           const Sequence& sequence,
                           InPlace rule,
                           Lives& lives) {
  for (std::size_t s = 0; s < sequence.size(); ++s) {
    const Index op = sequence[s];
    const auto inputs = step.inputs[op];
    const auto pairs = step.pairs[op];
    for (const Index* pair = pairs.first; pair != pairs.last; pair += 2) {
      const auto place =
          std::find(inputs.begin(), inputs.end(), pair[0]) - inputs.begin();
      const auto read = static_cast<std::size_t>(lives.first[s] + place);
      const auto outputs = step.outputs[op];
      const auto out = std::find(outputs.begin(), outputs.end(), pair[1]);
      Instance& from = lives.at(lives.reads[read]);
      const Index to = lives.made[s] + static_cast<Index>(out - outputs.begin());
      if (from.end != static_cast<Index>(s) || from.taker >= 0) continue;
      if (lives.at(to).source >= 0) continue;
      if (from.state && step.phase[static_cast<std::size_t>(op)] != Phase::kUpdate)
        continue;
      if (!from.state && rule == InPlace::kState) continue;
      const Extent had = step.bytes[static_cast<std::size_t>(pair[0])];
      const Extent wanted = step.bytes[static_cast<std::size_t>(pair[1])];
      if (wanted > had || (wanted < had && !from.state && rule != InPlace::kAny))
        continue;
      from.taker = to;
      lives.at(to).source = lives.reads[read];
      lives.at(to).state = from.state;
    }
  }
}

// BufferTable to be placed; buffers of persistent tensors are not among them. In time,
// the start is 0, step s is s + 1, and the end, when only what is kept remains, is
// steps + 1. Scratch buffers come last, in order of execution.
struct BufferTable {
  packing::Buffers buffers;
  std::vector<Index> buffer;  // by instance: its buffer, or -1: a state's buffer
  std::vector<Index> scratch_buffer;  // by step: its buffer, or -1
  Extent base = 0;                    // bytes of the persistent tensors
};

inline BufferTable make_buffers(const Step& step,
                                const Sequence& sequence,
                                const Lives& lives) {
  BufferTable table;
  const auto steps = static_cast<Index>(sequence.size());
  table.buffer.assign(lives.list.size(), -1);
  for (std::size_t i = 0; i < lives.list.size(); ++i) {
    const Instance& life = lives.list[i];
    const Extent size = step.bytes[static_cast<std::size_t>(life.tensor)];
    if (life.state) {
      if (life.begin < 0) table.base += size;
    } else if (life.source < 0) {
      table.buffer[i] = static_cast<Index>(table.buffers.size());
      table.buffers.push_back({life.begin + 1, life.end + 2, size});
    } else {  // sources come before their takers
      table.buffer[i] = table.buffer[static_cast<std::size_t>(life.source)];
      table.buffers[static_cast<std::size_t>(table.buffer[i])].upper = life.end + 2;
    }
  }
  table.scratch_buffer.assign(sequence.size(), -1);
  for (Index s = 0; s < steps; ++s) {
    const auto op = static_cast<std::size_t>(sequence[static_cast<std::size_t>(s)]);
    if (step.scratch[op] == 0) continue;
    table.scratch_buffer[static_cast<std::size_t>(s)] =
        static_cast<Index>(table.buffers.size());
    table.buffers.push_back({s + 1, s + 2, step.scratch[op]});
  }
  return table;
}

// Bytes in use by time (0 ... steps + 1), persistent tensors included.
inline std::vector<Extent> load_by_time(const BufferTable& table, std::size_t steps) {
  std::vector<Extent> load(steps + 3, 0);
  load[0] = table.base;
  for (const packing::Buffer& b : table.buffers) {
    load[static_cast<std::size_t>(b.lower)] += b.size;
    load[static_cast<std::size_t>(b.upper)] -= b.size;
  }
  for (std::size_t time = 1; time < load.size(); ++time) load[time] += load[time - 1];
  load.pop_back();
  return load;
}

}  // namespace memcfg::liveness
