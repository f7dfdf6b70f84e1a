// Batch normalisation over rows of C channels (Ioffe and Szegedy 2015), alone or with
// what follows: another array is added, and a ReLU.
//
//   y = relu((x - mean) * gamma / sqrt(variance + epsilon) + beta + other)
//
// Each direction reads its arrays twice: once for sums, once for its result. The
// variance is biased. It is computed from deviations within blocks of rows that stay in
// the cache, and the blocks' are joined (Chan, Golub & LeVeque 1979); blocks depend on
// the shape alone (columns.hpp).
#include <cmath>
#include <type_traits>

#include "kernels/columns.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"

namespace memcfg {
namespace {

using Dtypes = SpecReader::Dtypes;

constexpr Count kTile = 256;     // channels of a block that stays in the cache
constexpr Count kTileRows = 32;  // its rows; of few channels, as many elements

struct Shape {
  Count rows, channels, count, width, chunk;
  double epsilon;

  explicit Shape(const SpecReader& reader, const OperandSpec& x) {
    const SpecReader::Rows found = reader.rows(x);
    rows = found.rows;
    channels = found.channels;
    count = found.count;
    epsilon = reader.real("epsilon");
    width = period(channels);
    chunk = std::max(kChunk / width, Count{1}) * width;
  }
};

// The factors of one channel, each repeated to the period, in caller's scratch.
struct Factors {
  static constexpr Count kArrays = 4;
  static Count floats(const Shape& shape) { return kArrays * shape.width; }

  Factors(float* scratch, const Shape& shape)
      : mean(scratch),
        scale(mean + shape.width),
        slope(scale + shape.width),
        shift(slope + shape.width) {}

  // set(channel) writes the channel's first copy; the rest are repeated.
  template <class Set>
  void fill(const Shape& shape, const Set& set) const {
    for (Count c = 0; c < shape.channels; ++c) set(c);
    for (float* values : {mean, scale, slope, shift}) {
      for (Count j = shape.channels; j < shape.width; ++j) {
        values[j] = values[j - shape.channels];
      }
    }
  }

  float* mean;
  float* scale;
  float* slope;
  float* shift;
};

// What a kernel reads and writes beside its factors, from one element on.
struct Forward {
  const float* x;
  const float* other;  // that is added; null: none
  float* y;            // may be x or other
  Forward at(Count i) const { return {x + i, other ? other + i : nullptr, y + i}; }
};
struct Backward {
  const float* x;
  const float* dy;
  const float* y;  // the ReLU's output; null: there is no ReLU
  float* dx;       // may be dy, or y
  float* dz;       // the gradient behind the ReLU, may be dy or y; null: not wanted
  Backward at(Count i) const {
    return {x + i, dy + i, y ? y + i : nullptr, dx + i, dz ? dz + i : nullptr};
  }
};

// y = activation((x - mean) * scale + shift + other)
template <class Activation, bool adds>
MEMCFG_VECTORIZED void normalize(const Forward& p,
                                 const Factors& f,
                                 Count count,
                                 Count width) {
  const float *x = p.x, *other = p.other;
  const float *mean = f.mean, *scale = f.scale, *shift = f.shift;
  float* y = p.y;
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      const float value = (x[i + j] - mean[j]) * scale[j] + shift[j];
      y[i + j] = Activation::of(adds ? value + other[i + j] : value);
    }
  }
}

// The sums of the gradient: dbeta = sum(dz), and dgamma = sum(dz * (x - mean)), still
// without its factor 1 / sqrt(variance + epsilon).
template <class Activation, bool keeps>
MEMCFG_VECTORIZED void sum_gradient(const Backward& p,
                                    const float* mean,
                                    Count rows,
                                    Count channels,
                                    float* sums,
                                    float* products) {
  const float *x = p.x, *y = p.y, *dy = p.dy;
  float* kept = p.dz;
  float* const outs[2] = {sums, products};
  sum_rows<2>(rows, channels, outs, [=](Count i, Count j) {
    const float dz = Activation::gradient(y, dy, i);
    if (keeps) kept[i] = dz;
    return Terms<2>{{dz, dz * (x[i] - mean[j])}};
  });
}

