// Factorizations, inverses and determinants of matrices, each computed by one thread
// and in double, so that bits do not depend on the threads. A result that does not
// exist is NaN. Golub and Van Loan, "Matrix Computations", for the algorithms; Demmel
// and Veselic, "Jacobi's method is more accurate than QR", 1992, for the last two.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/function_kernel.hpp"
#include "kernels/parallel.hpp"

namespace memcfg {
namespace {

using Index = std::int32_t;

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr Count kPieces = 64;  // of matrices, each with scratch of its own
constexpr int kSweeps = 60;    // of rotations; ten are many
constexpr double kPrecision = 1e-15;

// Matrices in the last two axes.
struct Matrices {
  Matrices(const SpecReader& reader, const OperandSpec& operand) {
    if (operand.shape.size() < 2) reader.fail("needs matrices");
    const Count all = reader.count(operand);
    columns = operand.shape.back();
    rows = operand.shape[operand.shape.size() - 2];
    count = all / (rows * columns);
  }
  Count size() const { return rows * columns; }
  Bytes bytes() const { return float_bytes(count * size()); }

  Count rows, columns, count;
};

Matrices square(const SpecReader& reader, const OperandSpec& operand) {
  const Matrices of(reader, operand);
  if (of.rows != of.columns) reader.fail("needs square matrices");
  return of;
}

// A kernel that calls body(operands, matrix, memory) for each matrix, with `each`
// doubles of memory of any content.
template <class Body>
KernelPtr matrix_kernel(
    const Kernel::Sizes& sizes, Count count, Count work, Count each, const Body& body) {
  const Count pieces = std::min(count, kPieces), most = (count + pieces - 1) / pieces;
  const Bytes scratch_bytes = static_cast<Bytes>(pieces * each) * sizeof(double);
  return function_kernel(
      sizes, scratch_bytes, [=](void* const* operands, void* scratch) {
        parallel_for(pieces, count * work, [=](Count piece) {
          double* memory = static_cast<double*>(scratch) + piece * each;
          const Count end = std::min((piece + 1) * most, count);
          for (Count i = piece * most; i < end; ++i) body(operands, i, memory);
        });
      });
}

bool is_finite(const float* x, Count count) {
  return std::all_of(x, x + count, [](float value) { return std::isfinite(value); });
}

void write(const double* from, Count count, float* to) {
  for (Count i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

// row -= factor * other.
void subtract(double* row, double factor, const double* other, Count count) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) row[i] -= factor * other[i];
}

double dot(const double* a, const double* b, Count count) {
  double sum = 0;
  for (Count i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// x[i] = c * x[i] - s * y[i], y[i] = s * x[i] + c * y[i].
void rotate(double* x, double* y, Count count, Count step, double c, double s) {
  for (Count i = 0; i < count * step; i += step) {
    const double a = x[i], b = y[i];
    x[i] = c * a - s * b;
    y[i] = s * a + c * b;
  }
}

// The rotation that makes the product of two columns zero: of zeta = (q - p) / 2pq.
void rotation(double zeta, double* c, double* s) {
  const double t = (zeta < 0 ? -1 : 1) / (std::fabs(zeta) + std::hypot(1, zeta));
  *c = 1 / std::hypot(1, t);
  *s = t * *c;
}

KernelPtr make_triangle(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Matrices of(reader, spec.inputs[0]);
  const bool lower = reader.integer("lower", 0) != 0;
  const Count offset =
      reader.integer("offset", std::numeric_limits<std::int32_t>::min());
  return function_kernel(
      {{of.bytes()}, {of.bytes()}}, 0, [=](void* const* operands, void*) {
        const float* x = input(operands, 0);
        float* y = output(operands, 1);
        parallel_for(of.count * of.rows, of.count * of.size(), [=](Count row) {
          const Count i = row % of.rows, at = row * of.columns;
          for (Count j = 0; j < of.columns; ++j) {
            const bool kept = lower ? j - i <= offset : j - i >= offset;
            y[at + j] = kept ? x[at + j] : 0.0F;
          }
        });
      });
}

KernelPtr make_cholesky(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  const auto factor = [=](const float* a, double* l) {
    std::fill_n(l, n * n, 0.0);
    for (Count i = 0; i < n; ++i) {
      for (Count j = 0; j <= i; ++j) {
        const double rest = a[i * n + j] - dot(l + i * n, l + j * n, j);
        if (i == j && !(rest > 0)) return false;
        l[i * n + j] = i == j ? std::sqrt(rest) : rest / l[j * n + j];
      }
    }
    return true;
  };
  return matrix_kernel({{of.bytes()}, {of.bytes()}},
                       of.count,
                       n * n * n / 3,
                       n * n,
                       [=](void* const* operands, Count m, double* l) {
                         const float* a = input(operands, 0) + m * n * n;
                         float* y = output(operands, 1) + m * n * n;
                         if (is_finite(a, n * n) && factor(a, l)) {
                           write(l, n * n, y);
                         } else {
                           std::fill_n(y, n * n, kUnknown);
                         }
                       });
}

KernelPtr make_solve_triangular(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Matrices columns(reader, spec.inputs[1]);
  if (columns.rows != of.rows || columns.count != of.count)
    reader.fail("needs columns");
  const Count n = of.rows, k = columns.columns;
  const bool transposed = reader.integer("transposed", 0) != 0;
  const bool unit = reader.integer("unit", 0) != 0;
  const bool down = (reader.integer("lower", 0) != 0) != transposed;
  return matrix_kernel({{of.bytes(), columns.bytes()}, {columns.bytes()}},
                       of.count,
                       n * n * k,
                       n * k,
                       [=](void* const* operands, Count m, double* x) {
                         const float* a = input(operands, 0) + m * n * n;
                         const float* b = input(operands, 1) + m * n * k;
                         std::copy_n(b, n * k, x);
                         for (Count place = 0; place < n; ++place) {
                           const Count i = down ? place : n - 1 - place;
                           const Count begin = down ? 0 : i + 1, end = down ? i : n;
                           for (Count j = begin; j < end; ++j) {
                             const double value =
                                 transposed ? a[j * n + i] : a[i * n + j];
                             subtract(x + i * k, value, x + j * k, k);
                           }
                           if (unit) continue;
                           for (Count j = 0; j < k; ++j) x[i * k + j] /= a[i * n + i];
                         }
                         write(x, n * k, output(operands, 2) + m * n * k);
                       });
}

// Exchanges rows and makes both triangles of a matrix, in place. A pivot of zero
// becomes `instead`; returns whether there was none.
bool factorize(double* a, Count n, Index* pivots, double instead) {
  bool regular = true;
  for (Count k = 0; k < n; ++k) {
    Count pivot = k;
    for (Count i = k + 1; i < n; ++i) {
      if (std::fabs(a[i * n + k]) > std::fabs(a[pivot * n + k])) pivot = i;
    }
    pivots[k] = static_cast<Index>(pivot);
    if (pivot != k) std::swap_ranges(a + k * n, a + (k + 1) * n, a + pivot * n);
    if (a[k * n + k] == 0) {
      regular = false;
      a[k * n + k] = instead;
    }
    for (Count i = k + 1; i < n; ++i) {
      if (a[k * n + k] != 0) a[i * n + k] /= a[k * n + k];
      subtract(a + i * n + k + 1, a[i * n + k], a + k * n + k + 1, n - k - 1);
    }
  }
  return regular;
}

void exchange(double* x, Count columns, Count i, Count j) {
  if (i != j) std::swap_ranges(x + i * columns, x + (i + 1) * columns, x + j * columns);
}

// Solves a or its transpose for columns, in place.
void substitute(const double* lu,
                const Index* pivots,
                Count n,
                double* x,
                Count k,
                bool transposed) {
  const auto at = [=](Count i, Count j) {
    return transposed ? lu[j * n + i] : lu[i * n + j];
  };
  const auto divide = [=](Count i) {
    for (Count j = 0; j < k; ++j) x[i * k + j] /= lu[i * n + i];
  };
  if (!transposed) {
    for (Count i = 0; i < n; ++i) exchange(x, k, i, pivots[i]);
  }
  for (Count i = 0; i < n; ++i) {
    for (Count j = 0; j < i; ++j) subtract(x + i * k, at(i, j), x + j * k, k);
    if (transposed) divide(i);
  }
  for (Count i = n - 1; i >= 0; --i) {
    for (Count j = i + 1; j < n; ++j) subtract(x + i * k, at(i, j), x + j * k, k);
    if (!transposed) divide(i);
  }
  if (transposed) {
    for (Count i = n - 1; i >= 0; --i) exchange(x, k, i, pivots[i]);
  }
}

// The memory of a factorization: the factors, and the rows exchanged.
struct Factors {
  Factors(double* memory, Count n)
      : lu(memory), pivots(reinterpret_cast<Index*>(memory + n * n)), n(n) {}
  static Count size(Count n) { return n * n + (n + 1) / 2; }  // in doubles
  bool of(const float* a, double instead = 0) {
    std::copy_n(a, n * n, lu);
    return factorize(lu, n, pivots, instead) && is_finite(a, n * n);
  }
  // The determinant as a sign and a logarithm.
  double sign() const {
    double result = 1;
    for (Count i = 0; i < n; ++i) {
      if (pivots[i] != i) result = -result;
      if (lu[i * n + i] < 0) result = -result;
      if (lu[i * n + i] == 0) result = 0;
    }
    return result;
  }
  double logarithm() const {
    double sum = 0;
    for (Count i = 0; i < n; ++i) sum += std::log(std::fabs(lu[i * n + i]));
    return sum;
  }

  double* lu;
  Index* pivots;
  Count n;
};

KernelPtr make_solve(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Matrices columns(reader, spec.inputs[1]);
  if (columns.rows != of.rows || columns.count != of.count)
    reader.fail("needs columns");
  const Count n = of.rows, k = columns.columns;
  const bool transposed =
      reader.has("transposed") && reader.integer("transposed", 0) != 0;
  return matrix_kernel(
      {{of.bytes(), columns.bytes()}, {columns.bytes()}},
      of.count,
      n * n * (n + 2 * k),
      Factors::size(n) + n * k,
      [=](void* const* operands, Count m, double* memory) {
        Factors factors(memory, n);
        double* x = memory + Factors::size(n);
        float* y = output(operands, 2) + m * n * k;
        const float* b = input(operands, 1) + m * n * k;
        if (!factors.of(input(operands, 0) + m * n * n) || !is_finite(b, n * k)) {
          std::fill_n(y, n * k, kUnknown);
          return;
        }
        std::copy_n(b, n * k, x);
        substitute(factors.lu, factors.pivots, n, x, k, transposed);
        write(x, n * k, y);
      });
}

void fill_identity(double* x, Count n) {
  std::fill_n(x, n * n, 0.0);
  for (Count i = 0; i < n; ++i) x[i * n + i] = 1;
}

KernelPtr make_inverse(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  return matrix_kernel({{of.bytes()}, {of.bytes()}},
                       of.count,
                       2 * n * n * n,
                       Factors::size(n) + n * n,
                       [=](void* const* operands, Count m, double* memory) {
                         Factors factors(memory, n);
                         double* x = memory + Factors::size(n);
                         float* y = output(operands, 1) + m * n * n;
                         if (!factors.of(input(operands, 0) + m * n * n)) {
                           std::fill_n(y, n * n, kUnknown);
                           return;
                         }
                         fill_identity(x, n);
                         substitute(factors.lu, factors.pivots, n, x, n, false);
                         write(x, n * n, y);
                       });
}

KernelPtr make_determinant(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  return matrix_kernel({{of.bytes()}, {float_bytes(of.count)}},
                       of.count,
                       n * n * n,
                       Factors::size(n),
                       [=](void* const* operands, Count m, double* memory) {
                         Factors factors(memory, n);
                         const float* a = input(operands, 0) + m * n * n;
                         factors.of(a);
                         double result = factors.sign();
                         for (Count i = 0; i < n; ++i) {
                           result *= std::fabs(factors.lu[i * n + i]);
                         }
                         output(operands, 1)[m] = is_finite(a, n * n)
                                                      ? static_cast<float>(result)
                                                      : kUnknown;
                       });
}

// The determinant times the transposed inverse, with something minute in place of a
// pivot of zero: its share of the product is exact, what it adds is less than rounding.
KernelPtr make_cofactors(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  if (reader.count(spec.inputs[1]) != of.count) reader.fail("needs a number for each");
  constexpr double kMinute = 1e-60;
  return matrix_kernel(
      {{of.bytes(), float_bytes(of.count)}, {of.bytes()}},
      of.count,
      2 * n * n * n,
      Factors::size(n) + n * n,
      [=](void* const* operands, Count m, double* memory) {
        Factors factors(memory, n);
        double* x = memory + Factors::size(n);
        const float* a = input(operands, 0) + m * n * n;
        const float by = input(operands, 1)[m];
        float* y = output(operands, 2) + m * n * n;
        factors.of(a, kMinute);
        if (!is_finite(a, n * n) || !std::isfinite(by)) {
          std::fill_n(y, n * n, kUnknown);
          return;
        }
        fill_identity(x, n);
        substitute(factors.lu, factors.pivots, n, x, n, true);
        const double sign = factors.sign(), logarithm = factors.logarithm();
        for (Count i = 0; i < n * n; ++i) {  // by logarithms, which do not overflow
          const double size = std::exp(std::log(std::fabs(x[i])) + logarithm);
          y[i] = static_cast<float>(by * sign * (x[i] < 0 ? -size : size));
        }
      });
}

KernelPtr make_slogdet(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  return matrix_kernel({{of.bytes()}, {float_bytes(of.count), float_bytes(of.count)}},
                       of.count,
                       n * n * n,
                       Factors::size(n),
                       [=](void* const* operands, Count m, double* memory) {
                         Factors factors(memory, n);
                         const float* a = input(operands, 0) + m * n * n;
                         factors.of(a);
                         const bool known = is_finite(a, n * n);
                         output(operands, 1)[m] =
                             known ? static_cast<float>(factors.sign()) : kUnknown;
                         output(operands, 2)[m] =
                             known ? static_cast<float>(factors.logarithm()) : kUnknown;
                       });
}

KernelPtr make_lu_factor(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kInt32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  if (n > std::numeric_limits<Index>::max()) reader.fail("has too many rows");
  return matrix_kernel(
      {{of.bytes()}, {of.bytes(), float_bytes(of.count * n)}},
      of.count,
      n * n * n,
      Factors::size(n),
      [=](void* const* operands, Count m, double* memory) {
        Factors factors(memory, n);
        factors.of(input(operands, 0) + m * n * n);
        write(factors.lu, n * n, output(operands, 1) + m * n * n);
        std::copy_n(factors.pivots, n, static_cast<Index*>(operands[2]) + m * n);
      });
}

// Reflects the columns from `first` on: x -= scale * v * (v' * x). Below the diagonal v
// lies in column `at` of a; on it is 1.
void reflect(const double* a,
             Count columns,
             Count at,
             double scale,
             double* x,
             Count rows,
             Count wide,
             Count first,
             double* sums) {
  std::copy_n(x + at * wide + first, wide - first, sums);
  for (Count i = at + 1; i < rows; ++i) {
    subtract(sums, -a[i * columns + at], x + i * wide + first, wide - first);
  }
  subtract(x + at * wide + first, scale, sums, wide - first);
  for (Count i = at + 1; i < rows; ++i) {
    subtract(x + i * wide + first, scale * a[i * columns + at], sums, wide - first);
  }
}

KernelPtr make_qr(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kFloat32});
  const Matrices of(reader, spec.inputs[0]);
  const Matrices q_of(reader, spec.outputs[0]), r_of(reader, spec.outputs[1]);
  const Count rows = of.rows, columns = of.columns, inner = q_of.columns;
  const Count least = std::min(rows, columns), most = std::max(inner, columns);
  if (q_of.rows != rows || r_of.rows != inner || r_of.columns != columns ||
      (inner != rows && inner != least) || q_of.count != of.count ||
      r_of.count != of.count) {
    reader.fail("has other factors");
  }
  const auto factor = [=](double* a, double* scales, double* sums) {
    for (Count k = 0; k < least; ++k) {
      double below = 0;
      for (Count i = k + 1; i < rows; ++i)
        below = std::hypot(below, a[i * columns + k]);
      const double alpha = a[k * columns + k];
      scales[k] = 0;
      if (below == 0) continue;
      const double beta = std::copysign(std::hypot(alpha, below), -alpha);
      scales[k] = (beta - alpha) / beta;
      for (Count i = k + 1; i < rows; ++i) a[i * columns + k] /= alpha - beta;
      reflect(a, columns, k, scales[k], a, rows, columns, k + 1, sums);
      a[k * columns + k] = beta;
    }
  };
  return matrix_kernel(
      {{of.bytes()}, {q_of.bytes(), r_of.bytes()}},
      of.count,
      4 * of.size() * least,
      of.size() + least + most + rows * inner,
      [=](void* const* operands, Count m, double* a) {
        double *scales = a + of.size(), *sums = scales + least, *q = sums + most;
        const float* x = input(operands, 0) + m * of.size();
        float* y = output(operands, 1) + m * q_of.size();
        float* r = output(operands, 2) + m * r_of.size();
        if (!is_finite(x, of.size())) {
          std::fill_n(y, q_of.size(), kUnknown);
          std::fill_n(r, r_of.size(), kUnknown);
          return;
        }
        std::copy_n(x, of.size(), a);
        factor(a, scales, sums);
        for (Count i = 0; i < inner; ++i) {
          for (Count j = 0; j < columns; ++j) {
            r[i * columns + j] = j < i ? 0.0F : static_cast<float>(a[i * columns + j]);
          }
        }
        std::fill_n(q, rows * inner, 0.0);
        for (Count i = 0; i < inner; ++i) q[i * inner + i] = 1;
        for (Count k = least - 1; k >= 0; --k) {
          reflect(a, columns, k, scales[k], q, rows, inner, 0, sums);
        }
        write(q, rows * inner, y);
      });
}

// The sign of the first of the largest of `count` numbers, `step` apart.
double sign_of(const double* x, Count count, Count step) {
  double most = 0;
  for (Count i = 0; i < count; ++i) most = std::max(most, std::fabs(x[i * step]));
  for (Count i = 0; i < count; ++i) {
    if (std::fabs(x[i * step]) >= most * (1 - 1e-6)) return x[i * step] < 0 ? -1 : 1;
  }
  return 1;
}

// Rotates a symmetric matrix until it is diagonal; the rows of v become its vectors.
void diagonalize(double* a, double* v, Count n) {
  fill_identity(v, n);
  double all = 0;
  for (Count i = 0; i < n * n; ++i) all += a[i] * a[i];
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double rest = 0;
    for (Count i = 0; i < n; ++i) rest += dot(a + i * n, a + i * n, i);
    if (!(rest > all * 1e-34)) return;
    for (Count p = 0; p < n; ++p) {
      for (Count q = p + 1; q < n; ++q) {
        const double between = a[p * n + q];
        if (between == 0) continue;
        double c, s;
        rotation((a[q * n + q] - a[p * n + p]) / (2 * between), &c, &s);
        rotate(a + p * n, a + q * n, n, 1, c, s);
        rotate(a + p, a + q, n, n, c, s);
        a[p * n + q] = a[q * n + p] = 0;
        rotate(v + p * n, v + q * n, n, 1, c, s);
      }
    }
  }
}

KernelPtr make_eigh(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kFloat32});
  const Matrices of = square(reader, spec.inputs[0]);
  const Count n = of.rows;
  return matrix_kernel(
      {{of.bytes()}, {float_bytes(of.count * n), of.bytes()}},
      of.count,
      40 * n * n * n,
      2 * n * n + n,
      [=](void* const* operands, Count m, double* a) {
        double *v = a + n * n, *order = v + n * n;
        const float* x = input(operands, 0) + m * n * n;
        float* values = output(operands, 1) + m * n;
        float* vectors = output(operands, 2) + m * n * n;
        bool finite = true;
        for (Count i = 0; i < n; ++i) {
          finite = finite && is_finite(x + i * n, n);
          for (Count j = 0; j <= i; ++j) a[i * n + j] = a[j * n + i] = x[i * n + j];
        }
        if (!finite) {
          std::fill_n(values, n, kUnknown);
          std::fill_n(vectors, n * n, kUnknown);
          return;
        }
        diagonalize(a, v, n);
        for (Count i = 0; i < n; ++i) order[i] = static_cast<double>(i);
        std::sort(order, order + n, [=](double i, double j) {
          const Count p = static_cast<Count>(i), q = static_cast<Count>(j);
          return a[p * n + p] < a[q * n + q] || (a[p * n + p] == a[q * n + q] && p < q);
        });
        for (Count k = 0; k < n; ++k) {
          const Count row = static_cast<Count>(order[k]);
          const double sign = sign_of(v + row * n, n, 1);
          values[k] = static_cast<float>(a[row * n + row]);
          for (Count i = 0; i < n; ++i) {
            vectors[i * n + k] = static_cast<float>(sign * v[row * n + i]);
          }
        }
      });
}

