// Random training steps of a few ops, as arrays of numbers.
#pragma once

#include <algorithm>
#include <random>
#include <vector>

#include "memcfg/liveness.hpp"

namespace memcfg::testing {

using liveness::Index;
using liveness::Phase;
using liveness::Step;
using Random = std::mt19937;

inline Index draw(Random& random, Index bound) {
  return static_cast<Index>(random() % static_cast<unsigned>(bound));
}

inline Index add_tensor(Step& step, Random& random, Index producer, bool persistent) {
  step.bytes.push_back(64 * (1 + draw(random, 3)));
  step.persistent.push_back(persistent);
  step.keep.push_back(0);
  step.producer.push_back(producer);
  return static_cast<Index>(step.tensors()) - 1;
}

inline void add_op(Step& step,
                   Phase phase,
                   const std::vector<Index>& inputs,
                   const std::vector<Index>& outputs,
                   const std::vector<Index>& pairs,
                   bool repeatable) {
  step.inputs.add(inputs);
  step.outputs.add(outputs);
  step.pairs.add(pairs);
  step.scratch.push_back(0);
  step.phase.push_back(phase);
  step.cost.push_back(1.0 + static_cast<double>(step.ops() % 3));
  step.droppable.push_back(repeatable);
  step.repeatable.push_back(repeatable);
}

// Forward and backward ops that read recent values, a weight each, and its update.
inline Step random_step(Random& random, Index ops) {
  Step step;
  std::vector<Index> values{add_tensor(step, random, -1, false)}, weights;
  for (Index op = 0; op < ops; ++op) {
    const Phase phase = 2 * op < ops ? Phase::kForward : Phase::kBackward;
    std::vector<Index> inputs;
    const auto count = static_cast<Index>(values.size());
    for (Index k = 1 + draw(random, 2); k > 0; --k)
      inputs.push_back(values[static_cast<std::size_t>(
          count - 1 - draw(random, std::min(count, 6)))]);
    if (draw(random, 3) == 0) {
      weights.push_back(add_tensor(step, random, -1, true));
      inputs.push_back(weights.back());
    }
    std::vector<Index> outputs{add_tensor(step, random, op, false)};
    if (draw(random, 4) == 0) outputs.push_back(add_tensor(step, random, op, false));
    std::vector<Index> pairs;
    if (draw(random, 2) == 0) pairs = {inputs[0], outputs[0]};
    values.insert(values.end(), outputs.begin(), outputs.end());
    add_op(step, phase, inputs, outputs, pairs, op + 1 < ops && draw(random, 8) > 0);
  }
  step.keep[static_cast<std::size_t>(values.back())] = 1;
  for (const Index weight : weights) {
    const auto op = static_cast<Index>(step.ops());
    const Index renewed = add_tensor(step, random, op, false);
    step.bytes.back() = step.bytes[static_cast<std::size_t>(weight)];
    step.keep.back() = 1;
    add_op(step,
           Phase::kUpdate,
           {weight, values.back()},
           {renewed},
           {weight, renewed},
           false);
  }
  return step;
}

}  // namespace memcfg::testing