// dx = scale * ((dz - shift) - slope * (x - mean)): exactly 0 where a channel has one
// value, since both differences are.
template <class Activation>
MEMCFG_VECTORIZED void differentiate(const Backward& p,
                                     const Factors& f,
                                     Count count,
                                     Count width) {
  const float *x = p.x, *y = p.y, *dy = p.dy;
  const float *mean = f.mean, *scale = f.scale, *slope = f.slope, *shift = f.shift;
  float* dx = p.dx;
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      const float dz = Activation::gradient(y, dy, i + j);
      dx[i + j] = scale[j] * ((dz - shift[j]) - slope[j] * (x[i + j] - mean[j]));
    }
  }
}

// Mean and squared deviations from it, of `count` elements each.
struct Moments {
  double mean = 0, squares = 0;
  Count count = 0;

  void join(Count others, double other_mean, double other_squares) {
    const Count all = count + others;
    const double apart = other_mean - mean;
    const double share = static_cast<double>(others) / static_cast<double>(all);
    mean += apart * share;
    squares += other_squares + apart * apart * share * static_cast<double>(count);
    count = all;
  }
};

// mean[channels] and squares[channels] of a row-major block whose rows are `stride`
// apart, by pieces that stay in the cache. Few channels lie without gaps.
template <class SumRows, class SumSquares>
MEMCFG_INLINE void join_pieces(Count rows,
                               Count channels,
                               Count piece,
                               float* mean,
                               float* squares,
                               SumRows sum,
                               SumSquares sum_squares) {
  float piece_mean[kTile], piece_squares[kTile];
  for (Count first = 0; first < rows; first += piece) {
    const Count length = std::min(piece, rows - first);
    sum(first, length, piece_mean);
    const float inverse = 1.0F / static_cast<float>(length);
    for (Count j = 0; j < channels; ++j) piece_mean[j] *= inverse;
    sum_squares(first, length, piece_mean, piece_squares);
    if (first == 0) {
      std::copy_n(piece_mean, channels, mean);
      std::copy_n(piece_squares, channels, squares);
      continue;
    }
    const float share = static_cast<float>(length) / static_cast<float>(first + length);
    const float weight = share * static_cast<float>(first);
    for (Count j = 0; j < channels; ++j) {
      const float apart = piece_mean[j] - mean[j];
      mean[j] += apart * share;
      squares[j] += piece_squares[j] + apart * apart * weight;
    }
  }
}

MEMCFG_VECTORIZED void find_moments(
    const float* x, Count rows, Count channels, float* mean, float* squares) {
  if (channels < kPeriod) {
    join_pieces(
        rows,
        channels,
        std::max(kTile * kTileRows / channels, Count{1}),
        mean,
        squares,
        [=](Count first, Count length, float* out) {
          float* const outs[1] = {out};
          const float* piece = x + first * channels;
          sum_rows<1>(length, channels, outs, [piece](Count i, Count) {
            return Terms<1>{{piece[i]}};
          });
        },
        [=](Count first, Count length, const float* of, float* out) {
          float* const outs[1] = {out};
          const float* piece = x + first * channels;
          float repeated[kPeriodMost];
          repeat(of, channels, repeated);
          const float* center = repeated;
          sum_rows<1>(length, channels, outs, [piece, center](Count i, Count j) {
            const float deviation = piece[i] - center[j];
            return Terms<1>{{deviation * deviation}};
          });
        });
    return;
  }
  for (Count begin = 0; begin < channels; begin += kTile) {
    const Count width = std::min(kTile, channels - begin);
    join_pieces(
        rows,
        width,
        kTileRows,
        mean + begin,
        squares + begin,
        [=](Count first, Count length, float* out) {
          float* const outs[1] = {out};
          const float* piece = x + first * channels + begin;
          std::fill_n(out, width, 0.0F);
          accumulate<1>(length, width, channels, outs, [piece](Count i, Count) {
            return Terms<1>{{piece[i]}};
          });
        },
        [=](Count first, Count length, const float* of, float* out) {
          float* const outs[1] = {out};
          const float* piece = x + first * channels + begin;
          std::fill_n(out, width, 0.0F);
          accumulate<1>(length, width, channels, outs, [piece, of](Count i, Count j) {
            const float deviation = piece[i] - of[j];
            return Terms<1>{{deviation * deviation}};
          });
        });
  }
}

