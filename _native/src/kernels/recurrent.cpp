// lstm, gru, simple_rnn and their gradients: a whole sequence in one kernel.
//
// The products with the input's kernel come in as z[batch, steps, width]; a step is one
// product with the recurrent kernel on oneDNN, and then a pass over rows. Backward goes
// from the last step to the first, on a copy of the recurrent kernel that is transposed
// once (oneDNN would do so in every product, which then took ten times as long with two
// threads), and takes the gradient of that kernel as one product at the end. Gates have
// Keras's order: i, f, c, o and z, r, h.
//
// A step whose mask is 0 keeps the state; `carry` is what a state's gradient hands to
// the step before beside the product.
#include <array>
#include <cstring>

#include "kernels/functions.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Count kCost = 32;  // an element of a step in elements of a plain loop

// One sample's operands of a step.
struct Forward {
  const float *z, *product, *bias, *h_before, *c_before;
  float *h, *c, *kept;
};
struct Backward {
  const float *kept, *h, *h_before, *c, *c_before, *dh_given, *dc_given, *dh;
  float *carry, *dc, *dz, *dproduct;
};

struct Lstm {
  static constexpr Count kWidth = 4, kKept = 4;  // in units
  static constexpr bool kCells = true, kBias = false;

  MEMCFG_VECTORIZED static void forward(const Forward& s, Count n) {
    const float *z = s.z, *product = s.product, *before = s.c_before;
    float *gates = s.kept, *c = s.c, *h = s.h;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < 2 * n; ++j) gates[j] = sigmoid_of(z[j] + product[j]);
    MEMCFG_INDEPENDENT
    for (Count j = 2 * n; j < 3 * n; ++j) gates[j] = tanh_of(z[j] + product[j]);
    MEMCFG_INDEPENDENT
    for (Count j = 3 * n; j < 4 * n; ++j) gates[j] = sigmoid_of(z[j] + product[j]);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) {
      c[j] = gates[n + j] * before[j] + gates[j] * gates[2 * n + j];
      h[j] = gates[3 * n + j] * tanh_of(c[j]);
    }
  }

  MEMCFG_VECTORIZED static void backward(const Backward& s, Count n) {
    const float *gates = s.kept, *c = s.c, *before = s.c_before;
    const float *given = s.dh_given, *dh = s.dh;
    float *carry = s.carry, *dc = s.dc, *dz = s.dz;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) {
      const float i = gates[j], f = gates[n + j], g = gates[2 * n + j],
                  o = gates[3 * n + j];
      const float slope = dh[j] + carry[j] + given[j], squashed = tanh_of(c[j]);
      const float dcell = dc[j] + slope * o * (1.0F - squashed * squashed);
      carry[j] = 0.0F;
      dc[j] = dcell * f;
      dz[j] = dcell * g * (i * (1.0F - i));
      dz[n + j] = dcell * before[j] * (f * (1.0F - f));
      dz[2 * n + j] = dcell * i * (1.0F - g * g);
      dz[3 * n + j] = slope * squashed * (o * (1.0F - o));
    }
  }
};

struct Gru {
  static constexpr Count kWidth = 3, kKept = 4;
  static constexpr bool kCells = false, kBias = true;

  MEMCFG_VECTORIZED static void forward(const Forward& s, Count n) {
    const float *z = s.z, *product = s.product, *bias = s.bias, *before = s.h_before;
    float *kept = s.kept, *h = s.h;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < 2 * n; ++j) {
      kept[j] = sigmoid_of(z[j] + (product[j] + bias[j]));
    }
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) {
      const float recurrent = product[2 * n + j] + bias[2 * n + j];
      const float candidate = tanh_of(z[2 * n + j] + kept[n + j] * recurrent);
      kept[2 * n + j] = candidate;
      kept[3 * n + j] = recurrent;
      h[j] = kept[j] * before[j] + (1.0F - kept[j]) * candidate;
    }
  }

  MEMCFG_VECTORIZED static void backward(const Backward& s, Count n) {
    const float *kept = s.kept, *before = s.h_before, *given = s.dh_given, *dh = s.dh;
    float *carry = s.carry, *dz = s.dz, *dproduct = s.dproduct;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) {
      const float z = kept[j], r = kept[n + j], candidate = kept[2 * n + j];
      const float slope = dh[j] + carry[j] + given[j];
      const float inner = slope * (1.0F - z) * (1.0F - candidate * candidate);
      const float update = slope * (before[j] - candidate) * (z * (1.0F - z));
      const float reset = inner * kept[3 * n + j] * (r * (1.0F - r));
      carry[j] = slope * z;
      dz[j] = dproduct[j] = update;
      dz[n + j] = dproduct[n + j] = reset;
      dz[2 * n + j] = inner;
      dproduct[2 * n + j] = inner * r;
    }
  }
};