// The singular values of a matrix, whose longer side the rows of w have: they become
// orthogonal, and v the rotations that made them so.
class Singular {
 public:
  Singular(double* memory, Count rows, Count columns)
      : count(std::min(rows, columns)),
        length(std::max(rows, columns)),
        w(memory),
        v(w + count * length),
        values(v + count * count),
        order(values + count) {}
  static Count size(Count rows, Count columns) {
    const Count count = std::min(rows, columns);
    return count * (std::max(rows, columns) + count + 2);
  }

  void of(const float* x, Count rows, Count columns) {
    for (Count i = 0; i < rows; ++i) {
      for (Count j = 0; j < columns; ++j) {
        w[rows >= columns ? j * length + i : i * length + j] = x[i * columns + j];
      }
    }
    rotate_all();
    for (Count i = 0; i < count; ++i) {
      values[i] = std::sqrt(dot(w + i * length, w + i * length, length));
      order[i] = static_cast<double>(i);
    }
    std::sort(order, order + count, [this](double i, double j) {
      const double a = values[static_cast<Count>(i)], b = values[static_cast<Count>(j)];
      return a > b || (a == b && i < j);
    });
  }
  Count row(Count k) const { return static_cast<Count>(order[k]); }
  double largest() const { return values[row(0)]; }
  // Makes unit vectors of the rows of w; those without a direction get one that is
  // orthogonal to all others.
  void complete() {
    const double least = largest() * kPrecision;
    for (Count k = 0; k < count; ++k) {
      double* own = w + row(k) * length;
      if (values[row(k)] > least) {
        for (Count i = 0; i < length; ++i) own[i] /= values[row(k)];
      } else {
        find_direction(k, own);
      }
    }
  }

