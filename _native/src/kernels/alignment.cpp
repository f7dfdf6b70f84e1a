// ctc_loss and its gradient: sums over all alignments of labels with steps; and
// ctc_beam_search: the best label sequences. One thread computes a sample, in double,
// so that bits do not depend on the threads.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Index = std::int32_t;

constexpr double kNone = -std::numeric_limits<double>::infinity();
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

Bytes index_bytes(Count count) {
  return static_cast<Bytes>(count) * sizeof(Index);
}

// log(exp(a) + exp(b)).
double add_logs(double a, double b) {
  const double most = a > b || a != a ? a : b;
  if (most == kNone) return kNone;
  return most + std::log1p(std::exp((a > b ? b : a) - most));
}

// What to subtract from logits to have logarithms of probabilities.
double shift_of(const float* x, Count classes) {
  double most = kNone, total = 0;
  for (Count i = 0; i < classes; ++i) most = std::max(most, double{x[i]});
  for (Count i = 0; i < classes; ++i) total += std::exp(x[i] - most);
  return most + std::log(total);
}

// The shapes that all of these ops have.
struct Batch {
  Batch(const SpecReader& reader, const OperandSpec& logits)
      : samples(reader.shape(logits, 3)[0]),
        steps(logits.shape[1]),
        classes(logits.shape[2]),
        blank(reader.integer("blank", 0)) {
    if (blank >= classes) reader.fail("has no class for blanks");
  }
  Count size() const { return samples * steps * classes; }

  Count samples, steps, classes, blank;
};

// The labels of a sample and the sums over their states, of which 2i + 1 is label i.
class Lattice {
 public:
  Lattice(
      const Batch& of, const float* x, const Index* labels, Count count, Count steps)
      : of_(of), x_(x), labels_(labels), states_(2 * count + 1), steps_(steps) {}

  Count states() const { return states_; }
  Count class_of(Count state) const {
    return state % 2 == 0 ? of_.blank : labels_[state / 2];
  }
  // Whether the blank before a state may be left out.
  bool skips(Count state) const {
    return state % 2 == 1 && state > 1 && labels_[state / 2] != labels_[state / 2 - 1];
  }
  double log_of(Count step, Count state, double shift) const {
    return x_[step * of_.classes + class_of(state)] - shift;
  }
  double shift(Count step) const {
    return shift_of(x_ + step * of_.classes, of_.classes);
  }
  // Turns the sums before a step into those after it, in place.
  void advance(Count step, double shift, double* row) const {
    for (Count s = states_ - 1; s >= 0; --s) {
      double sum = row[s];
      if (step == 0) {
        sum = s == 0 ? 0 : s == 1 ? 0 : kNone;
      } else {
        if (s > 0) sum = add_logs(sum, row[s - 1]);
        if (skips(s)) sum = add_logs(sum, row[s - 2]);
      }
      row[s] = sum + log_of(step, s, shift);
    }
  }
  // The logarithm of the probability of the labels, of the sums after all steps.
  double total(const double* row) const {
    if (steps_ == 0) return states_ == 1 ? 0 : kNone;
    const double last = row[states_ - 1];
    return states_ == 1 ? last : add_logs(last, row[states_ - 2]);
  }

 private:
  const Batch& of_;
  const float* x_;
  const Index* labels_;
  Count states_, steps_;
};

// The operands of a loss: of each sample, its labels and lengths.
struct Losses {
  Losses(const SpecReader& reader, const KernelSpec& spec)
      : batch(reader, spec.inputs[0]), width(reader.shape(spec.inputs[1], 2)[1]) {
    if (spec.inputs[1].shape[0] != batch.samples) reader.fail("needs labels of each");
    for (const int place : {2, 3}) {
      if (reader.shape(spec.inputs[place], 1)[0] != batch.samples) {
        reader.fail("needs lengths of each sample");
      }
    }
  }
  Count states() const { return 2 * width + 1; }
  Count work() const {
    return batch.samples * batch.steps * (batch.classes + 9 * width);
  }
  bool is_known(const Index* labels, Count count, Count steps) const {
    if (count < 0 || count > width || steps < 0 || steps > batch.steps) return false;
    return std::all_of(labels, labels + count, [this](Index label) {
      return label >= 0 && label < batch.classes;
    });
  }

  Batch batch;
  Count width;
};