struct SimpleRnn {
  static constexpr Count kWidth = 1, kKept = 0;
  static constexpr bool kCells = false, kBias = false;

  MEMCFG_VECTORIZED static void forward(const Forward& s, Count n) {
    const float *z = s.z, *product = s.product;
    float* h = s.h;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) h[j] = tanh_of(z[j] + product[j]);
  }

  MEMCFG_VECTORIZED static void backward(const Backward& s, Count n) {
    const float *h = s.h, *given = s.dh_given, *dh = s.dh;
    float *carry = s.carry, *dz = s.dz;
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < n; ++j) {
      dz[j] = (dh[j] + carry[j] + given[j]) * (1.0F - h[j] * h[j]);
      carry[j] = 0.0F;
    }
  }
};

// A step that the mask leaves out.
void skip(const Forward& s, Count n, Count kept) {
  std::copy_n(s.h_before, n, s.h);
  if (s.c != nullptr) std::copy_n(s.c_before, n, s.c);
  if (s.kept != nullptr) std::fill_n(s.kept, kept, 0.0F);
}
void skip(const Backward& s, Count n, Count width) {
  for (Count j = 0; j < n; ++j) s.carry[j] += s.dh[j] + s.dh_given[j];
  std::fill_n(s.dz, width, 0.0F);
  if (s.dproduct != nullptr) std::fill_n(s.dproduct, width, 0.0F);
}

bool flag(const SpecReader& reader, const char* name) {
  return reader.has(name) && reader.integer(name, 0) != 0;
}

// What both directions know of an op.
struct Extents {
  Dim batch, steps, units, width;
  bool masked;

  Extents(const SpecReader& reader,
          const OperandSpec& sequences,
          Dim gates,
          const OperandSpec& kernel)
      : masked(flag(reader, "masked")) {
    const auto& shape = reader.shape(sequences, 3);
    const auto& square = reader.shape(kernel, 2);
    batch = reader.narrow(shape[0], "batch");
    steps = reader.narrow(shape[1], "steps");
    units = reader.narrow(square[0], "units");
    width = gates * units;
    if (square[1] != width) reader.fail("has a recurrent kernel of another width");
    reader.product({batch, steps, 4 * units, 64});
  }
  Bytes of(Dim channels) const { return float_bytes(batch * steps * channels); }
  Bytes state() const { return float_bytes(batch * units); }
  Bytes kernel() const { return float_bytes(units * width); }
  Bytes mask() const { return float_bytes(batch * steps); }
};

// Runs a product on any three arrays.
void run_product(const Product& product,
                 const float* left,
                 const float* right,
                 float* result,
                 void* scratch,
                 Kernel::RunState* state) {
  std::array<void*, 3> operands{
      const_cast<float*>(left), const_cast<float*>(right), result};
  product.run(operands.data(), scratch, state);
}

struct ProductStates final : Kernel::RunState {
  std::vector<std::unique_ptr<Kernel::RunState>> each;
  Arguments copy;
};