// mean[C] and variance[C] of x. Scratch: `partials` twice.
void statistics(const Shape& shape,
                const ColumnSum& sum,
                const float* x,
                float* partials,
                float* mean,
                float* variance) {
  const Count channels = shape.channels;
  float *means = partials, *squares = partials + sum.partials();
  sum.for_blocks(
      [=](Count first, Count length, float* block_mean, float* block_squares) {
        find_moments(x + first * channels, length, channels, block_mean, block_squares);
      },
      means,
      squares);
  for (Count c = 0; c < channels; ++c) {
    Moments all;
    for (Count i = 0; i < sum.blocks(); ++i) {
      const Count at = i * channels + c;
      all.join(sum.rows_of(i), means[at], squares[at]);
    }
    mean[c] = static_cast<float>(all.mean);
    variance[c] = static_cast<float>(all.squares / static_cast<double>(shape.rows));
  }
}

template <class Activation, bool adds>
void apply(const Shape& shape,
           const Factors& factors,
           const Forward& arrays,
           const float* gamma,
           const float* beta,
           const float* mean,
           const float* variance) {
  factors.fill(shape, [&](Count c) {
    factors.mean[c] = mean[c];
    factors.scale[c] =
        static_cast<float>(gamma[c] / std::sqrt(variance[c] + shape.epsilon));
    factors.slope[c] = 0;
    factors.shift[c] = beta[c];
  });
  parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
    normalize<Activation, adds>(arrays.at(begin), factors, length, shape.width);
  });
}

// x, gamma, beta and what is added: y, mean, variance.
template <class Activation, bool adds>
KernelPtr make_training(const KernelSpec& spec) {
  const SpecReader reader(
      spec, adds ? Dtypes(4, kFloat32) : Dtypes(3, kFloat32), Dtypes(3, kFloat32));
  const Shape shape(reader, spec.inputs[0]);
  const ColumnSum sum(shape.rows, shape.channels, 2);
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  Kernel::Sizes sizes{{all, each, each}, {all, each, each}};
  if (adds) sizes.inputs.push_back(all);
  return function_kernel(
      sizes,
      float_bytes(Factors::floats(shape) + 2 * sum.partials()),
      [=](void* const* operands, void* scratch) {
        constexpr int first = adds ? 4 : 3;
        float* floats = static_cast<float*>(scratch);
        const Forward arrays{input(operands, 0),
                             adds ? input(operands, 3) : nullptr,
                             output(operands, first)};
        float* mean = output(operands, first + 1);
        float* variance = output(operands, first + 2);
        float* partials = floats + Factors::floats(shape);
        statistics(shape, sum, arrays.x, partials, mean, variance);
        const Factors factors(floats, shape);
        const float *gamma = input(operands, 1), *beta = input(operands, 2);
        apply<Activation, adds>(shape, factors, arrays, gamma, beta, mean, variance);
      });
}

// x, gamma, beta, mean, variance and what is added: y.
template <class Activation, bool adds>
KernelPtr make_inference(const KernelSpec& spec) {
  const SpecReader reader(
      spec, adds ? Dtypes(6, kFloat32) : Dtypes(5, kFloat32), Dtypes(1, kFloat32));
  const Shape shape(reader, spec.inputs[0]);
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  Kernel::Sizes sizes{{all, each, each, each, each}, {all}};
  if (adds) sizes.inputs.push_back(all);
  return function_kernel(
      sizes,
      float_bytes(Factors::floats(shape)),
      [=](void* const* operands, void* scratch) {
        const Factors factors(static_cast<float*>(scratch), shape);
        const float *gamma = input(operands, 1), *beta = input(operands, 2);
        const float *mean = input(operands, 3), *variance = input(operands, 4);
        const Forward arrays{input(operands, 0),
                             adds ? input(operands, 5) : nullptr,
                             output(operands, adds ? 6 : 5)};
        apply<Activation, adds>(shape, factors, arrays, gamma, beta, mean, variance);
      });
}

