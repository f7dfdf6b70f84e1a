// fourier: the discrete Fourier transform along the last axis; frames and overlap_add:
// the windows of a signal, and their sum. Rows are computed apart and in double, so
// that bits do not depend on the threads.
#include <algorithm>
#include <cmath>
#include <complex>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Complex = std::complex<double>;

constexpr double kPi = 3.14159265358979323846;
constexpr Count kPieces = 64;  // of rows, each with scratch of its own

// Without the checks for infinity of the operator.
Complex product(Complex a, Complex b) {
  return {a.real() * b.real() - a.imag() * b.imag(),
          a.real() * b.imag() + a.imag() * b.real()};
}

// exp(pi i * numerator / denominator).
Complex root(Count numerator, Count denominator) {
  const double angle =
      kPi * static_cast<double>(numerator) / static_cast<double>(denominator);
  return {std::cos(angle), std::sin(angle)};
}

// The transform of a power of two of elements, in place; `roots` has half as many.
void transform(Complex* a, Count size, const Complex* roots) {
  for (Count i = 1, j = 0; i < size; ++i) {  // into the order of reversed bits
    Count bit = size >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(a[i], a[j]);
  }
  for (Count half = 1; half < size; half *= 2) {
    const Count stride = size / (2 * half);
    for (Count first = 0; first < size; first += 2 * half) {
      for (Count k = 0; k < half; ++k) {
        const Complex even = a[first + k];
        const Complex odd = product(a[first + half + k], roots[k * stride]);
        a[first + k] = even + odd;
        a[first + half + k] = even - odd;
      }
    }
  }
}

// A transform of any length: of a power of two as it is, of another one as a
// convolution with a chirp (Bluestein), of a power of two.
class Fourier {
 public:
  Fourier(Count length, bool inverse) : length_(length), sign_(inverse ? 1 : -1) {
    while (size_ < length) size_ *= 2;
    if (size_ == length) return;
    while (size_ < 2 * length - 1) size_ *= 2;
    is_chirp_ = true;
  }
  Count size() const { return size_; }  // of the work of a row
  // Elements that all rows share.
  Count shared() const { return size_ + (is_chirp_ ? length_ + size_ : 0); }

  void prepare(Complex* shared) const {
    for (Count k = 0; k < size_ / 2; ++k) shared[k] = root(2 * sign() * k, size_);
    if (!is_chirp_) return;
    Complex* chirp = shared + size_;
    Complex* filter = chirp + length_;
    std::fill_n(filter, size_, Complex{});
    Count square = 0;  // k * k modulo 2 * length
    for (Count k = 0; k < length_; ++k) {
      chirp[k] = root(sign_ * square, length_);
      filter[k] = std::conj(chirp[k]);
      if (k > 0) filter[size_ - k] = filter[k];
      square = (square + 2 * k + 1) % (2 * length_);
    }
    transform(filter, size_, shared);
  }
  void run(const float* real,
           const float* imaginary,
           float* y,
           float* z,
           const Complex* shared,
           Complex* work) const {
    if (!is_chirp_) {
      for (Count i = 0; i < length_; ++i) work[i] = {real[i], imaginary[i]};
      transform(work, size_, shared);
      for (Count i = 0; i < length_; ++i) write(work[i], i, y, z);
      return;
    }
    const Complex* chirp = shared + size_;
    const Complex* filter = chirp + length_;
    for (Count i = 0; i < length_; ++i) {
      work[i] = product({real[i], imaginary[i]}, chirp[i]);
    }
    std::fill(work + length_, work + size_, Complex{});
    transform(work, size_, shared);
    // Back again as the conjugate of the transform of the conjugate.
    for (Count i = 0; i < size_; ++i) work[i] = std::conj(product(work[i], filter[i]));
    transform(work, size_, shared);
    const double scale = 1.0 / static_cast<double>(size_);
    for (Count i = 0; i < length_; ++i) {
      write(product(std::conj(work[i]) * scale, chirp[i]), i, y, z);
    }
  }