  Count count, length;
  double *w, *v, *values, *order;

 private:
  void rotate_all() {
    fill_identity(v, count);
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      bool done = true;
      for (Count p = 0; p < count; ++p) {
        for (Count q = p + 1; q < count; ++q) {
          double *x = w + p * length, *y = w + q * length;
          const double a = dot(x, x, length), b = dot(y, y, length);
          const double between = dot(x, y, length);
          if (!(std::fabs(between) > kPrecision * std::sqrt(a * b)) || between == 0)
            continue;
          done = false;
          double c, s;
          rotation((b - a) / (2 * between), &c, &s);
          rotate(x, y, length, 1, c, s);
          rotate(v + p * count, v + q * count, count, 1, c, s);
        }
      }
      if (done) return;
    }
  }
  // Of the unit vectors one is far enough from the k before: the sum of the squares of
  // what they leave is length - k.
  void find_direction(Count k, double* own) const {
    const double enough =
        0.5 * static_cast<double>(length - k) / static_cast<double>(length);
    for (Count unit = 0; unit < length; ++unit) {
      std::fill_n(own, length, 0.0);
      own[unit] = 1;
      for (int twice = 0; twice < 2; ++twice) {
        for (Count i = 0; i < k; ++i) {
          const double* other = w + row(i) * length;
          subtract(own, dot(own, other, length), other, length);
        }
      }
      const double rest = dot(own, own, length);
      if (rest < enough) continue;
      for (Count i = 0; i < length; ++i) own[i] /= std::sqrt(rest);
      return;
    }
  }
};