KernelPtr make_ctc_loss(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32, kInt32, kInt32}, {kFloat32});
  const Losses of(reader, spec);
  const Count samples = of.batch.samples, states = of.states();
  const Kernel::Sizes sizes{{float_bytes(of.batch.size()),
                             index_bytes(samples * of.width),
                             index_bytes(samples),
                             index_bytes(samples)},
                            {float_bytes(samples)}};
  const Bytes scratch_bytes = 2 * float_bytes(reader.product({samples, states}));
  return function_kernel(
      sizes, scratch_bytes, [=](void* const* operands, void* scratch) {
        parallel_for(samples, of.work(), [=](Count n) {
          const Index* labels = static_cast<const Index*>(operands[1]) + n * of.width;
          const Count count = static_cast<const Index*>(operands[2])[n];
          const Count steps = static_cast<const Index*>(operands[3])[n];
          float* loss = output(operands, 4) + n;
          if (!of.is_known(labels, count, steps)) {
            *loss = static_cast<float>(kUnknown);
            return;
          }
          const float* x = input(operands, 0) + n * of.batch.steps * of.batch.classes;
          const Lattice lattice(of.batch, x, labels, count, steps);
          double* row = static_cast<double*>(scratch) + n * states;
          for (Count step = 0; step < steps; ++step) {
            lattice.advance(step, lattice.shift(step), row);
          }
          *loss = static_cast<float>(-lattice.total(row));
        });
      });
}

// The scratch of a sample's gradient: the sums of one step and those after each step.
struct Sums {
  Sums(void* scratch, Count sample, Count steps, Count most_states, Count states)
      : row(static_cast<double*>(scratch) + sample * count(steps, most_states)),
        shifts(row + most_states),
        all(shifts + steps),
        states(states) {}
  // In doubles, of one sample.
  static Count count(Count steps, Count states) {
    return states + steps + steps * states;
  }
  void keep(Count step) const { std::copy_n(row, states, all + step * states); }
  double at(Count step, Count state) const { return all[step * states + state]; }

  double *row, *shifts, *all;
  Count states;
};

// Writes dx of a step: probabilities less what the alignments have of each class.
void write_step(const Batch& of,
                const Lattice& lattice,
                const Sums& sums,
                Count step,
                double loss,
                float scale,
                const float* x,
                float* dx) {
  for (Count i = 0; i < of.classes; ++i) {
    dx[i] = static_cast<float>(std::exp(x[i] - sums.shifts[step]));
  }
  double of_blank = 0;
  for (Count s = 0; s < lattice.states(); ++s) {
    const double share = std::exp(sums.at(step, s) + sums.row[s] + loss);
    if (s % 2 == 0) {
      of_blank += share;
    } else {
      dx[lattice.class_of(s)] -= static_cast<float>(share);
    }
  }
  dx[of.blank] -= static_cast<float>(of_blank);
  for (Count i = 0; i < of.classes; ++i) dx[i] *= scale;
}

void write_gradient(const Batch& of,
                    const Lattice& lattice,
                    Count steps,
                    const Sums& sums,
                    float scale,
                    const float* x,
                    float* dx) {
  const Count states = lattice.states();
  for (Count step = 0; step < steps; ++step) {
    sums.shifts[step] = lattice.shift(step);
    lattice.advance(step, sums.shifts[step], sums.row);
    sums.keep(step);
  }
  const double loss = -lattice.total(sums.row);
  if (!std::isfinite(loss)) {
    std::fill_n(dx, steps * of.classes, static_cast<float>(kUnknown));
    return;
  }
  double* row = sums.row;  // from here on, of what comes after a step
  for (Count s = 0; s < states; ++s) row[s] = s + 2 < states ? kNone : 0;
  for (Count step = steps - 1; step >= 0; --step) {
    const Count at = step * of.classes;
    write_step(of, lattice, sums, step, loss, scale, x + at, dx + at);
    for (Count s = 0; s < states; ++s)
      row[s] += lattice.log_of(step, s, sums.shifts[step]);
    for (Count s = 0; s < states; ++s) {
      if (s + 1 < states) row[s] = add_logs(row[s], row[s + 1]);
      if (s + 2 < states && lattice.skips(s + 2)) row[s] = add_logs(row[s], row[s + 2]);
    }
  }
}