// A kernel of a few products, a copy into another layout and buffers in scratch.
class Recurrent : public Kernel {
 public:
  Recurrent(const Sizes& sizes, const Extents& extents)
      : Kernel(sizes), extents_(extents) {}
  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    Bytes most = copy_ ? copy_->scratch_bytes() : 0;
    for (const auto& product : products_) {
      most = std::max(most, product->scratch_bytes());
    }
    return used_ + most;
  }
  std::unique_ptr<RunState> make_run_state() const override {
    auto states = std::make_unique<ProductStates>();
    for (const auto& product : products_) {
      states->each.push_back(product->make_run_state());
    }
    if (copy_) states->copy = copy_->make_arguments();
    return states;
  }

 protected:
  void add_product(const OneDnn& library, const Matrix& left, const Matrix& right) {
    products_.push_back(std::make_unique<Product>(library, Sizes{}, left, right, 0, 1));
  }
  void add_copy(const OneDnn& library, const Matrix& from, const Matrix& to) {
    const auto source = describe(library, from), target = describe(library, to);
    copy_.emplace(reorder(library, source.get(), target.get()));
  }
  // A buffer in scratch: where it begins.
  Bytes reserve(Bytes bytes) {
    const Bytes place = used_;
    used_ += align_up(bytes);
    return place;
  }
  float* buffer(void* scratch, Bytes place) const {
    return reinterpret_cast<float*>(static_cast<char*>(scratch) + place);
  }
  void multiply(std::size_t index,
                const float* left,
                const float* right,
                float* result,
                void* scratch,
                RunState* state) const {
    run_product(*products_[index],
                left,
                right,
                result,
                static_cast<char*>(scratch) + used_,
                static_cast<ProductStates*>(state)->each[index].get());
  }
  void copy(const float* from, float* to, void* scratch, RunState* state) const {
    copy_->run({const_cast<float*>(from), to},
               static_cast<char*>(scratch) + used_,
               static_cast<ProductStates*>(state)->copy);
  }

  Extents extents_;

 private:
  std::vector<std::unique_ptr<Product>> products_;
  std::optional<Call> copy_;
  Bytes used_ = 0;
};

// (z, kernel, [bias], h0, [c0], [mask]) -> (h, [c], [kept])
template <class Cell>
class RecurrentForward final : public Recurrent {
 public:
  RecurrentForward(const OneDnn& library, const Extents& e)
      : Recurrent(sizes(e), e), product_(reserve(float_bytes(e.batch * e.width))) {
    const Matrix kernel{e.units, e.width, e.width, 1};
    add_product(library, {e.batch, e.units, e.units, 1}, kernel);
    add_product(library, {e.batch, e.units, e.steps * e.units, 1}, kernel);
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    const Extents& e = extents_;
    int next = 0;
    const float* z = input(operands, next++);
    const float* kernel = input(operands, next++);
    const float* bias = Cell::kBias ? input(operands, next++) : nullptr;
    const float* h0 = input(operands, next++);
    const float* c0 = Cell::kCells ? input(operands, next++) : nullptr;
    const float* mask = e.masked ? input(operands, next++) : nullptr;
    float* h = output(operands, next++);
    float* c = Cell::kCells ? output(operands, next++) : nullptr;
    float* kept = Cell::kKept != 0 ? output(operands, next++) : nullptr;
    float* product = buffer(scratch, product_);
    const Dim n = e.units, T = e.steps;
    for (Dim t = 0; t < T; ++t) {
      const float* before = t == 0 ? h0 : h + (t - 1) * n;
      multiply(t == 0 ? 0 : 1, before, kernel, product, scratch, state);
      parallel_for(e.batch, e.batch * e.width * kCost, [=](Count b) {
        const Count row = b * T + t;
        const bool first = t == 0;
        Forward s{z + row * e.width,
                  product + b * e.width,
                  bias,
                  first ? h0 + b * n : h + (row - 1) * n,
                  nullptr,
                  h + row * n,
                  nullptr,
                  nullptr};
        if constexpr (Cell::kCells) {
          s.c_before = first ? c0 + b * n : c + (row - 1) * n;
          s.c = c + row * n;
        }
        if constexpr (Cell::kKept != 0) s.kept = kept + row * Cell::kKept * n;
        if (mask != nullptr && mask[row] == 0.0F) {
          skip(s, n, Cell::kKept * n);
        } else {
          Cell::forward(s, n);
        }
      });
    }
  }

