// Products of bfloat16 whose kernel is float32: blocks of the kernel are rounded to
// bfloat16 in scratch, one after the other, so that no copy of all of it exists.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/bfloat16.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Count kRoundedBytes = 2 << 20;  // about those of a block
constexpr Dim kLeast = 64;                // rows or columns of the kernel in a block
// Fewer rows of operands and results are copied: oneDNN's products are slow that read
// or write a few parts of long rows.
constexpr Dim kCopiedRows = 256;

// Rounds `count` elements to bfloat16, which lie in `to` as T.
template <class T>
void round_to(const float* from, Count count, T* to) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    round(from, count, to);
  } else {
    for (Count i = 0; i < count; ++i) to[i] = widened(rounded(from[i]));
  }
}

// Rounds `rows` x `columns` elements, whose rows are `stride` apart, to dense ones.
template <class T>
void round_rows(const float* from, Count stride, Count rows, Count columns, T* to) {
  if (stride == columns) {
    parallel_chunks(rows * columns, kChunk, [=](Count begin, Count count) {
      round_to(from + begin, count, to + begin);
    });
    return;
  }
  parallel_for(rows, rows * columns, [=](Count row) {
    round_to(from + row * stride, columns, to + row * columns);
  });
}

// y[m, columns] = x[m, depth] w[depth, columns], perhaps + bias[columns]. `w` is the
// kernel, or its transpose.
struct Sides {
  Dim m, depth, columns;
  bool transposed, biased;
  std::size_t x, kernel;  // operands
  int type;               // of x and y
};

class DenseOfFloat32 : public Kernel {
 public:
  DenseOfFloat32(const Kernel::Sizes& sizes, const Sides& sides)
      : Kernel(sizes), s_(sides), item_(item_bytes(sides.type)) {}

  const char* algorithm() const noexcept override { return "onednn"; }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(
        std::initializer_list{&first_, &whole_, &rest_});
  }

 protected:
  // How many rows (columns) of a block have about kRoundedBytes.
  Dim fitting(Dim length, Dim most) const {
    const Dim fit = kRoundedBytes / (length * static_cast<Dim>(item_)) / 16 * 16;
    return std::min(most, std::clamp(fit, kLeast, kRowsMost));
  }
  Bytes bytes(Dim elements) const { return static_cast<Bytes>(elements) * item_; }
  Bytes call_bytes() const {
    Bytes most = 0;
    for (const auto* call : {&first_, &whole_, &rest_}) {
      if (*call) most = std::max(most, (*call)->scratch_bytes());
    }
    return most;
  }
  void round_block(
      const float* from, Dim stride, Dim rows, Dim columns, void* to) const {
    if (s_.type == data_type::bf16) {
      round_rows(from, stride, rows, columns, static_cast<Bfloat16*>(to));
    } else {
      round_rows(from, stride, rows, columns, static_cast<float*>(to));
    }
  }
  const float* kernel_of(void* const* operands) const {
    return static_cast<const float*>(operands[s_.kernel]);
  }
  char* result_of(void* const* operands) const {
    return static_cast<char*>(operands[s_.biased ? 3 : 2]);
  }

  Sides s_;
  Bytes item_;
  Dim block_ = 0;
  Bytes rounded_bytes_ = 0, made_bytes_ = 0;
  std::optional<Call> first_, whole_, rest_;
};

// Some columns of the result at a time.
class OfColumns final : public DenseOfFloat32 {
 public:
  OfColumns(const OneDnn& library, const Kernel::Sizes& sizes, const Sides& sides)
      : DenseOfFloat32(sizes, sides) {
    block_ = fitting(s_.depth, s_.columns);
    rounded_bytes_ = align_up(bytes(s_.depth * block_));
    copies_ = s_.m > 1 && s_.m < kCopiedRows && block_ < s_.columns;
    if (copies_) made_bytes_ = align_up(bytes(s_.m * block_));
    whole_.emplace(make_call(library, block_));
    if (const Dim rest = s_.columns % block_; rest != 0) {
      rest_.emplace(make_call(library, rest));
    }
  }

