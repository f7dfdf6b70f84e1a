// dense_int4: a product with a kernel of 4-bit integers, each column with a scale in
// each group of rows. Rows of x are rounded to 8 bits, each with its own scale, so that
// the sums over a group are integers, which are exact in any order.
//
// Few rows are multiplied by the codes as they are. For more, a part of a group is
// unpacked to 8 bits at a time, and multiplied by oneDNN.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/nibbles.hpp"
#include "kernels/parallel.hpp"
#include "kernels/product.hpp"
#include "kernels/rounded.hpp"

namespace memcfg {
namespace {

using namespace onednn;

constexpr Dim kFewRows = 4;      // as for dense_int8
constexpr Count kColumns = 512;  // of a block, whose sums stay in the first cache
constexpr Count kUnpacked = 256 << 10;  // bytes of a part, which stay in the second

// A product of numbers of 8 and of 4 bits is at most 127 x 8: so many pairs add up in
// 16 bits.
constexpr Count kPairs = 32767 / (2 * 127 * 8);

// sums[m, count] = x[m, k] codes[k, n], of `count` columns, from an even row on.
MEMCFG_VECTORIZED void multiply_codes(const std::int8_t* x,
                                      Count x_row,
                                      const std::uint8_t* codes,
                                      Count m,
                                      Count k,
                                      Count n,
                                      Count count,
                                      std::int32_t* sums,
                                      Count sums_row) {
  std::int16_t part[kColumns];
  for (Count row = 0; row < m; ++row) {
    const std::int8_t* const from = x + row * x_row;
    std::int32_t* const to = sums + row * sums_row;
    std::fill_n(to, count, 0);
    for (Count first = 0; first < k; first += 2 * kPairs) {
      const Count end = std::min(k, first + 2 * kPairs);
      std::fill_n(part, count, std::int16_t{0});
      for (Count i = first; i < end; i += 2) {
        const std::int16_t a = from[i], b = i + 1 < k ? from[i + 1] : 0;
        const std::uint8_t* const own = codes + i / 2 * n;
        MEMCFG_INDEPENDENT
        for (Count j = 0; j < count; ++j) {
          part[j] = static_cast<std::int16_t>(part[j] + a * low_of(own[j]) +
                                              b * high_of(own[j]));
        }
      }
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < count; ++j) to[j] += part[j];
    }
  }
}

// to[rows, columns] = some rows of codes, from row `first` on
MEMCFG_VECTORIZED void unpack(const std::uint8_t* codes,
                              Count n,
                              Count first,
                              Count rows,
                              Count columns,
                              std::int8_t* to) {
  for (Count row = first; row < first + rows; ++row, to += columns) {
    const std::uint8_t* const from = codes + row / 2 * n;
    if (row % 2 == 0) {
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < columns; ++j) to[j] = low_of(from[j]);
    } else {
      MEMCFG_INDEPENDENT
      for (Count j = 0; j < columns; ++j) to[j] = high_of(from[j]);
    }
  }
}

// y += sums * scales, or = for the first group; times `scale` after the last one.
MEMCFG_VECTORIZED void add_group(
    const std::int32_t* sums, const float* scales, Count count, bool first, float* y) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) {
    const float made = static_cast<float>(sums[i]) * scales[i];
    y[i] = first ? 0.0F + made : y[i] + made;
  }
}
MEMCFG_VECTORIZED void scale_row(float scale, Count count, float* y) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) y[i] *= scale;
}

class DenseInt4 final : public Kernel {
 public:
  DenseInt4(const OneDnn& library, const Sizes& sizes, Dim m, const Groups& of)
      : Kernel(sizes),
        m_(m),
        of_(of),
        block_(std::min(m, kRowsMost)),
        signed_(multiplies_signed(library)) {
    if (m_ <= kFewRows) return;
    const Count group = std::min(of_.group, of_.rows);
    columns_ = std::clamp<Count>(kUnpacked / group / 64 * 64, 64, of_.n);
    const Dim of_rows[] = {block_, m_ % block_};
    const Dim of_group[] = {group, of_.rows % group};
    const Dim of_columns[] = {columns_, of_.n % columns_};
    for (int i = 0; i < kCalls; ++i) {
      const Dim rows = of_rows[i & 1], k = of_group[i >> 1 & 1];
      const Dim n = of_columns[i >> 2 & 1];
      if (rows == 0 || k == 0 || n == 0) continue;
      calls_[i].emplace(make_call(library, rows, k, n));
      call_bytes_ = std::max(call_bytes_, calls_[i]->scratch_bytes());
    }
  }