 private:
  static Sizes sizes(const Extents& e) {
    Sizes all{{e.of(e.width), e.kernel()}, {e.of(e.units)}};
    if (Cell::kBias) all.inputs.push_back(float_bytes(e.width));
    all.inputs.push_back(e.state());
    if (Cell::kCells) {
      all.inputs.push_back(e.state());
      all.outputs.push_back(e.of(e.units));
    }
    if (e.masked) all.inputs.push_back(e.mask());
    if (Cell::kKept != 0) all.outputs.push_back(e.of(Cell::kKept * e.units));
    return all;
  }

  Bytes product_;
};

// (kernel, [kept], h, [c], h0, [c0], dh, [dc], [mask])
// -> (dz, dkernel, [dbias], dh0, [dc0])
template <class Cell>
class RecurrentBackward final : public Recurrent {
 public:
  RecurrentBackward(const OneDnn& library, const Extents& e, bool cells)
      : Recurrent(sizes(e, cells), e), cells_(cells) {
    dh_ = reserve(e.state());
    carry_ = reserve(e.state());
    dc_ = Cell::kCells ? reserve(e.state()) : 0;
    before_ = reserve(e.of(e.units));
    dproduct_ = Cell::kBias ? reserve(e.of(e.width)) : 0;
    const Dim rows = e.batch * e.steps;
    const Matrix turned{e.width, e.units, e.units, 1};
    turned_ = reserve(e.kernel());
    add_copy(library, {e.width, e.units, 1, e.width}, turned);
    add_product(library, {e.batch, e.width, e.steps * e.width, 1}, turned);
    add_product(library, {e.units, rows, 1, e.units}, {rows, e.width, e.width, 1});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    const Extents& e = extents_;
    int next = 0;
    const float* kernel = input(operands, next++);
    const float* kept = Cell::kKept != 0 ? input(operands, next++) : nullptr;
    const float* h = input(operands, next++);
    const float* c = Cell::kCells ? input(operands, next++) : nullptr;
    const float* h0 = input(operands, next++);
    const float* c0 = Cell::kCells ? input(operands, next++) : nullptr;
    const float* dh_given = input(operands, next++);
    const float* dc_given = cells_ ? input(operands, next++) : nullptr;
    const float* mask = e.masked ? input(operands, next++) : nullptr;
    float* dz = output(operands, next++);
    float* dkernel = output(operands, next++);
    float* dbias = Cell::kBias ? output(operands, next++) : nullptr;
    float* dh0 = output(operands, next++);
    float* dc0 = Cell::kCells ? output(operands, next++) : nullptr;

    const Dim n = e.units, T = e.steps;
    float* dh = buffer(scratch, dh_);
    float* carry = buffer(scratch, carry_);
    float* dc = Cell::kCells ? buffer(scratch, dc_) : nullptr;
    float* before = buffer(scratch, before_);
    float* turned = buffer(scratch, turned_);
    copy(kernel, turned, scratch, state);
    float* dproduct = Cell::kBias ? buffer(scratch, dproduct_) : nullptr;
    const float* slopes = Cell::kBias ? dproduct : dz;  // of the products
    std::fill_n(dh, e.batch * n, 0.0F);
    std::fill_n(carry, e.batch * n, 0.0F);
    if (dc != nullptr) std::fill_n(dc, e.batch * n, 0.0F);
    for (Dim t = T - 1; t >= 0; --t) {
      parallel_for(e.batch, e.batch * e.width * kCost, [=](Count b) {
        const Count row = b * T + t;
        Backward s{};
        if constexpr (Cell::kKept != 0) s.kept = kept + row * Cell::kKept * n;
        s.h = h + row * n;
        s.h_before = t == 0 ? h0 + b * n : h + (row - 1) * n;
        s.dh_given = dh_given + row * n;
        s.dh = dh + b * n;
        s.carry = carry + b * n;
        s.dz = dz + row * e.width;
        if constexpr (Cell::kBias) s.dproduct = dproduct + row * e.width;
        if constexpr (Cell::kCells) {
          s.c = c + row * n;
          s.c_before = t == 0 ? c0 + b * n : c + (row - 1) * n;
          s.dc = dc + b * n;
          if (dc_given != nullptr) {
            for (Count j = 0; j < n; ++j) s.dc[j] += dc_given[row * n + j];
          }
        }
        if (mask != nullptr && mask[row] == 0.0F) {
          skip(s, n, e.width);
        } else {
          Cell::backward(s, n);
        }
      });
      multiply(0, slopes + t * e.width, turned, dh, scratch, state);
    }
    for (Count i = 0; i < e.batch * n; ++i) dh0[i] = dh[i] + carry[i];
    if constexpr (Cell::kCells) std::copy_n(dc, e.batch * n, dc0);
    parallel_for(e.batch, e.batch * T * n, [=](Count b) {
      float* rows = before + b * T * n;
      std::copy_n(h0 + b * n, n, rows);
      std::copy_n(h + b * T * n, (T - 1) * n, rows + n);
    });
    multiply(1, before, slopes, dkernel, scratch, state);
    if (dbias != nullptr) sum_rows(slopes, dbias);
  }