  Bytes scratch_bytes() const noexcept override {
    return rounded_bytes_ + made_bytes_ + call_bytes();
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    char* const made = static_cast<char*>(scratch) + rounded_bytes_;
    for (Dim column = 0; column < s_.columns; column += block_) {
      const Dim length = std::min(block_, s_.columns - column);
      const float* const kernel = kernel_of(operands);
      if (s_.transposed) {
        round_block(kernel + column * s_.depth, s_.depth, length, s_.depth, scratch);
      } else {
        round_block(kernel + column, s_.columns, s_.depth, length, scratch);
      }
      const bool whole = length == block_;
      char* const place = result_of(operands) + bytes(column);
      float* const bias =
          s_.biased ? static_cast<float*>(operands[2]) + column : nullptr;
      void* const addresses[] = {operands[s_.x], scratch, copies_ ? made : place, bias};
      (whole ? *whole_ : *rest_)
          .run(addresses, made + made_bytes_, arguments[whole ? 1 : 2]);
      for (Dim row = 0; copies_ && row < s_.m; ++row) {
        std::memcpy(
            place + bytes(row * s_.columns), made + bytes(row * length), bytes(length));
      }
    }
  }

 private:
  Call make_call(const OneDnn& library, Dim columns) const {
    const Matrix x{s_.m, s_.depth, s_.depth, 1, 1, 0, s_.type};
    const Dim row = s_.transposed ? 1 : columns, next = s_.transposed ? s_.depth : 1;
    const Matrix w{s_.depth, columns, row, next, 1, 0, s_.type};
    const Dim stride = copies_ ? columns : s_.columns;
    const Matrix y{s_.m, columns, stride, 1, 1, 0, s_.type};
    return make_product(library, x, w, y, {s_.biased, {}});
  }

  bool copies_ = false;
};

// Some of the kernel's rows at a time, whose products are added up in float32: reading
// some columns of long rows would take twice as long.
class OfRows final : public DenseOfFloat32 {
 public:
  OfRows(const OneDnn& library, const Kernel::Sizes& sizes, const Sides& sides)
      : DenseOfFloat32(sizes, sides) {
    block_ = fitting(s_.columns, s_.depth);
    rounded_bytes_ = align_up(bytes(block_ * s_.columns));
    made_bytes_ = align_up(float_bytes(s_.m * s_.columns));
    given_bytes_ = align_up(bytes(s_.m * block_));
    first_.emplace(make_call(library, block_, false));
    if (s_.depth >= 2 * block_) whole_.emplace(make_call(library, block_, true));
    if (const Dim rest = s_.depth % block_; rest != 0) {
      rest_.emplace(make_call(library, rest, true));
    }
  }

  // Whether sums of the whole result are few bytes.
  static bool suits(const Sides& s) {
    return !s.transposed && float_bytes(s.m * s.columns) <= kRoundedBytes;
  }

  Bytes scratch_bytes() const noexcept override {
    return rounded_bytes_ + made_bytes_ + given_bytes_ + call_bytes();
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    char* const made = static_cast<char*>(scratch) + rounded_bytes_;
    char* const given = made + made_bytes_;
    for (Dim row = 0; row < s_.depth; row += block_) {
      const Dim length = std::min(block_, s_.depth - row);
      round_block(kernel_of(operands) + row * s_.columns,
                  s_.columns,
                  length,
                  s_.columns,
                  scratch);
      const std::size_t which = row == 0 ? 0 : length == block_ ? 1 : 2;
      const std::optional<Call>* const calls[] = {&first_, &whole_, &rest_};
      const char* const x = static_cast<const char*>(operands[s_.x]) + bytes(row);
      for (Dim i = 0; i < s_.m; ++i) {
        std::memcpy(given + bytes(i * length), x + bytes(i * s_.depth), bytes(length));
      }
      (*calls[which])
          ->run({given, scratch, made}, given + given_bytes_, arguments[which]);
    }
    const float* const sums = reinterpret_cast<const float*>(made);
    const float* const bias =
        s_.biased ? static_cast<const float*>(operands[2]) : nullptr;
    if (s_.type == data_type::bf16) {
      finish(sums, bias, reinterpret_cast<Bfloat16*>(result_of(operands)));
    } else {
      finish(sums, bias, reinterpret_cast<float*>(result_of(operands)));
    }
  }

