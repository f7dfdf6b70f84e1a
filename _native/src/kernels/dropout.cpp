// Random numbers: dropout, and random_uniform.
//
// dropout: y = x / (1 - rate) where the element is kept, else 0.
//
// Element i is kept iff lane i % 4 of Philox's block i / 4 is >= floor(rate * 2^32);
// counter = (block, step), key = the op's. Which elements are kept is a function of
// (key, step, i) alone, so the backward pass runs the same kernel on dy. The i of a
// part of a batch counts from the batch's first element (philox::Position).
#include <cmath>
#include <cstring>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"
#include "memcfg/philox.hpp"

namespace memcfg {
namespace {

constexpr Count kGroup = 4 * philox::kLanes;  // elements of one call of the generator

struct Mask {
  std::uint64_t key;
  philox::Position position;
  std::uint32_t threshold;
  float scale;

  Count ahead() const { return position.first % 4; }
  // Elements that one call of the generator serves.
  Count at_once() const { return ahead() == 0 ? kGroup : kGroup - 4; }
};

// The random words from the block of element i on, which is ahead() words before its
// own.
MEMCFG_INLINE void words_of(const Mask& mask, Count i, std::uint32_t* out) {
  philox::Words x;
  const auto block = static_cast<std::uint64_t>(mask.position.first + i) / 4;
  for (int i = 0; i < philox::kLanes; ++i) {
    const std::uint64_t counter = block + static_cast<std::uint64_t>(i);
    x.word[0][i] = static_cast<std::uint32_t>(counter);
    x.word[1][i] = static_cast<std::uint32_t>(counter >> 32);
    x.word[2][i] = static_cast<std::uint32_t>(mask.position.step);
    x.word[3][i] = static_cast<std::uint32_t>(mask.position.step >> 32);
  }
  philox::generate(x, mask.key);
  for (int i = 0; i < philox::kLanes; ++i) {
    for (int w = 0; w < 4; ++w) out[4 * i + w] = x.word[w][i];
  }
}

// Elements [begin, begin + length); begin is a multiple of kGroup.
template <class T>
MEMCFG_VECTORIZED void drop(
    const Mask& mask, const T* x, Count begin, Count length, T* y) {
  const std::uint32_t threshold = mask.threshold;
  const float scale = mask.scale;
  const Count ahead = mask.ahead(), at_once = mask.at_once();
  for (Count i = begin; i < begin + length; i += at_once) {
    std::uint32_t words[kGroup];
    words_of(mask, i, words);
    const Count here = std::min(at_once, begin + length - i);
    // The bits of the product, or none: a branch would be guessed wrong half the time.
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < here; ++j) {
      const std::uint32_t kept = mask_of(words[j + ahead] >= threshold);
      y[i + j] = stored_as<T>(float_of(kept & bits_of(as_float(x[i + j]) * scale)));
    }
  }
}

template <class T>
KernelPtr make_dropout_of(const KernelSpec& spec) {
  const SpecReader reader(spec, {kName<T>, kInt64}, {kName<T>});
  const Count count = reader.count(spec.inputs[0]);
  const Count values = reader.count(spec.inputs[1]);
  const std::uint64_t key = static_cast<std::uint64_t>(reader.integer("key", 0));
  const double rate = reader.real("rate");
  if (!(rate >= 0 && rate <= 1)) reader.fail("needs 0 <= rate <= 1");
  const Bytes bytes = reader.bytes(spec.inputs[0]);
  return function_kernel(
      {{bytes, reader.bytes(spec.inputs[1])}, {bytes}},
      0,
      [=](void* const* operands, void*) {
        const T* x = input_as<T>(operands, 0);
        T* y = output_as<T>(operands, 2);
        if (rate == 1) {
          std::memset(y, 0, bytes);
          return;
        }
        const Mask mask{key,
                        {operands[1], values, count},
                        static_cast<std::uint32_t>(std::floor(std::ldexp(rate, 32))),
                        static_cast<float>(1 / (1 - rate))};
        parallel_chunks(count, kChunk, [&](Count begin, Count length) {
          drop(mask, x, begin, length, y);
        });
      });
}

// The middles of 2^23 equal parts of (0, 1), all of them floats.
MEMCFG_VECTORIZED void draw(const Mask& mask, Count begin, Count length, float* y) {
  const Count ahead = mask.ahead(), at_once = mask.at_once();
  for (Count i = begin; i < begin + length; i += at_once) {
    std::uint32_t words[kGroup];
    words_of(mask, i, words);
    const Count here = std::min(at_once, begin + length - i);
    MEMCFG_INDEPENDENT
    for (Count j = 0; j < here; ++j) {
      const double part = static_cast<double>(words[j + ahead] >> 9) + 0.5;
      y[i + j] = static_cast<float>(part * 0x1p-23);
    }
  }
}

KernelPtr make_random_uniform(const KernelSpec& spec) {
  const SpecReader reader(spec, {kInt64}, {kFloat32});
  const Count count = reader.count(spec.outputs[0]);
  const Count values = reader.count(spec.inputs[0]);
  const std::uint64_t key = static_cast<std::uint64_t>(reader.integer("key", 0));
  return function_kernel({{reader.bytes(spec.inputs[0])}, {float_bytes(count)}},
                         0,
                         [=](void* const* operands, void*) {
                           float* y = output(operands, 1);
                           const Mask mask{key, {operands[0], values, count}, 0, 1};
                           parallel_chunks(
                               count, kChunk, [&](Count begin, Count length) {
                                 draw(mask, begin, length, y);
                               });
                         });
}

KernelPtr make_dropout(const KernelSpec& spec) {
  return of_floats(spec, [&](auto x) { return make_dropout_of<decltype(x)>(spec); });
}

const KernelType kDropout{"dropout", make_dropout, Floats::bfloat16};
const KernelType kRandomUniform{"random_uniform", make_random_uniform};

}  // namespace
}  // namespace memcfg
