// dense_int8: a product with a kernel of 8-bit integers, each column with a scale. Rows
// are rounded to 8 bits, each with its own scale, so that sums are integers of 32 bits,
// which are exact in any order.
#include <algorithm>
#include <cstdint>

#include "kernels/parallel.hpp"
#include "kernels/product.hpp"
#include "kernels/rounded.hpp"

namespace memcfg {
namespace {

using namespace onednn;

// Rows of x that are multiplied here: for so few, oneDNN takes longer to put the kernel
// in its order (4096 x 4096: 12 ms, and 2 ms here; Zen 4).
constexpr Dim kFewRows = 4;
constexpr Count kColumns = 1024;  // of a block, whose sums stay in the first cache

// y[m, n] = scales[n] * scale of x's row[m] * (rounded x[m, k] integers[k, n])
class DenseInt8 final : public Kernel {
 public:
  DenseInt8(const OneDnn& library, const Sizes& sizes, Dim m, Dim k, Dim n)
      : Kernel(sizes),
        m_(m),
        k_(k),
        n_(n),
        block_(std::min(m, kRowsMost)),
        signed_(multiplies_signed(library)) {
    if (m_ <= kFewRows) return;
    whole_.emplace(make_call(library, block_));
    if (const Dim rest = m_ % block_; rest != 0)
      rest_.emplace(make_call(library, rest));
    const Bytes call = rest_ ? rest_->scratch_bytes() : 0;
    call_bytes_ = std::max(whole_->scratch_bytes(), call);
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    return align_up(float_bytes(2 * block_)) + align_up(rounded_bytes()) +
           others_bytes() + call_bytes_;
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&whole_, &rest_});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    auto& arguments = static_cast<CallStates*>(state)->arguments;
    const float* const x = static_cast<const float*>(operands[0]);
    const float* const scales = static_cast<const float*>(operands[2]);
    auto* const of_rows = static_cast<Rounding*>(scratch);
    char* const after = static_cast<char*>(scratch) + align_up(float_bytes(2 * block_));
    auto* const rounded = reinterpret_cast<std::int8_t*>(after);
    char* const behind = after + align_up(rounded_bytes());
    auto* const others = reinterpret_cast<std::int32_t*>(behind);
    void* const rest = behind + others_bytes();
    for (Dim begin = 0; begin < m_; begin += block_) {
      const Dim rows = std::min(block_, m_ - begin);
      const float* const from = x + begin * k_;
      float* const y = static_cast<float*>(operands[3]) + begin * n_;
      const bool negative = find_roundings(from, rows, k_, of_rows);
      const auto round = [=](Magnitudes which) {
        round_rows(from, rows, k_, of_rows, which, rounded);
      };
      const std::size_t which = rows == block_ ? 0 : 1;
      const auto multiply_into = [&](void* sums) {
        (which == 0 ? *whole_ : *rest_)
            .run({rounded, operands[1], sums}, rest, arguments[which]);
      };
      if (!whole_) {
        round(Magnitudes::of_all);
        multiply(rounded, static_cast<const std::int8_t*>(operands[1]), y);
      } else if (signed_ || !negative) {
        round(Magnitudes::of_all);
        multiply_into(y);
      } else {
        round(Magnitudes::of_positive);
        multiply_into(y);
        round(Magnitudes::of_negative);
        multiply_into(others);
        parallel_chunks(rows * n_, kChunk, [=](Count first, Count count) {
          auto* const sums = reinterpret_cast<std::int32_t*>(y);
          subtract_sums(others + first, sums + first, count);
        });
      }
      parallel_for(rows, rows * n_, [=](Count row) {
        scale_sums(of_rows[row].scale, scales, 1, n_, y + row * n_);
      });
    }
  }

 private:
  void multiply(const std::int8_t* x, const std::int8_t* kernel, float* y) const {
    auto* const sums = reinterpret_cast<std::int32_t*>(y);
    const Count blocks = (n_ + kColumns - 1) / kColumns;
    parallel_for(blocks, m_ * k_ * n_, [=](Count block) {
      const Count begin = block * kColumns, count = std::min(kColumns, n_ - begin);
      std::int32_t* const to = sums + begin;
      for (Count row = 0; row < m_; ++row) std::fill_n(to + row * n_, count, 0);
      add_integer_products(x, k_, kernel + begin, m_, k_, n_, count, to, n_);
    });
  }

  Bytes rounded_bytes() const { return static_cast<Bytes>(block_ * k_); }
  // Of a second product.
  Bytes others_bytes() const {
    return signed_ || !whole_ ? 0 : align_up(float_bytes(block_ * n_));
  }

  Call make_call(const OneDnn& library, Dim rows) const {
    const int type = signed_ ? data_type::s8 : data_type::u8;
    const Matrix left{rows, k_, k_, 1, 1, 0, type};
    const Matrix right{k_, n_, n_, 1, 1, 0, data_type::s8};
    const Matrix sums{rows, n_, n_, 1, 1, 0, data_type::s32};
    return make_product(library, left, right, sums);
  }

  Dim m_, k_, n_, block_;
  bool signed_;  // whether the left operands of calls are
  std::optional<Call> whole_, rest_;
  Bytes call_bytes_ = 0;
};

KernelPtr make_dense_int8(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kInt8, kFloat32}, {kFloat32});
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