 private:
  template <class T>
  void finish(const float* sums, const float* bias, T* y) const {
    const Dim n = s_.columns;
    parallel_for(s_.m, s_.m * n, [=](Count row) {
      const float* const from = sums + row * n;
      T* const to = y + row * n;
      if (bias == nullptr) {
        for (Dim i = 0; i < n; ++i) to[i] = stored_as<T>(from[i]);
      } else {
        for (Dim i = 0; i < n; ++i) to[i] = stored_as<T>(from[i] + bias[i]);
      }
    });
  }

  Call make_call(const OneDnn& library, Dim rows, bool adds) const {
    const Matrix x{s_.m, rows, rows, 1, 1, 0, s_.type};
    const Matrix w{rows, s_.columns, s_.columns, 1, 1, 0, s_.type};
    const Matrix y{s_.m, s_.columns, s_.columns, 1};
    return make_product(library, x, w, y, {false, {adds, false}});
  }

  Bytes given_bytes_ = 0;
};

// `gradient`: of the input, whose operands are kernel and dy; else x, kernel and
// perhaps a bias.
template <bool gradient, bool biased>
KernelPtr make_dense_of_float32(const KernelSpec& spec, const OneDnn& library) {
  SpecReader::Dtypes dtypes{kAnyDtype, kAnyDtype};
  if (biased) dtypes.push_back(kFloat32);
  const SpecReader reader(spec, dtypes, {kAnyDtype});
  const std::size_t x = gradient ? 1 : 0, kernel = gradient ? 0 : 1;
  const SpecReader::Rows given = reader.rows(spec.inputs[x]);
  const SpecReader::Rows made = reader.rows(spec.outputs[0]);
  const Dim m = reader.narrow(given.rows, "rows");
  const Dim depth = reader.narrow(given.channels, gradient ? "units" : "inputs");
  const Dim columns = reader.narrow(made.channels, gradient ? "inputs" : "units");
  const int type = type_of(reader, spec.inputs[x]);
  if (made.rows != m) reader.fail("has an output of other rows");
  if (reader.is_bfloat16(spec.inputs[kernel])) reader.fail("has a float32 kernel");
  if (type_of(reader, spec.outputs[0]) != type) {
    reader.fail("has operands of one type beside the kernel");
  }
  if (reader.count(spec.inputs[kernel]) != reader.product({depth, columns})) {
    reader.fail("has a kernel of another size");
  }
  if (biased && reader.count(spec.inputs[2]) != columns) {
    reader.fail("has a bias of other units");
  }
  Kernel::Sizes sizes;
  for (const auto& each : spec.inputs) sizes.inputs.push_back(reader.bytes(each));
  sizes.outputs.push_back(reader.bytes(spec.outputs[0]));
  const Sides sides{m, depth, columns, gradient, biased, x, kernel, type};
  if (OfRows::suits(sides)) return std::make_unique<OfRows>(library, sizes, sides);
  return std::make_unique<OfColumns>(library, sizes, sides);
}

const KernelType kDense{
    "dense_of_float32", make_dense_of_float32<false, false>, nullptr, Floats::bfloat16};
const KernelType kDenseBias{"dense_bias_of_float32",
                            make_dense_of_float32<false, true>,
                            nullptr,
                            Floats::bfloat16};
const KernelType kGradientInput{"dense_gradient_input_of_float32",
                                make_dense_of_float32<true, false>,
                                nullptr,
                                Floats::bfloat16};

}  // namespace
}  // namespace memcfg