 private:
  static Sizes sizes(const Extents& e, bool cells) {
    Sizes all{{e.kernel()}, {e.of(e.width), e.kernel()}};
    const auto in = [&](Bytes bytes) { all.inputs.push_back(bytes); };
    if (Cell::kKept != 0) in(e.of(Cell::kKept * e.units));
    in(e.of(e.units));
    if (Cell::kCells) in(e.of(e.units));
    in(e.state());
    if (Cell::kCells) in(e.state());
    in(e.of(e.units));
    if (cells) in(e.of(e.units));
    if (e.masked) in(e.mask());
    if (Cell::kBias) all.outputs.push_back(float_bytes(e.width));
    all.outputs.push_back(e.state());
    if (Cell::kCells) all.outputs.push_back(e.state());
    return all;
  }

  // The sums over samples and steps: of each sample first, then of all.
  void sum_rows(const float* slopes, float* sums) const {
    const Extents& e = extents_;
    parallel_chunks(e.width, 64, [=, &e](Count first, Count length) {
      std::array<double, 64> totals{};
      for (Count row = 0; row < e.batch * e.steps; ++row) {
        const float* from = slopes + row * e.width + first;
        for (Count j = 0; j < length; ++j)
          totals[static_cast<std::size_t>(j)] += from[j];
      }
      for (Count j = 0; j < length; ++j) {
        sums[first + j] = static_cast<float>(totals[static_cast<std::size_t>(j)]);
      }
    });
  }

  bool cells_;
  Bytes dh_, carry_, dc_, before_, dproduct_, turned_;
};

template <class Cell>
KernelPtr make_forward(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec);
  if (spec.inputs.size() < 3) reader.fail("has three inputs or more");
  const Extents extents(reader, spec.inputs[0], Cell::kWidth, spec.inputs[1]);
  return std::make_unique<RecurrentForward<Cell>>(library, extents);
}

template <class Cell>
KernelPtr make_backward(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec);
  if (spec.inputs.size() < 4 || spec.outputs.empty()) {
    reader.fail("has four inputs or more, and outputs");
  }
  const Extents extents(reader, spec.outputs[0], Cell::kWidth, spec.inputs[0]);
  const bool cells = Cell::kCells && flag(reader, "cells");
  return std::make_unique<RecurrentBackward<Cell>>(library, extents, cells);
}

const KernelType kLstm{"lstm", make_forward<Lstm>};
const KernelType kLstmGradient{"lstm_gradient", make_backward<Lstm>};
const KernelType kGru{"gru", make_forward<Gru>};
const KernelType kGruGradient{"gru_gradient", make_backward<Gru>};
const KernelType kSimpleRnn{"simple_rnn", make_forward<SimpleRnn>};
const KernelType kSimpleRnnGradient{"simple_rnn_gradient", make_backward<SimpleRnn>};

}  // namespace
}  // namespace memcfg
