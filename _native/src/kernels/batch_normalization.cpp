// Batch normalisation over rows of C channels (Ioffe and Szegedy 2015), alone or with
// what follows: another array is added, and a ReLU.
//
//   y = relu((x - mean) * gamma / sqrt(variance + epsilon) + beta + other)
//
// Forward is two kernels: the moments of x, and what is made of x with them. The
// gradient reads its arrays twice, for sums and for its result. The variance is biased.
// It is computed from deviations within blocks of rows that stay in the cache, and the
// blocks' are joined (Chan, Golub & LeVeque 1979); blocks depend on the shape alone
// (columns.hpp).
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
  Count first = 0;  // of x's channels that is read
  Count wide;       // x's row
  Count stride;     // how far apart in x are two times `width` elements
  double epsilon;

  // With "first", x has rows of more channels than y.
  Shape(const SpecReader& reader, const OperandSpec& x, const OperandSpec& y) {
    const SpecReader::Rows found = reader.rows(y);
    rows = found.rows;
    channels = found.channels;
    count = found.count;
    epsilon = reader.real("epsilon");
    wide = reader.rows(x).channels;
    if (reader.has("first")) first = reader.integer("first", 0);
    if (wide - channels < first) reader.fail("reads channels that are not there");
    width = wide > channels ? channels : period(channels);
    stride = wide > channels ? wide : width;
    chunk = std::max(kChunk / width, Count{1}) * width;
  }
};

// The factors of one channel, each repeated to the period, in caller's scratch.
struct Factors {
  static constexpr Count kArrays = 5;
  static Count floats(const Shape& shape) { return kArrays * shape.width; }

  Factors(float* scratch, const Shape& shape)
      : mean(scratch),
        scale(mean + shape.width),
        slope(scale + shape.width),
        shift(slope + shape.width),
        beta(shift + shape.width) {}

  // set(channel) writes the channel's first copy; the rest are repeated.
  template <class Set>
  void fill(const Shape& shape, const Set& set) const {
    for (Count c = 0; c < shape.channels; ++c) set(c);
    for (float* values : {mean, scale, slope, shift, beta}) {
      for (Count j = shape.channels; j < shape.width; ++j) {
        values[j] = values[j - shape.channels];
      }
    }
  }

  float* mean;
  float* scale;
  float* slope;
  float* shift;
  float* beta;
};

// The same bits in both directions.
float scale_of(float gamma, float variance, double epsilon) {
  return static_cast<float>(gamma / std::sqrt(variance + epsilon));
}

// What a kernel reads and writes beside its factors, from one element on.
template <class T>
struct Forward {
  const T* x;
  const T* other;  // that is added; null: none
  T* y;            // may be x or other
  Forward at(Count i) const { return {x + i, other ? other + i : nullptr, y + i}; }
};
template <class T>
struct Backward {
  const T* x;
  const T* dy;
  const T* y;  // the ReLU's output; null: there is no ReLU
  T* dx;       // may be x or dy, or y
  T* dz;       // the gradient behind the ReLU, may be dy or y; null: not wanted
  Backward at(Count i, Count x_at) const {
    return {x + x_at, dy + i, y ? y + i : nullptr, dx + i, dz ? dz + i : nullptr};
  }
};

// Where the gradient sees what an activation lets through: in its result, or in x, of
// which the result is computed again.
enum class Seen { kInResult, kInX };

MEMCFG_INLINE float normalized(float x, float mean, float scale, float beta) {
  return (x - mean) * scale + beta;
}

// y = activation((x - mean) * scale + beta + other)
template <class Activation, bool adds, class T>
MEMCFG_VECTORIZED void normalize(const Forward<T>& p,
                                 const Factors& f,
                                 Count count,
                                 Count width) {
  const T *x = p.x, *other = p.other;
  const float *mean = f.mean, *scale = f.scale, *beta = f.beta;
  T* y = p.y;
  for (Count i = 0; i < count; i += width) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      const float value = normalized(as_float(x[i + j]), mean[j], scale[j], beta[j]);
      y[i + j] =
          stored_as<T>(Activation::of(adds ? value + as_float(other[i + j]) : value));
    }
  }
}