KernelPtr make_svd(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32, kFloat32, kFloat32});
  const Matrices of(reader, spec.inputs[0]);
  const Count rows = of.rows, columns = of.columns, count = std::min(rows, columns);
  const Bytes of_left = float_bytes(of.count * rows * count);
  const Bytes of_right = float_bytes(of.count * count * columns);
  return matrix_kernel(
      {{of.bytes()}, {of_left, float_bytes(of.count * count), of_right}},
      of.count,
      40 * of.size() * count,
      Singular::size(rows, columns),
      [=](void* const* operands, Count m, double* memory) {
        const float* x = input(operands, 0) + m * of.size();
        float* left = output(operands, 1) + m * rows * count;
        float* values = output(operands, 2) + m * count;
        float* right = output(operands, 3) + m * count * columns;
        if (!is_finite(x, of.size())) {
          std::fill_n(left, rows * count, kUnknown);
          std::fill_n(values, count, kUnknown);
          std::fill_n(right, count * columns, kUnknown);
          return;
        }
        Singular found(memory, rows, columns);
        found.of(x, rows, columns);
        found.complete();
        for (Count k = 0; k < count; ++k) {
          const double* w = found.w + found.row(k) * found.length;
          const double* v = found.v + found.row(k) * count;
          const double* u = rows >= columns ? w : v;
          const double sign = sign_of(u, rows, 1);
          const double* other = rows >= columns ? v : w;
          values[k] = static_cast<float>(found.values[found.row(k)]);
          for (Count i = 0; i < rows; ++i) {
            left[i * count + k] = static_cast<float>(sign * u[i]);
          }
          for (Count j = 0; j < columns; ++j) {
            right[k * columns + j] = static_cast<float>(sign * other[j]);
          }
        }
      });
}