  const char* algorithm() const noexcept override { return "onednn"; }
  Bytes scratch_bytes() const noexcept override {
    return roundings_bytes() + rounded_bytes() + unpacked_bytes() +
           (signed_ ? 1 : 2) * sums_bytes() + (signed_ ? 0 : negatives_bytes()) +
           call_bytes_;
  }
  std::unique_ptr<RunState> make_run_state() const override {
    return std::make_unique<CallStates>(std::initializer_list{&calls_[0],
                                                              &calls_[1],
                                                              &calls_[2],
                                                              &calls_[3],
                                                              &calls_[4],
                                                              &calls_[5],
                                                              &calls_[6],
                                                              &calls_[7]});
  }

  void run(void* const* operands, void* scratch, RunState* state) const override {
    const float* const x = static_cast<const float*>(operands[0]);
    const auto* const codes = static_cast<const std::uint8_t*>(operands[1]);
    const float* const scales = static_cast<const float*>(operands[2]);
    Places at;
    char* next = static_cast<char*>(scratch);
    const auto take = [&next](Bytes bytes) {
      return std::exchange(next, next + bytes);
    };
    auto* const of_rows = reinterpret_cast<Rounding*>(take(roundings_bytes()));
    at.rounded = reinterpret_cast<std::int8_t*>(take(rounded_bytes()));
    at.negatives = reinterpret_cast<std::int8_t*>(take(negatives_bytes()));
    at.unpacked = reinterpret_cast<std::int8_t*>(take(unpacked_bytes()));
    at.sums = reinterpret_cast<std::int32_t*>(take(sums_bytes()));
    at.others = reinterpret_cast<std::int32_t*>(take(signed_ ? 0 : sums_bytes()));
    at.rest = next;
    auto* const own = static_cast<CallStates*>(state);
    for (Dim begin = 0; begin < m_; begin += block_) {
      const Dim rows = std::min(block_, m_ - begin);
      const float* const from = x + begin * of_.rows;
      float* const y = static_cast<float*>(operands[3]) + begin * of_.n;
      const bool negative = find_roundings(from, rows, of_.rows, of_rows);
      at.subtracts = negative && !signed_ && m_ > kFewRows;
      const auto first = at.subtracts ? Magnitudes::of_positive : Magnitudes::of_all;
      round_rows(from, rows, of_.rows, of_rows, first, at.rounded);
      if (at.subtracts) {
        const auto second = Magnitudes::of_negative;
        round_rows(from, rows, of_.rows, of_rows, second, at.negatives);
      }
      if (m_ <= kFewRows) {
        multiply_few(at.rounded, codes, scales, y);
      } else {
        multiply_many(at, codes, scales, rows, y, own->arguments);
      }
      parallel_for(rows, rows * of_.n, [=](Count row) {
        scale_row(of_rows[row].scale, of_.n, y + row * of_.n);
      });
    }
  }

 private:
  static constexpr int kCalls = 8;

  struct Places {
    std::int8_t *rounded, *negatives, *unpacked;
    std::int32_t *sums, *others;
    void* rest;
    bool subtracts;
  };

  Bytes roundings_bytes() const {
    return align_up(static_cast<Bytes>(block_) * sizeof(Rounding));
  }
  Bytes rounded_bytes() const {
    return align_up(static_cast<Bytes>(block_ * of_.rows));
  }
  Bytes negatives_bytes() const {
    return signed_ || m_ <= kFewRows ? 0 : rounded_bytes();
  }
  Bytes unpacked_bytes() const {
    return align_up(static_cast<Bytes>(std::min(of_.group, of_.rows) * columns_));
  }
  Bytes sums_bytes() const { return align_up(float_bytes(block_ * columns_)); }

  Call make_call(const OneDnn& library, Dim rows, Dim k, Dim n) const {
    const int type = signed_ ? data_type::s8 : data_type::u8;
    const Matrix left{rows, k, of_.rows, 1, 1, 0, type};
    const Matrix right{k, n, n, 1, 1, 0, data_type::s8};
    const Matrix sums{rows, n, n, 1, 1, 0, data_type::s32};
    return make_product(library, left, right, sums);
  }

