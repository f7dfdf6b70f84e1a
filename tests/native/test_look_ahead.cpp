#include <cstdint>
#include <random>
#include <vector>

#include "check.hpp"
#include "memcfg/look_ahead.hpp"

using memcfg::liveness::Index;
using memcfg::liveness::Phase;
using memcfg::liveness::Sequence;
using memcfg::liveness::Step;
using memcfg::look_ahead::Measure;
using memcfg::packing::Extent;
using memcfg::schedule::find_fault;
using memcfg::schedule::score;

namespace {

using Random = std::mt19937;

Index draw(Random& random, Index bound) {
  return static_cast<Index>(random() % static_cast<unsigned>(bound));
}

Index add_tensor(Step& step, Random& random, Index producer, bool persistent) {
  step.bytes.push_back(64 * (1 + draw(random, 3)));
  step.persistent.push_back(persistent);
  step.keep.push_back(0);
  step.producer.push_back(producer);
  return static_cast<Index>(step.tensors()) - 1;
}

void add_op(Step& step,
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
Step random_step(Random& random, Index ops) {
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

Sequence given(const Step& step) {
  Sequence sequence;
  for (std::size_t op = 0; op < step.ops(); ++op)
    sequence.push_back(static_cast<Index>(op));
  return sequence;
}

}  // namespace

TEST(a_measure_says_what_the_score_and_the_faults_say) {
  Random random(1);
  int legal = 0, wrong = 0;
  for (int round = 0; round < 300; ++round) {
    const Step step = random_step(random, 2 + draw(random, 20));
    Measure measure(step);
    for (int change = 0; change < 20; ++change) {
      Sequence sequence = given(step);
      for (Index k = draw(random, 6); k > 0; --k) {
        const auto place = draw(random, static_cast<Index>(sequence.size()) + 1);
        sequence.insert(sequence.begin() + place,
                        draw(random, static_cast<Index>(step.ops())));
      }
      if (draw(random, 8) == 0)
        sequence.erase(sequence.begin() +
                       draw(random, static_cast<Index>(sequence.size())));
      const bool right = find_fault(step, sequence).op < 0;
      CHECK(measure.run(sequence) == right);
      ++(right ? legal : wrong);
      if (!right) continue;
      const auto found = score(step, sequence);
      CHECK(measure.peak == found.load);
      CHECK(measure.cost == found.cost);
      CHECK(measure.replayed == found.replayed);
    }
  }
  CHECK(legal > 1000 && wrong > 1000);
}

TEST(a_descent_and_a_search_give_schedules_within_their_limits) {
  Random random(2);
  int lower = 0;
  for (int round = 0; round < 40; ++round) {
    const Step step = random_step(random, 20 + draw(random, 30));
    const auto rungs = memcfg::look_ahead::descend(step, given(step), 0, 50000);
    Extent above = score(step, rungs.front()).load + 1;
    for (const Sequence& rung : rungs) {
      CHECK(find_fault(step, rung).op < 0);
      CHECK(score(step, rung).load < above);
      above = score(step, rung).load;
    }
    lower += rungs.size() > 1;
    const auto found =
        memcfg::look_ahead::within(step, {rungs.front(), rungs.back()}, above, 50000);
    CHECK(find_fault(step, found).op < 0);
    CHECK(score(step, found).load <= above);
    CHECK(score(step, found).cost <= score(step, rungs.back()).cost);
  }
  CHECK(lower > 10);
}