// The sums of the gradient: dbeta = sum(dz), and dgamma = sum(dz * (x - mean)), still
// without its factor 1 / sqrt(variance + epsilon).
template <class Activation, Seen seen, bool keeps, class T>
MEMCFG_VECTORIZED void sum_gradient(const Backward<T>& p,
                                    const Factors& f,
                                    Count rows,
                                    Count channels,
                                    Count wide,
                                    float* sums,
                                    float* products) {
  const T *x = p.x, *y = p.y, *dy = p.dy;
  const float *mean = f.mean, *scale = f.scale, *beta = f.beta;
  T* kept = p.dz;
  float* const outs[2] = {sums, products};
  const auto term = [=](float of_x, Count i, Count j) {
    const float dz =
        seen == Seen::kInX
            ? Activation::gradient(normalized(of_x, mean[j], scale[j], beta[j]),
                                   as_float(dy[i]))
            : Activation::gradient(y, dy, i);
    if (keeps) kept[i] = stored_as<T>(dz);
    return Terms<2>{{dz, dz * (of_x - mean[j])}};
  };
  if (wide == channels) {
    sum_rows<2>(rows, channels, outs, [=](Count i, Count j) {
      return term(as_float(x[i]), i, j);
    });
    return;
  }
  for (float* each : outs) std::fill_n(each, channels, 0.0F);
  accumulate_rows<2>(rows, channels, outs, [=](Count row, Count j) {
    return term(as_float(x[row * wide + j]), row * channels + j, j);
  });
}