KernelPtr make_ctc_gradient(const KernelSpec& spec) {
  const SpecReader reader(
      spec, {kFloat32, kInt32, kInt32, kInt32, kFloat32}, {kFloat32});
  const Losses of(reader, spec);
  const Batch& batch = of.batch;
  const Count samples = batch.samples, states = of.states(),
              each = Sums::count(batch.steps, states);
  if (reader.shape(spec.inputs[4], 1)[0] != samples) reader.fail("needs dy of each");
  const Kernel::Sizes sizes{{float_bytes(batch.size()),
                             index_bytes(samples * of.width),
                             index_bytes(samples),
                             index_bytes(samples),
                             float_bytes(samples)},
                            {float_bytes(batch.size())}};
  const Bytes scratch_bytes = 2 * float_bytes(reader.product({samples, each}));
  return function_kernel(
      sizes, scratch_bytes, [=](void* const* operands, void* scratch) {
        parallel_for(samples, 3 * of.work(), [=](Count n) {
          const Index* labels = static_cast<const Index*>(operands[1]) + n * of.width;
          const Count count = static_cast<const Index*>(operands[2])[n];
          const Count steps = static_cast<const Index*>(operands[3])[n];
          const Count row = of.batch.steps * of.batch.classes;
          const float* x = input(operands, 0) + n * row;
          float* dx = output(operands, 5) + n * row;
          if (!of.is_known(labels, count, steps)) {
            std::fill_n(dx, row, static_cast<float>(kUnknown));
            return;
          }
          const Lattice lattice(of.batch, x, labels, count, steps);
          const float scale = input(operands, 4)[n];
          const Sums sums(scratch, n, of.batch.steps, states, lattice.states());
          write_gradient(of.batch, lattice, steps, sums, scale, x, dx);
          std::fill(dx + steps * of.batch.classes, dx + row, 0.0F);
        });
      });
}

// A beginning of label sequences: a node of a tree, whose root has no label.
struct Node {
  Index parent, label, child, sibling;
  Index beam;  // which one it is now, or -1
};

// A node with the probabilities of alignments that end with a blank and with its label.
struct Beam {
  Index node;
  double of_blank, of_label;
  double total() const { return add_logs(of_blank, of_label); }
};

// What may become a beam: an old one that stays (no label), or one with a label more.
struct Candidate {
  Index beam, label;
  double total, of_blank, of_label;
};

// The search of one sample. The best come first; of equal ones, those found first.
class Search {
 public:
  Search(const Batch& of, Count width, std::byte* scratch)
      : of_(of),
        width_(width),
        beams_(reinterpret_cast<Beam*>(scratch)),
        found_(reinterpret_cast<Candidate*>(beams_ + width)),
        nodes_(reinterpret_cast<Node*>(found_ + width + 1)) {
    nodes_[0] = {-1, -1, -1, -1, 0};
    beams_[0] = {0, 0, kNone};
  }
  static Bytes bytes(Count steps, Count width) {
    const Count nodes = 1 + steps * width;
    const Bytes all = static_cast<Bytes>(width) * (sizeof(Beam) + sizeof(Candidate)) +
                      sizeof(Candidate) + static_cast<Bytes>(nodes) * sizeof(Node);
    return (all + 63) / 64 * 64;
  }

  void run(const float* x, Count steps) {
    for (Count step = 0; step < steps; ++step) {
      advance(x + step * of_.classes, shift_of(x + step * of_.classes, of_.classes));
    }
  }
  // Writes the labels of a beam and returns the logarithm of its probability.
  double write(Count place, Count steps, Index* path) const {
    std::fill_n(path, steps, -1);
    if (place >= beam_count_) return kNone;
    Count length = 0;
    for (Index node = beams_[place].node; node > 0; node = nodes_[node].parent)
      ++length;
    for (Index node = beams_[place].node; node > 0; node = nodes_[node].parent) {
      path[--length] = nodes_[node].label;
    }
    return beams_[place].total();
  }