// x, dy, the ReLU's y, gamma, mean, variance: dx, dgamma, dbeta and dz.
template <class Activation, bool keeps>
KernelPtr make_gradient(const KernelSpec& spec) {
  constexpr bool masks = !std::is_same_v<Activation, Identity>;
  const SpecReader reader(spec,
                          masks ? Dtypes(6, kFloat32) : Dtypes(5, kFloat32),
                          keeps ? Dtypes(4, kFloat32) : Dtypes(3, kFloat32));
  const Shape shape(reader, spec.inputs[0]);
  const ColumnSum sum(shape.rows, shape.channels, 2);
  const Bytes all = float_bytes(shape.count), each = float_bytes(shape.channels);
  Kernel::Sizes sizes{{all, all, each, each, each}, {all, each, each}};
  if (masks) sizes.inputs.insert(sizes.inputs.begin(), all);
  if (keeps) sizes.outputs.push_back(all);
  return function_kernel(
      sizes,
      float_bytes(Factors::floats(shape) + 2 * sum.partials()),
      [=](void* const* operands, void* scratch) {
        constexpr int weights = masks ? 3 : 2, first = weights + 3;
        float* floats = static_cast<float*>(scratch);
        const Backward arrays{input(operands, 0),
                              input(operands, 1),
                              masks ? input(operands, 2) : nullptr,
                              output(operands, first),
                              keeps ? output(operands, first + 3) : nullptr};
        const float* gamma = input(operands, weights);
        const float* mean = input(operands, weights + 1);
        const float* variance = input(operands, weights + 2);
        float* dgamma = output(operands, first + 1);
        float* dbeta = output(operands, first + 2);
        const Factors factors(floats, shape);
        repeat(mean, shape.channels, factors.mean);
        float* partials = floats + Factors::floats(shape);
        sum.run(
            [&](Count row, Count rows, float* sums, float* products) {
              const Count c = shape.channels;
              sum_gradient<Activation, keeps>(
                  arrays.at(row * c), factors.mean, rows, c, sums, products);
            },
            [=](Count c, double of_dz, double of_products) {
              dbeta[c] = static_cast<float>(of_dz);
              dgamma[c] = static_cast<float>(of_products);
            },
            partials,
            partials + sum.partials());
        const double rows = static_cast<double>(shape.rows);
        factors.fill(shape, [&](Count c) {
          const double inverse = 1 / std::sqrt(variance[c] + shape.epsilon);
          factors.scale[c] = static_cast<float>(gamma[c] * inverse);
          factors.slope[c] = static_cast<float>(inverse * inverse * dgamma[c] / rows);
          factors.shift[c] = static_cast<float>(dbeta[c] / rows);
          dgamma[c] = static_cast<float>(dgamma[c] * inverse);
        });
        Backward again = arrays;
        if (keeps) again.dy = arrays.dz;  // dz may have taken the bytes of dy, or of y
        using Again = std::conditional_t<keeps, Identity, Activation>;
        parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
          differentiate<Again>(again.at(begin), factors, length, shape.width);
        });
      });
}

// Every combination by its name: that of the op, then what follows it.
#define MEMCFG_FORWARD(variable, suffix, ...)                           \
  const KernelType kTraining##variable{"batch_normalization" suffix,    \
                                       make_training<__VA_ARGS__>};     \
  const KernelType kInference##variable {                               \
    "batch_normalization_inference" suffix, make_inference<__VA_ARGS__> \
  }
MEMCFG_FORWARD(Alone, "", Identity, false);
MEMCFG_FORWARD(Relu, "_relu", Relu, false);
MEMCFG_FORWARD(Relu6, "_relu6", Relu6, false);
MEMCFG_FORWARD(Add, "_add", Identity, true);
MEMCFG_FORWARD(AddRelu, "_add_relu", Relu, true);
#undef MEMCFG_FORWARD

const KernelType kGradient{"batch_normalization_gradient",
                           make_gradient<Identity, false>};
const KernelType kGradientRelu{"batch_normalization_relu_gradient",
                               make_gradient<Relu, false>};
const KernelType kGradientRelu6{"batch_normalization_relu6_gradient",
                                make_gradient<Relu6, false>};
const KernelType kGradientAddRelu{"batch_normalization_add_relu_gradient",
                                  make_gradient<Relu, true>};

}  // namespace
}  // namespace memcfg