 private:
  // A convolution may go in either direction first.
  int sign() const { return is_chirp_ ? -1 : sign_; }
  static void write(Complex value, Count i, float* y, float* z) {
    y[i] = static_cast<float>(value.real());
    z[i] = static_cast<float>(value.imag());
  }

  Count length_, size_ = 1;
  int sign_;
  bool is_chirp_ = false;
};

KernelPtr make_fourier(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32, kFloat32});
  const SpecReader::Rows of = reader.rows(spec.inputs[0]);
  if (of.channels > Count{1} << 40) reader.fail("has rows too long");
  const Fourier fourier(of.channels, reader.integer("inverse", 0) != 0);
  const Count pieces = std::min(of.rows, kPieces),
              each = (of.rows + pieces - 1) / pieces;
  const Bytes bytes = float_bytes(of.count);
  const Count elements = fourier.shared() + reader.product({pieces, fourier.size()});
  const Bytes scratch_bytes = static_cast<Bytes>(elements) * sizeof(Complex);
  return function_kernel({{bytes, bytes}, {bytes, bytes}},
                         scratch_bytes,
                         [=](void* const* operands, void* scratch) {
                           Complex* shared = static_cast<Complex*>(scratch);
                           fourier.prepare(shared);
                           parallel_for(pieces, 16 * of.count, [=](Count piece) {
                             Complex* work =
                                 shared + fourier.shared() + piece * fourier.size();
                             const Count end = std::min((piece + 1) * each, of.rows);
                             for (Count row = piece * each; row < end; ++row) {
                               const Count at = row * of.channels;
                               fourier.run(input(operands, 0) + at,
                                           input(operands, 1) + at,
                                           output(operands, 2) + at,
                                           output(operands, 3) + at,
                                           shared,
                                           work);
                             }
                           });
                         });
}

// Rows of `size` elements, and the windows in each of them.
struct Windows {
  Windows(const SpecReader& reader, const OperandSpec& row, const OperandSpec& windows)
      : rows(reader.rows(row).rows),
        size(reader.rows(row).channels),
        length(reader.rows(windows).channels),
        step(reader.integer("step", 1)),
        dilation(reader.integer("dilation", 1)),
        count(reader.rows(windows).rows / rows) {
    const Count reach = reader.product({length - 1, dilation}) + 1;
    if (reader.rows(windows).rows != rows * count || size < reach ||
        count != 1 + (size - reach) / step) {
      reader.fail("has other windows");
    }
  }
  Count elements() const { return rows * count * length; }

  Count rows, size, length, step, dilation, count;
};

KernelPtr make_frames(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Windows of(reader, spec.inputs[0], spec.outputs[0]);
  const Kernel::Sizes sizes{{float_bytes(of.rows * of.size)},
                            {float_bytes(of.elements())}};
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    float* y = output(operands, 1);
    parallel_for(of.rows * of.count, of.elements(), [=](Count window) {
      const float* from = x + window / of.count * of.size + window % of.count * of.step;
      float* to = y + window * of.length;
      for (Count i = 0; i < of.length; ++i) to[i] = from[i * of.dilation];
    });
  });
}

KernelPtr make_overlap_add(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Windows of(reader, spec.outputs[0], spec.inputs[0]);
  const Kernel::Sizes sizes{{float_bytes(of.elements())},
                            {float_bytes(of.rows * of.size)}};
  return function_kernel(sizes, 0, [=](void* const* operands, void*) {
    const float* x = input(operands, 0);
    float* y = output(operands, 1);
    parallel_for(of.rows, of.elements(), [=](Count row) {
      float* to = y + row * of.size;
      std::fill_n(to, of.size, 0.0F);
      for (Count window = 0; window < of.count; ++window) {
        const float* from = x + (row * of.count + window) * of.length;
        float* begin = to + window * of.step;
        for (Count i = 0; i < of.length; ++i) begin[i * of.dilation] += from[i];
      }
    });
  });
}

const KernelType kFourier{"fourier", make_fourier};
const KernelType kFrames{"frames", make_frames};
const KernelType kOverlapAdd{"overlap_add", make_overlap_add};

}  // namespace
}  // namespace memcfg