// dx = scale * ((dz - shift) - slope * (x - mean)): exactly 0 where a channel has one
// value, since both differences are.
template <class Activation, Seen seen, class T>
MEMCFG_VECTORIZED void differentiate(
    const Backward<T>& p, const Factors& f, Count count, Count width, Count stride) {
  const T *y = p.y, *dy = p.dy;
  const float *mean = f.mean, *scale = f.scale, *slope = f.slope, *shift = f.shift;
  const float* beta = f.beta;
  T* dx = p.dx;
  const T* x = p.x;
  for (Count i = 0; i < count; i += width, x += stride) {
    const Count length = std::min(width, count - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < length; ++j) {
      const float of_x = as_float(x[j]);
      const float dz =
          seen == Seen::kInX
              ? Activation::gradient(normalized(of_x, mean[j], scale[j], beta[j]),
                                     as_float(dy[i + j]))
              : Activation::gradient(y, dy, i + j);
      dx[i + j] =
          stored_as<T>(scale[j] * ((dz - shift[j]) - slope[j] * (of_x - mean[j])));
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

template <class T>
MEMCFG_VECTORIZED void find_moments(
    const T* x, Count rows, Count channels, float* mean, float* squares) {
  if (channels < kPeriod) {
    join_pieces(
        rows,
        channels,
        std::max(kTile * kTileRows / channels, Count{1}),
        mean,
        squares,
        [=](Count first, Count length, float* out) {
          float* const outs[1] = {out};
          const T* piece = x + first * channels;
          sum_rows<1>(length, channels, outs, [piece](Count i, Count) {
            return Terms<1>{{as_float(piece[i])}};
          });
        },
        [=](Count first, Count length, const float* of, float* out) {
          float* const outs[1] = {out};
          const T* piece = x + first * channels;
          float repeated[kPeriodMost];
          repeat(of, channels, repeated);
          const float* center = repeated;
          sum_rows<1>(length, channels, outs, [piece, center](Count i, Count j) {
            const float deviation = as_float(piece[i]) - center[j];
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
          const T* piece = x + first * channels + begin;
          std::fill_n(out, width, 0.0F);
          accumulate<1>(length, width, channels, outs, [piece](Count i, Count) {
            return Terms<1>{{as_float(piece[i])}};
          });
        },
        [=](Count first, Count length, const float* of, float* out) {
          float* const outs[1] = {out};
          const T* piece = x + first * channels + begin;
          std::fill_n(out, width, 0.0F);
          accumulate<1>(length, width, channels, outs, [piece, of](Count i, Count j) {
            const float deviation = as_float(piece[i]) - of[j];
            return Terms<1>{{deviation * deviation}};
          });
        });
  }
}

// mean[C] and variance[C] of x. Scratch: `partials` twice.
template <class T>
void statistics(const ColumnSum& sum,
                const SpecReader::Rows& shape,
                const T* x,
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

template <class Activation, bool adds, class T>
void apply(const Shape& shape,
           const Factors& factors,
           const Forward<T>& arrays,
           const float* gamma,
           const float* beta,
           const float* mean,
           const float* variance) {
  factors.fill(shape, [&](Count c) {
    factors.mean[c] = mean[c];
    factors.scale[c] = scale_of(gamma[c], variance[c], shape.epsilon);
    factors.slope[c] = factors.shift[c] = 0;
    factors.beta[c] = beta[c];
  });
  parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
    normalize<Activation, adds>(arrays.at(begin), factors, length, shape.width);
  });
}

// x: mean, variance.
template <class T>
KernelPtr make_moments_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>}, {kFloat32, kFloat32});
  const SpecReader::Rows x = reader.rows(spec.inputs[0]);
  const ColumnSum sum(x.rows, x.channels, 2);
  const Bytes each = float_bytes(x.channels);
  return function_kernel({{reader.bytes(spec.inputs[0])}, {each, each}},
                         float_bytes(2 * sum.partials()),
                         [=](void* const* operands, void* scratch) {
                           statistics(sum,
                                      x,
                                      input_as<T>(operands, 0),
                                      static_cast<float*>(scratch),
                                      output(operands, 1),
                                      output(operands, 2));
                         });
}

// x, gamma, beta, mean, variance and what is added: y.
template <class T, class Activation, bool adds>
KernelPtr make_normalization_of(const KernelSpec& spec) {
  Dtypes inputs{kName<T>, kFloat32, kFloat32, kFloat32, kFloat32};
  if (adds) inputs.push_back(kName<T>);
  const SpecReader reader(spec, inputs, {kName<T>});
  const Shape shape(reader, spec.inputs[0], spec.inputs[0]);
  const Bytes all = reader.bytes(spec.inputs[0]), each = float_bytes(shape.channels);
  Kernel::Sizes sizes{{all, each, each, each, each}, {all}};
  if (adds) sizes.inputs.push_back(all);
  return function_kernel(
      sizes,
      float_bytes(Factors::floats(shape)),
      [=](void* const* operands, void* scratch) {
        const Factors factors(static_cast<float*>(scratch), shape);
        const float *gamma = input(operands, 1), *beta = input(operands, 2);
        const float *mean = input(operands, 3), *variance = input(operands, 4);
        const Forward<T> arrays{input_as<T>(operands, 0),
                                adds ? input_as<T>(operands, 5) : nullptr,
                                output_as<T>(operands, adds ? 6 : 5)};
        apply<Activation, adds>(shape, factors, arrays, gamma, beta, mean, variance);
      });
}

// x, dy, gamma, mean, variance: dx, dgamma, dbeta. With an activation its y comes third
// and dz is made last, or beta comes after gamma.
template <class T, class Activation, Seen seen, bool keeps>
KernelPtr make_gradient_of(const KernelSpec& spec) {
  constexpr bool reads_y = seen == Seen::kInResult,
                 alone = !reads_y && !keeps && std::is_same_v<Activation, Identity>;
  constexpr bool reads_beta = !reads_y && !alone;
  Dtypes inputs{kName<T>, kName<T>, kFloat32, kFloat32, kFloat32};
  Dtypes outputs{kName<T>, kFloat32, kFloat32};
  if (reads_y) inputs.insert(inputs.begin(), kName<T>);
  if (reads_beta) inputs.push_back(kFloat32);
  if (keeps) outputs.push_back(kName<T>);
  const SpecReader reader(spec, inputs, outputs);
  const Shape shape(reader, spec.inputs[0], spec.inputs[1]);
  const ColumnSum sum(shape.rows, shape.channels, 2);
  const Bytes all = reader.bytes(spec.inputs[1]), each = float_bytes(shape.channels);
  Kernel::Sizes sizes{{reader.bytes(spec.inputs[0]), all, each, each, each},
                      {all, each, each}};
  if (reads_y) sizes.inputs.insert(sizes.inputs.begin() + 1, all);
  if (reads_beta) sizes.inputs.push_back(each);
  if (keeps) sizes.outputs.push_back(all);
  return function_kernel(
      sizes,
      float_bytes(Factors::floats(shape) + 2 * sum.partials()),
      [=](void* const* operands, void* scratch) {
        constexpr int of_gamma = reads_y ? 3 : 2;
        constexpr int of_mean = of_gamma + (reads_beta ? 2 : 1), first = of_mean + 2;
        float* floats = static_cast<float*>(scratch);
        const Backward<T> arrays{input_as<T>(operands, 0) + shape.first,
                                 input_as<T>(operands, 1),
                                 reads_y ? input_as<T>(operands, 2) : nullptr,
                                 output_as<T>(operands, first),
                                 keeps ? output_as<T>(operands, first + 3) : nullptr};
        const float* gamma = input(operands, of_gamma);
        const float* beta = reads_beta ? input(operands, of_gamma + 1) : nullptr;
        const float* mean = input(operands, of_mean);
        const float* variance = input(operands, of_mean + 1);
        float* dgamma = output(operands, first + 1);
        float* dbeta = output(operands, first + 2);
        const Factors factors(floats, shape);
        factors.fill(shape, [&](Count c) {
          factors.mean[c] = mean[c];
          factors.scale[c] = scale_of(gamma[c], variance[c], shape.epsilon);
          factors.slope[c] = factors.shift[c] = 0;
          factors.beta[c] = reads_beta ? beta[c] : 0;
        });
        float* partials = floats + Factors::floats(shape);
        sum.run(
            [&](Count row, Count rows, float* sums, float* products) {
              const Count c = shape.channels;
              const Backward<T> from = arrays.at(row * c, row * shape.wide);
              sum_gradient<Activation, seen, keeps>(
                  from, factors, rows, c, shape.wide, sums, products);
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
          factors.slope[c] = static_cast<float>(inverse * inverse * dgamma[c] / rows);
          factors.shift[c] = static_cast<float>(dbeta[c] / rows);
          dgamma[c] = static_cast<float>(dgamma[c] * inverse);
        });
        Backward<T> again = arrays;
        if (keeps) again.dy = arrays.dz;  // dz may have taken the bytes of dy, or of y
        using Again = std::conditional_t<keeps, Identity, Activation>;
        parallel_chunks(shape.count, shape.chunk, [&](Count begin, Count length) {
          const Count row = begin / shape.width;
          differentiate<Again, seen>(again.at(begin, row * shape.stride),
                                     factors,
                                     length,
                                     shape.width,
                                     shape.stride);
        });
      });
}

KernelPtr make_moments(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) { return make_moments_of<decltype(x)>(spec); });
}
template <class Activation, bool adds>
KernelPtr make_normalization(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) {
    return make_normalization_of<decltype(x), Activation, adds>(spec);
  });
}
template <class Activation, Seen seen, bool keeps>
KernelPtr make_gradient(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) {
    return make_gradient_of<decltype(x), Activation, seen, keeps>(spec);
  });
}

