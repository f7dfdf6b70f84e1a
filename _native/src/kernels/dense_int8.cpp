// dense_int8: a product with a kernel of 8-bit integers, each column with a scale. Rows
// are rounded to 8 bits, each with its own scale, so that sums are integers of 32 bits,
// which are exact in any order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/parallel.hpp"
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr float kLargest = 127;

// Rounds a row; returns its scale, which is NaN if a number is not finite.
MEMCFG_VECTORIZED float round_row(const float* x, Count count, std::int8_t* to) {
  float most = 0, sum = 0;  // the sum of what is finite, times 0, is 0
  for (Count i = 0; i < count; ++i) {
    most = std::max(most, std::fabs(x[i]));
    sum += x[i] * 0.0F;
  }
  const bool finite = sum == 0.0F && most <= std::numeric_limits<float>::max();
  const float factor = finite && most > 0 ? kLargest / most : 0.0F;
  if (!std::isfinite(factor) || factor == 0.0F) {
    std::fill_n(to, count, std::int8_t{0});
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  for (Count i = 0; i < count; ++i) {
    to[i] = static_cast<std::int8_t>(std::nearbyintf(x[i] * factor));
  }
  return most / kLargest;
}

// Rows of x that are multiplied here: for so few, oneDNN takes longer to put the kernel
// in its order (4096 x 4096: 12 ms, and 2 ms here; Zen 4).
constexpr Dim kFewRows = 4;
constexpr Count kColumns = 1024;  // of a block, whose sums stay in the first cache

// sums[m, count] = x[m, k] kernel[k, n], of `count` columns. Two products of 8 bits add
// up in 16.
MEMCFG_VECTORIZED void add_products(const std::int8_t* x,
                                    const std::int8_t* kernel,
                                    Dim m,
                                    Dim k,
                                    Dim n,
                                    Count count,
                                    std::int32_t* sums) {
  for (Dim row = 0; row < m; ++row) std::fill_n(sums + row * n, count, 0);
  for (Dim i = 0; i < k; i += 2) {
    const std::int8_t* const first = kernel + i * n;
    const std::int8_t* const second = i + 1 < k ? first + n : first;
    for (Dim row = 0; row < m; ++row) {
      const std::int16_t a = x[row * k + i];
      const std::int16_t b = i + 1 < k ? x[row * k + i + 1] : 0;
      std::int32_t* const to = sums + row * n;
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < count; ++j) {
        to[j] += static_cast<std::int16_t>(a * first[j] + b * second[j]);
      }
    }
  }
}

// y[m, n] = scales[n] * scale of x's row[m] * (rounded x[m, k] integers[k, n])
class DenseInt8 final : public Kernel {
 public:
  DenseInt8(const OneDnn& library, const Sizes& sizes, Dim m, Dim k, Dim n)
      : Kernel(sizes), m_(m), k_(k), n_(n), block_(std::min(m, kRowsMost)) {
    if (m_ <= kFewRows) return;
    whole_.emplace(make_call(library, block_));
    if (const Dim rest = m_ % block_; rest != 0)
      rest_.emplace(make_call(library, rest));
    const Bytes call = rest_ ? rest_->scratch_bytes() : 0;
    call_bytes_ = std::max(whole_->scratch_bytes(), call);
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    return align_up(float_bytes(block_)) + align_up(rounded_bytes()) + call_bytes_;
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&whole_, &rest_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    const float* const x = static_cast<const float*>(operands[0]);
    const float* const scales = static_cast<const float*>(operands[2]);
    float* const of_rows = static_cast<float*>(scratch);
    char* const after = static_cast<char*>(scratch) + align_up(float_bytes(block_));
    auto* const rounded = reinterpret_cast<std::int8_t*>(after);
    void* const rest = after + align_up(rounded_bytes());
    for (Dim begin = 0; begin < m_; begin += block_) {
      const Dim rows = std::min(block_, m_ - begin);
      parallel_for(rows, rows * k_, [=](Count row) {
        of_rows[row] = round_row(x + (begin + row) * k_, k_, rounded + row * k_);
      });
      float* const y = static_cast<float*>(operands[3]) + begin * n_;
      if (!whole_) {
        multiply(rounded, static_cast<const std::int8_t*>(operands[1]), y);
      } else {
        const std::size_t which = rows == block_ ? 0 : 1;
        (which == 0 ? *whole_ : *rest_)
            .run({rounded, operands[1], y}, rest, arguments[which]);
      }
      parallel_for(rows, rows * n_, [=](Count row) {
        scale_row(of_rows[row], scales, n_, y + row * n_);
      });
    }
  }

 private:
  void multiply(const std::int8_t* x, const std::int8_t* kernel, float* y) const {
    auto* const sums = reinterpret_cast<std::int32_t*>(y);
    const Count blocks = (n_ + kColumns - 1) / kColumns;
    parallel_for(blocks, m_ * k_ * n_, [=](Count block) {
      const Count begin = block * kColumns, count = std::min(kColumns, n_ - begin);
      add_products(x, kernel + begin, m_, k_, n_, count, sums + begin);
    });
  }

  Bytes rounded_bytes() const { return static_cast<Bytes>(block_ * k_); }

  Call make_call(const OneDnn& library, Dim rows) const {
    const Matrix left{rows, k_, k_, 1, 1, 0, data_type::s8};
    const Matrix right{k_, n_, n_, 1, 1, 0, data_type::s8};
    const Matrix sums{rows, n_, n_, 1, 1, 0, data_type::s32};
    return make_product(library, left, right, sums);
  }

  // Sums become numbers in their place.
  MEMCFG_VECTORIZED static void scale_row(float scale,
                                          const float* scales,
                                          Count count,
                                          float* y) {
    const auto* const sums = reinterpret_cast<const std::int32_t*>(y);
    for (Count i = 0; i < count; ++i) {
      y[i] = static_cast<float>(sums[i]) * scale * scales[i];
    }
  }

  Dim m_, k_, n_, block_;
  std::optional<Call> whole_, rest_;
  Bytes call_bytes_ = 0;
};

KernelPtr make_dense_int8(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, "int8", kFloat32}, {kFloat32});
  const SpecReader::Rows x = reader.rows(spec.inputs[0]);
  const Dim m = reader.narrow(x.rows, "rows");
  const Dim k = reader.narrow(x.channels, "inputs");
  const Dim n = reader.narrow(reader.rows(spec.outputs[0]).channels, "units");
  if (reader.rows(spec.outputs[0]).rows != m)
    reader.fail("has an output of other rows");
  if (reader.count(spec.inputs[1]) != reader.product({k, n})) {
    reader.fail("has a kernel of another size");
  }
  if (reader.count(spec.inputs[2]) != n) reader.fail("has scales of other units");
  Kernel::Sizes sizes;
  for (const auto& each : spec.inputs) sizes.inputs.push_back(reader.bytes(each));
  sizes.outputs.push_back(reader.bytes(spec.outputs[0]));
  return std::make_unique<DenseInt8>(library, sizes, m, k, n);
}

const KernelType kDenseInt8{"dense_int8", make_dense_int8};

}  // namespace
}  // namespace memcfg