KernelPtr make_pseudo_inverse(const KernelSpec& spec) {
  const SpecReader reader(spec, {kFloat32}, {kFloat32});
  const Matrices of(reader, spec.inputs[0]);
  const Count rows = of.rows, columns = of.columns;
  const double rcond = reader.real("rcond");
  return matrix_kernel(
      {{of.bytes()}, {of.bytes()}},
      of.count,
      40 * of.size() * std::min(rows, columns),
      Singular::size(rows, columns) + of.size(),
      [=](void* const* operands, Count m, double* memory) {
        const float* x = input(operands, 0) + m * of.size();
        float* y = output(operands, 1) + m * of.size();
        if (!is_finite(x, of.size())) {
          std::fill_n(y, of.size(), kUnknown);
          return;
        }
        Singular found(memory, rows, columns);
        found.of(x, rows, columns);
        double* sum = memory + Singular::size(rows, columns);
        std::fill_n(sum, of.size(), 0.0);
        for (Count k = 0; k < found.count; ++k) {
          const double value = found.values[k];
          if (!(value > rcond * found.largest())) continue;
          const double *w = found.w + k * found.length, *v = found.v + k * found.count;
          const double* u = rows >= columns ? w : v;
          const double* other = rows >= columns ? v : w;
          for (Count i = 0; i < columns; ++i) {  // w is longer than 1 by the value
            subtract(sum + i * rows, -other[i] / (value * value), u, rows);
          }
        }
        write(sum, of.size(), y);
      });
}

const KernelType kTriangle{"triangle", make_triangle};
const KernelType kCholesky{"cholesky", make_cholesky};
const KernelType kSolveTriangular{"solve_triangular", make_solve_triangular};
const KernelType kSolve{"solve", make_solve};
const KernelType kInverse{"matrix_inverse", make_inverse};
const KernelType kDeterminant{"determinant", make_determinant};
const KernelType kCofactors{"cofactors", make_cofactors};
const KernelType kSlogdet{"slogdet", make_slogdet};
const KernelType kLuFactor{"lu_factor", make_lu_factor};
const KernelType kQr{"qr", make_qr};
const KernelType kEigh{"eigh", make_eigh};
const KernelType kSvd{"svd", make_svd};
const KernelType kPseudoInverse{"pseudo_inverse", make_pseudo_inverse};

}  // namespace
}  // namespace memcfg