 private:
  Index find(Index node, Index label) const {
    Index child = nodes_[node].child;
    while (child >= 0 && nodes_[child].label != label) child = nodes_[child].sibling;
    return child;
  }
  // What a beam becomes with one label more.
  double longer(const Beam& beam, Index label, double value) const {
    return value + (nodes_[beam.node].label == label ? beam.of_blank : beam.total());
  }
  void offer(const Candidate& one) {
    if (one.total == kNone) return;
    Count place = found_count_;
    if (place == width_ && !(one.total > found_[place - 1].total)) return;
    while (place > 0 && one.total > found_[place - 1].total) {
      found_[place] = found_[place - 1];
      --place;
    }
    found_[place] = one;
    found_count_ = std::min(found_count_ + 1, width_);
  }
  void advance(const float* x, double shift) {
    found_count_ = 0;
    for (Index b = 0; b < beam_count_; ++b) offer_old(b, x, shift);
    for (Index b = 0; b < beam_count_; ++b) {
      for (Index label = 0; label < of_.classes; ++label) {
        if (label == of_.blank) continue;
        const Index child = find(beams_[b].node, label);
        if (child >= 0 && nodes_[child].beam >= 0) continue;  // an old one
        const double value = longer(beams_[b], label, x[label] - shift);
        offer({b, label, value, kNone, value});
      }
    }
    take_found();
  }
  void offer_old(Index b, const float* x, double shift) {
    const Beam& beam = beams_[b];
    const Node& node = nodes_[beam.node];
    const double of_blank = beam.total() + x[of_.blank] - shift;
    double of_label = kNone;
    if (node.label >= 0) {
      const double value = x[node.label] - shift;
      of_label = beam.of_label + value;
      const Index before = nodes_[node.parent].beam;
      if (before >= 0) {
        of_label = add_logs(of_label, longer(beams_[before], node.label, value));
      }
    }
    offer({b, -1, add_logs(of_blank, of_label), of_blank, of_label});
  }
  // Makes beams of what was found; nodes are made here alone.
  void take_found() {
    for (Index i = 0; i < found_count_; ++i) {
      Candidate& one = found_[i];
      Index node = beams_[one.beam].node;
      if (one.label >= 0) {
        const Index known = find(node, one.label);
        if (known < 0) {
          nodes_[node_count_] = {node, one.label, -1, nodes_[node].child, -1};
          nodes_[node].child = static_cast<Index>(node_count_);
          node = static_cast<Index>(node_count_++);
        } else {
          node = known;
        }
      }
      one.label = node;  // from here on
    }
    for (Index b = 0; b < beam_count_; ++b) nodes_[beams_[b].node].beam = -1;
    for (Index i = 0; i < found_count_; ++i) {
      const Candidate& one = found_[i];
      beams_[i] = {one.label, one.of_blank, one.of_label};
      nodes_[one.label].beam = i;
    }
    beam_count_ = found_count_;
  }

  const Batch& of_;
  Count width_, beam_count_ = 1, found_count_ = 0, node_count_ = 1;
  Beam* beams_;
  Candidate* found_;
  Node* nodes_;
};

KernelPtr make_beam_search(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kInt32}, {kInt32, kFloat32});
  const Batch of(reader, spec.inputs[0]);
  const Count width = reader.integer("beam_width", 1);
  const Count top = reader.integer("top_paths", 1);
  const Count most = std::numeric_limits<Index>::max();
  if (top > width) reader.fail("has more paths than beams");
  if (of.classes > most || reader.product({of.steps, width}) >= most) {
    reader.fail("has too many beams");
  }
  const Kernel::Sizes sizes{
      {float_bytes(of.size()), index_bytes(of.samples)},
      {index_bytes(of.samples * top * of.steps), float_bytes(of.samples * top)}};
  const Bytes each = Search::bytes(of.steps, width);
  const Bytes scratch_bytes = static_cast<Bytes>(of.samples) * each;
  return function_kernel(
      sizes, scratch_bytes, [=](void* const* operands, void* scratch) {
        parallel_for(of.samples, of.size() * width, [=](Count n) {
          const Count steps = static_cast<const Index*>(operands[1])[n];
          const bool known = steps >= 0 && steps <= of.steps;
          Search search(of, width, static_cast<std::byte*>(scratch) + n * each);
          search.run(input(operands, 0) + n * of.steps * of.classes, known ? steps : 0);
          for (Count i = n * top; i < (n + 1) * top; ++i) {
            Index* path = static_cast<Index*>(operands[2]) + i * of.steps;
            const double score = search.write(i - n * top, of.steps, path);
            output(operands, 3)[i] = static_cast<float>(known ? score : kUnknown);
          }
        });
      });
}

const KernelType kCtcLoss{"ctc_loss", make_ctc_loss};
const KernelType kCtcLossGradient{"ctc_loss_gradient", make_ctc_gradient};
const KernelType kCtcBeamSearch{"ctc_beam_search", make_beam_search};

}  // namespace
}  // namespace memcfg