  void multiply_few(const std::int8_t* x,
                    const std::uint8_t* codes,
                    const float* scales,
                    float* y) const {
    const Count blocks = (of_.n + kColumns - 1) / kColumns;
    parallel_for(blocks, m_ * of_.rows * of_.n, [=](Count block) {
      const Count begin = block * kColumns;
      const Count count = std::min(kColumns, of_.n - begin);
      std::int32_t sums[kFewRows * kColumns];
      std::int8_t shifted[2];
      for (Count g = 0; g < of_.count(); ++g) {
        Count first = of_.begin(g);
        const Count end = of_.end(g);
        const float* const own = scales + g * of_.n + begin;
        std::int32_t head[kFewRows * kColumns];
        const bool odd = first % 2 != 0;  // the group begins in the high bits
        if (odd) {
          for (Count row = 0; row < m_; ++row) {
            shifted[0] = 0, shifted[1] = x[row * of_.rows + first];
            multiply_codes(shifted,
                           2,
                           codes + first / 2 * of_.n + begin,
                           1,
                           2,
                           of_.n,
                           count,
                           head + row * kColumns,
                           kColumns);
          }
          ++first;
        }
        multiply_codes(x + first,
                       of_.rows,
                       codes + first / 2 * of_.n + begin,
                       m_,
                       end - first,
                       of_.n,
                       count,
                       sums,
                       kColumns);
        for (Count row = 0; row < m_; ++row) {
          std::int32_t* const made = sums + row * kColumns;
          if (odd) {
            for (Count j = 0; j < count; ++j) made[j] += head[row * kColumns + j];
          }
          add_group(made, own, count, g == 0, y + row * of_.n + begin);
        }
      }
    });
  }

  void multiply_many(const Places& at,
                     const std::uint8_t* codes,
                     const float* scales,
                     Dim rows,
                     float* y,
                     std::vector<Arguments>& arguments) const {
    for (Count begin = 0; begin < of_.n; begin += columns_) {
      const Count n = std::min(columns_, of_.n - begin);
      for (Count g = 0; g < of_.count(); ++g) {
        const Count first = of_.begin(g), k = of_.end(g) - first;
        parallel_for((k + 15) / 16, k * n, [=](Count part) {
          const Count from = part * 16, count = std::min<Count>(16, k - from);
          std::int8_t* const to = at.unpacked + from * n;
          unpack(codes + begin, of_.n, first + from, count, n, to);
        });
        const int which = (rows == block_ ? 0 : 1) |
                          (k == std::min(of_.group, of_.rows) ? 0 : 2) |
                          (n == columns_ ? 0 : 4);
        const auto index = static_cast<std::size_t>(which);
        const auto multiply = [&](std::int8_t* left, std::int32_t* sums) {
          calls_[which]->run(
              {left + first, at.unpacked, sums}, at.rest, arguments[index]);
        };
        multiply(at.rounded, at.sums);
        if (at.subtracts) multiply(at.negatives, at.others);
        parallel_for(rows, rows * n, [=](Count row) {
          std::int32_t* const sums = at.sums + row * n;
          if (at.subtracts) subtract_sums(at.others + row * n, sums, n);
          const float* const own = scales + g * of_.n + begin;
          add_group(sums, own, n, g == 0, y + row * of_.n + begin);
        });
      }
    }
  }

  Dim m_;
  Groups of_;
  Dim block_;
  bool signed_;
  Count columns_ = 0;  // of a part that is unpacked
  std::optional<Call> calls_[kCalls];
  Bytes call_bytes_ = 0;
};

KernelPtr make_dense_int4(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kUint8, kFloat32}, {kFloat32});
  const SpecReader::Rows x = reader.rows(spec.inputs[0]);
  const Dim m = reader.narrow(x.rows, "rows");
  const Dim k = reader.narrow(x.channels, "inputs");
  const SpecReader::Rows y = reader.rows(spec.outputs[0]);
  const Groups of{k, reader.narrow(y.channels, "units"), reader.integer("group", 1)};
  if (y.rows != m) reader.fail("has an output of other rows");
  if (reader.count(spec.inputs[1]) != reader.product({nibble_rows(k), of.n})) {
    reader.fail("has a kernel of another size");
  }
  if (reader.count(spec.inputs[2]) != reader.product({of.count(), of.n})) {
    reader.fail("has scales of other groups");
  }
  Kernel::Sizes sizes;
  for (const auto& each : spec.inputs) sizes.inputs.push_back(reader.bytes(each));
  sizes.outputs.push_back(reader.bytes(spec.outputs[0]));
  return std::make_unique<DenseInt4>(library, sizes, m, of);
}

const KernelType kDenseInt4{"dense_int4", make_dense_int4};

}  // namespace
}  // namespace memcfg