// Relu6 whose result was rounded to bfloat16: what has become 6 is not let through.
struct Relu6Rounded : Relu6 {
  static MEMCFG_INLINE float gradient(float y, float dy) {
    constexpr float kLeast = 5.984375F;  // half way from 6 to its neighbour, 5.96875
    return blend(y > 0.0F, blend(y < kLeast, dy, 0.0F), 0.0F);
  }
  using Relu6::gradient;
};

KernelPtr make_gradient_of_relu6(const KernelSpec& spec) {
  const SpecReader reader(spec);
  const bool rounds = reader.has("rounds") && reader.integer("rounds", 0) != 0;
  return rounds ? make_gradient<Relu6Rounded, Seen::kInX, false>(spec)
                : make_gradient<Relu6, Seen::kInX, false>(spec);
}

constexpr Floats kBoth = Floats::bfloat16;

const KernelType kMoments{"batch_moments", make_moments, kBoth};

// Every combination by its name: that of the op, then what follows it.
#define MEMCFG_FORWARD(variable, suffix, ...)                                      \
  const KernelType kTraining##variable{                                            \
      "batch_normalization" suffix, make_normalization<__VA_ARGS__>, kBoth};       \
  const KernelType kInference##variable {                                          \
    "batch_normalization_inference" suffix, make_normalization<__VA_ARGS__>, kBoth \
  }
MEMCFG_FORWARD(Alone, "", Identity, false);
MEMCFG_FORWARD(Relu, "_relu", Relu, false);
MEMCFG_FORWARD(Relu6, "_relu6", Relu6, false);
MEMCFG_FORWARD(Add, "_add", Identity, true);
MEMCFG_FORWARD(AddRelu, "_add_relu", Relu, true);
#undef MEMCFG_FORWARD

const KernelType kGradient{
    "batch_normalization_gradient", make_gradient<Identity, Seen::kInX, false>, kBoth};
const KernelType kGradientRelu{
    "batch_normalization_relu_gradient", make_gradient<Relu, Seen::kInX, false>, kBoth};
const KernelType kGradientRelu6{
    "batch_normalization_relu6_gradient", make_gradient_of_relu6, kBoth};
const KernelType kGradientAddRelu{"batch_normalization_add_relu_gradient",
                                  make_gradient<Relu, Seen::kInResult, true>,
                                  kBoth};

}  // namespace
}  // namespace memcfg
