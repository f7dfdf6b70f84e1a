"""Factorizations, inverses and determinants: a block has a matrix, in double.

All threads of a block follow the same path: what steers it, each of them computes.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.devices.cuda._sources._writer import f64, i64

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.devices.cuda._sources._launch import Argument
    from memcfg.devices.cuda._sources._writer import Writer

__all__ = ["FAMILY"]

_MOST_BLOCKS = 512  # each with scratch of its own, for one matrix after another

# each(count, f) calls f(i) for all i and waits.
_COMMON = """
  const unsigned int lane = threadIdx.x, lanes = memcfg::kThreads;
  const float unknown = __int_as_float(0x7fc00000);
  const auto each = [&](Index count, auto f) {
    for (Index i = lane; i < count; i += lanes) f(i);
    __syncthreads();
  };
  const auto is_finite = [&](const float* x, Index count) -> bool {
    double wrong = 0;
    for (Index i = lane; i < count; i += lanes) {
      if (!(fabsf(x[i]) <= 3.4028235e38f)) wrong = 1;
    }
    return memcfg::sum_lanes(lanes, wrong) == 0;
  };
  const auto load = [&](const float* x, Index count, double* to) {
    each(count, [&](Index i) { to[i] = x[i]; });
  };
  const auto fill = [&](float* to, Index count, float value) {
    each(count, [&](Index i) { to[i] = value; });
  };
  const auto identity = [&](double* x, Index rows, Index columns) {
    each(rows * columns, [&](Index i) {
      x[i] = i / columns == i % columns ? 1.0 : 0.0;
    });
  };
"""
# Exchanges rows and makes both triangles; a pivot of zero becomes `instead`.
_FACTORIZE = """
  const auto factorize = [&](double* a, int* pivots, double instead) -> bool {
    bool regular = true;
    for (Index k = 0; k < n; ++k) {
      Index pivot = k;
      for (Index i = k + 1; i < n; ++i) {
        if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
      }
      __syncthreads();
      if (lane == 0) pivots[k] = static_cast<int>(pivot);
      each(n, [&](Index j) {
        if (pivot == k) return;
        const double other = a[k * n + j];
        a[k * n + j] = a[pivot * n + j];
        a[pivot * n + j] = other;
      });
      if (a[k * n + k] == 0) {
        regular = false;
        __syncthreads();
        if (lane == 0) a[k * n + k] = instead;
        __syncthreads();
      }
      const double diagonal = a[k * n + k];
      const Index rest = n - k - 1;
      if (diagonal != 0) {
        each(rest, [&](Index i) { a[(k + 1 + i) * n + k] /= diagonal; });
      }
      each(rest * rest, [&](Index i) {
        double* row = a + (k + 1 + i / rest) * n;
        row[k + 1 + i % rest] -= row[k] * a[k * n + k + 1 + i % rest];
      });
    }
    return regular;
  };
  const auto sign_of_factors = [&](const double* a, const int* pivots) -> double {
    double sign = 1;
    for (Index i = 0; i < n; ++i) {
      if (static_cast<Index>(pivots[i]) != i) sign = -sign;
      if (a[i * n + i] < 0) sign = -sign;
      if (a[i * n + i] == 0) sign = 0;
    }
    return sign;
  };
  const auto logarithm_of_factors = [&](const double* a) -> double {
    double sum = 0;
    for (Index i = 0; i < n; ++i) sum += log(fabs(a[i * n + i]));
    return sum;
  };
"""
# A thread solves a column.
_SUBSTITUTE = """
  const auto substitute = [&](
      const double* a, const int* pivots, double* x, Index k, bool turned) {
    each(k, [&](Index j) {
      const auto exchange = [&](Index i) {
        const double other = x[i * k + j];
        x[i * k + j] = x[pivots[i] * k + j];
        x[pivots[i] * k + j] = other;
      };
      for (Index i = 0; !turned && i < n; ++i) exchange(i);
      for (Index i = 0; i < n; ++i) {
        double sum = x[i * k + j];
        for (Index r = 0; r < i; ++r) {
          sum -= (turned ? a[r * n + i] : a[i * n + r]) * x[r * k + j];
        }
        x[i * k + j] = turned ? sum / a[i * n + i] : sum;
      }
      for (Index i = n; i-- > 0;) {
        double sum = x[i * k + j];
        for (Index r = i + 1; r < n; ++r) {
          sum -= (turned ? a[r * n + i] : a[i * n + r]) * x[r * k + j];
        }
        x[i * k + j] = turned ? sum : sum / a[i * n + i];
      }
      for (Index i = n; turned && i-- > 0;) exchange(i);
    });
  };
"""
_ROTATION = """
  const auto rotation = [&](double zeta, double* c, double* s) {
    const double t = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    *c = 1 / sqrt(1 + t * t);
    *s = t * *c;
  };
  const auto rotate = [&](
      double* x, double* y, Index count, Index step, double c, double s) {
    each(count, [&](Index i) {
      const double a = x[i * step], b = y[i * step];
      x[i * step] = c * a - s * b;
      y[i * step] = s * a + c * b;
    });
  };
  const auto dot = [&](const double* x, const double* y, Index count) -> double {
    double sum = 0;
    for (Index i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
  };
  const auto sign_of = [&](const double* x, Index count) -> double {
    double most = 0;
    for (Index i = 0; i < count; ++i) most = most < fabs(x[i]) ? fabs(x[i]) : most;
    for (Index i = 0; i < count; ++i) {
      if (fabs(x[i]) >= most * (1 - 1e-6)) return x[i] < 0 ? -1 : 1;
    }
    return 1;
  };
  // The place of a value in their order; of equal ones, the first comes first.
  const auto place_of = [&](const double* values, Index step, Index count, Index own,
                            bool descending) -> Index {
    Index place = 0;
    for (Index i = 0; i < count; ++i) {
      const double a = descending ? values[own * step] : values[i * step];
      const double b = descending ? values[i * step] : values[own * step];
      place += a < b || (a == b && i < own);
    }
    return place;
  };
"""


def _matrices(
    writer: Writer,
    body: str,
    parameters: Mapping[str, Argument],
    doubles: int,
    helpers: str = "",
) -> None:
    """Append a launch that runs `body` for each matrix m, with scratch of its own."""
    shape = writer.inputs[0].shape
    count = prod(shape[:-2])
    blocks = min(count, _MOST_BLOCKS)
    writer.launch(
        f"""
{_COMMON}{helpers}
  double* memory = scratch + blockIdx.x * each_doubles;
  for (Index m = blockIdx.x; m < count; m += gridDim.x) {{
{body}
    __syncthreads();
  }}
""",
        {
            "const float* input": writer.operand(0),
            "double* scratch": writer.scratch(8 * blocks * doubles),
            "Index each_doubles": writer.number(doubles),
            "Index count": writer.number(count),
            "Index rows": writer.number(shape[-2]),
            "Index n": writer.number(shape[-1]),
            **parameters,
        },
        blocks,
    )


def _write_triangle(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    a = writer.attributes
    rows, columns = writer.inputs[0].shape[-2:]
    writer.loop(
        """
        const long long row = i / columns % rows, column = i % columns;
        const bool kept = lower ? column - row <= offset : column - row >= offset;
        y[i] = kept ? x[i] : 0.0f;
        """,
        {
            "const float* x": writer.operand(0),
            "float* y": writer.output(),
            "Index rows": writer.number(rows),
            "Index columns": writer.number(columns),
            "Index lower": writer.number(int(bool(a["lower"]))),
            "long long offset": i64(a["offset"]),
        },
        writer.inputs[0].size,
    )


def _write_cholesky(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    const float* x = input + m * n * n;
    float* y = output + m * n * n;
    double* a = memory;
    bool known = is_finite(x, n * n);
    load(x, n * n, a);
    for (Index k = 0; known && k < n; ++k) {
      const double diagonal = a[k * n + k];
      known = diagonal > 0;
      if (!known) break;
      const double root = sqrt(diagonal);
      const Index rest = n - k - 1;
      __syncthreads();
      each(rest + 1, [&](Index i) {
        a[(k + i) * n + k] = i ? a[(k + i) * n + k] / root : root;
      });
      each(rest * rest, [&](Index i) {
        const Index r = k + 1 + i / rest, c = k + 1 + i % rest;
        if (c <= r) a[r * n + c] -= a[r * n + k] * a[c * n + k];
      });
    }
    each(n * n, [&](Index i) {
      y[i] = !known ? unknown : i % n > i / n ? 0.0f : static_cast<float>(a[i]);
    });
""",
        {"float* output": writer.output()},
        n * n,
    )


def _write_solve_triangular(writer: Writer) -> None:
    writer.need(["float32", "float32"], ["float32"])
    n, k = writer.inputs[1].shape[-2:]
    a = writer.attributes
    down = bool(a["lower"]) != bool(a["transposed"])
    _matrices(
        writer,
        """
    const float* a = input + m * n * n;
    const float* b = columns + m * n * k;
    float* y = output + m * n * k;
    double* x = memory;
    each(k, [&](Index j) {
      for (Index place = 0; place < n; ++place) {
        const Index i = down ? place : n - 1 - place;
        const Index begin = down ? 0 : i + 1, end = down ? i : n;
        double sum = b[i * k + j];
        for (Index r = begin; r < end; ++r) {
          sum -= (turned ? a[r * n + i] : a[i * n + r]) * x[r * k + j];
        }
        x[i * k + j] = unit ? sum : sum / a[i * n + i];
        y[i * k + j] = static_cast<float>(x[i * k + j]);
      }
    });
""",
        {
            "const float* columns": writer.operand(1),
            "float* output": writer.output(),
            "Index k": writer.number(k),
            "Index down": writer.number(int(down)),
            "Index turned": writer.number(int(bool(a["transposed"]))),
            "Index unit": writer.number(int(bool(a["unit"]))),
        },
        n * k,
    )


def _factors(n: int) -> int:
    """Return the doubles of the factors of a matrix and of the rows exchanged."""
    return n * n + (n + 1) // 2


def _write_solve(writer: Writer) -> None:
    writer.need(["float32", "float32"], ["float32"])
    n, k = writer.inputs[1].shape[-2:]
    _matrices(
        writer,
        """
    const float* b = columns + m * n * k;
    float* y = output + m * n * k;
    double* a = memory;
    int* pivots = reinterpret_cast<int*>(a + n * n);
    double* x = memory + factors;
    bool known = is_finite(input + m * n * n, n * n) && is_finite(b, n * k);
    load(input + m * n * n, n * n, a);
    load(b, n * k, x);
    known = factorize(a, pivots, 0.0) && known;
    if (known) substitute(a, pivots, x, k, turned != 0);
    each(n * k, [&](Index i) { y[i] = known ? static_cast<float>(x[i]) : unknown; });
""",
        {
            "const float* columns": writer.operand(1),
            "float* output": writer.output(),
            "Index k": writer.number(k),
            "Index factors": writer.number(_factors(n)),
            "Index turned": writer.number(
                int(bool(writer.attributes.get("transposed")))
            ),
        },
        _factors(n) + n * k,
        _FACTORIZE + _SUBSTITUTE,
    )


def _write_inverse(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    float* y = output + m * n * n;
    double* a = memory;
    int* pivots = reinterpret_cast<int*>(a + n * n);
    double* x = memory + factors;
    bool known = is_finite(input + m * n * n, n * n);
    load(input + m * n * n, n * n, a);
    identity(x, n, n);
    known = factorize(a, pivots, 0.0) && known;
    if (known) substitute(a, pivots, x, n, false);
    each(n * n, [&](Index i) { y[i] = known ? static_cast<float>(x[i]) : unknown; });
""",
        {
            "float* output": writer.output(),
            "Index factors": writer.number(_factors(n)),
        },
        _factors(n) + n * n,
        _FACTORIZE + _SUBSTITUTE,
    )


def _write_determinant(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    double* a = memory;
    int* pivots = reinterpret_cast<int*>(a + n * n);
    const bool known = is_finite(input + m * n * n, n * n);
    load(input + m * n * n, n * n, a);
    factorize(a, pivots, 0.0);
    double result = sign_of_factors(a, pivots);
    for (Index i = 0; i < n; ++i) result *= fabs(a[i * n + i]);
    if (lane == 0) output[m] = known ? static_cast<float>(result) : unknown;
""",
        {"float* output": writer.output()},
        _factors(n),
        _FACTORIZE,
    )


def _write_cofactors(writer: Writer) -> None:
    writer.need(["float32", "float32"], ["float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    float* y = output + m * n * n;
    double* a = memory;
    int* pivots = reinterpret_cast<int*>(a + n * n);
    double* x = memory + factors;
    const bool known = is_finite(input + m * n * n, n * n) && is_finite(by + m, 1);
    load(input + m * n * n, n * n, a);
    identity(x, n, n);
    factorize(a, pivots, 1e-60);
    if (known) substitute(a, pivots, x, n, true);
    const double sign = sign_of_factors(a, pivots), size = logarithm_of_factors(a);
    each(n * n, [&](Index i) {
      const double value = exp(log(fabs(x[i])) + size);
      const double signed_value = by[m] * sign * (x[i] < 0 ? -value : value);
      y[i] = known ? static_cast<float>(signed_value) : unknown;
    });
""",
        {
            "const float* by": writer.operand(1),
            "float* output": writer.output(),
            "Index factors": writer.number(_factors(n)),
        },
        _factors(n) + n * n,
        _FACTORIZE + _SUBSTITUTE,
    )


def _write_slogdet(writer: Writer) -> None:
    writer.need(["float32"], ["float32", "float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    double* a = memory;
    int* pivots = reinterpret_cast<int*>(a + n * n);
    const bool known = is_finite(input + m * n * n, n * n);
    load(input + m * n * n, n * n, a);
    factorize(a, pivots, 0.0);
    const double sign = sign_of_factors(a, pivots), size = logarithm_of_factors(a);
    if (lane == 0) {
      signs[m] = known ? static_cast<float>(sign) : unknown;
      logarithms[m] = known ? static_cast<float>(size) : unknown;
    }
""",
        {"float* signs": writer.output(0), "float* logarithms": writer.output(1)},
        _factors(n),
        _FACTORIZE,
    )


def _write_lu_factor(writer: Writer) -> None:
    writer.need(["float32"], ["float32", "int32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    double* a = memory;
    load(input + m * n * n, n * n, a);
    factorize(a, pivots + m * n, 0.0);
    each(n * n, [&](Index i) { lu[m * n * n + i] = static_cast<float>(a[i]); });
""",
        {"float* lu": writer.output(0), "int* pivots": writer.output(1)},
        n * n,
        _FACTORIZE,
    )


# Reflects the columns from `first` on; below the diagonal the vector lies in column k.
_REFLECT = """
  const auto reflect = [&](
      const double* a, Index k, double scale, double* x, Index wide, Index first) {
    each(wide > first ? wide - first : 0, [&](Index j) {
      double* column = x + first + j;
      double sum = column[k * wide];
      for (Index i = k + 1; i < rows; ++i) sum += a[i * n + k] * column[i * wide];
      column[k * wide] -= scale * sum;
      for (Index i = k + 1; i < rows; ++i) {
        column[i * wide] -= scale * sum * a[i * n + k];
      }
    });
  };
"""


def _write_qr(writer: Writer) -> None:
    writer.need(["float32"], ["float32", "float32"])
    rows, columns = writer.inputs[0].shape[-2:]
    inner, least = writer.outputs[0].shape[-1], min(rows, columns)
    _matrices(
        writer,
        """
    float* y = left + m * rows * inner;
    float* r = right + m * inner * n;
    double* a = memory;
    double* scales = a + rows * n;
    double* q = scales + least;
    const bool known = is_finite(input + m * rows * n, rows * n);
    load(input + m * rows * n, rows * n, a);
    identity(q, rows, inner);
    for (Index k = 0; known && k < least; ++k) {
      double below = 0;
      for (Index i = k + 1; i < rows; ++i) below = hypot(below, a[i * n + k]);
      const double alpha = a[k * n + k];
      const double size = hypot(alpha, below);
      const double beta = alpha < 0 || (alpha == 0 && 1 / alpha < 0) ? size : -size;
      __syncthreads();
      if (lane == 0) scales[k] = below == 0 ? 0.0 : (beta - alpha) / beta;
      __syncthreads();
      if (below == 0) continue;
      each(rows - k - 1, [&](Index i) { a[(k + 1 + i) * n + k] /= alpha - beta; });
      reflect(a, k, scales[k], a, n, k + 1);
      if (lane == 0) a[k * n + k] = beta;
      __syncthreads();
    }
    each(inner * n, [&](Index i) {
      const double value = i % n < i / n ? 0.0 : a[i];
      r[i] = known ? static_cast<float>(value) : unknown;
    });
    for (Index k = least; known && k-- > 0;) reflect(a, k, scales[k], q, inner, 0);
    each(rows * inner, [&](Index i) {
      y[i] = known ? static_cast<float>(q[i]) : unknown;
    });
""",
        {
            "float* left": writer.output(0),
            "float* right": writer.output(1),
            "Index inner": writer.number(inner),
            "Index least": writer.number(least),
        },
        rows * columns + least + rows * inner,
        _REFLECT,
    )


def _write_eigh(writer: Writer) -> None:
    writer.need(["float32"], ["float32", "float32"])
    n = writer.inputs[0].shape[-1]
    _matrices(
        writer,
        """
    const float* x = input + m * n * n;
    double* a = memory;
    double* v = a + n * n;
    const bool known = is_finite(x, n * n);
    each(n * n, [&](Index i) {
      const Index r = i / n, c = i % n;
      a[i] = c <= r ? x[i] : x[c * n + r];
    });
    identity(v, n, n);
    const double all = dot(a, a, n * n);
    for (int sweep = 0; known && sweep < 60; ++sweep) {
      double rest = 0;
      for (Index i = 0; i < n; ++i) rest += dot(a + i * n, a + i * n, i);
      if (!(rest > all * 1e-34)) break;
      for (Index p = 0; p < n; ++p) {
        for (Index q = p + 1; q < n; ++q) {
          const double between = a[p * n + q];
          if (between == 0) continue;
          double c, s;
          rotation((a[q * n + q] - a[p * n + p]) / (2 * between), &c, &s);
          __syncthreads();
          rotate(a + p * n, a + q * n, n, 1, c, s);
          rotate(a + p, a + q, n, n, c, s);
          if (lane == 0) a[p * n + q] = a[q * n + p] = 0;
          rotate(v + p * n, v + q * n, n, 1, c, s);
        }
      }
    }
    each(n, [&](Index row) {
      const Index k = place_of(a, n + 1, n, row, false);
      const double sign = sign_of(v + row * n, n);
      values[m * n + (known ? k : row)] =
          known ? static_cast<float>(a[row * n + row]) : unknown;
      for (Index i = 0; i < n; ++i) {
        vectors[m * n * n + i * n + (known ? k : row)] =
            known ? static_cast<float>(sign * v[row * n + i]) : unknown;
      }
    });
""",
        {"float* values": writer.output(0), "float* vectors": writer.output(1)},
        2 * n * n,
        _ROTATION,
    )


# The rows of w, the longer side of a matrix, become orthogonal, and v the rotations.
_SINGULAR = """
    const float* x = input + m * rows * n;
    const bool tall = rows >= n;
    const Index small = tall ? n : rows, length = tall ? rows : n;
    double* w = memory;
    double* v = w + small * length;
    double* sizes = v + small * small;
    double* order = sizes + small;
    const bool known = is_finite(x, rows * n);
    each(rows * n, [&](Index i) {
      const Index r = i / n, c = i % n;
      w[tall ? c * length + r : i] = x[i];
    });
    identity(v, small, small);
    for (int sweep = 0; known && sweep < 60; ++sweep) {
      bool done = true;
      for (Index p = 0; p < small; ++p) {
        for (Index q = p + 1; q < small; ++q) {
          double* first = w + p * length;
          double* second = w + q * length;
          const double a = dot(first, first, length), b = dot(second, second, length);
          const double between = dot(first, second, length);
          if (!(fabs(between) > 1e-15 * sqrt(a * b)) || between == 0) continue;
          done = false;
          double c, s;
          rotation((b - a) / (2 * between), &c, &s);
          __syncthreads();
          rotate(first, second, length, 1, c, s);
          rotate(v + p * small, v + q * small, small, 1, c, s);
        }
      }
      if (done) break;
    }
    __syncthreads();
    each(small, [&](Index i) {
      sizes[i] = sqrt(dot(w + i * length, w + i * length, length));
    });
    each(small, [&](Index i) {
      const Index place = place_of(sizes, 1, small, i, true);
      order[known ? place : i] = static_cast<double>(i);
    });
"""
# Rows without a direction get one that is orthogonal to those before.
_COMPLETE = """
    for (Index k = 0; known && k < small; ++k) {
      double* own = w + static_cast<Index>(order[k]) * length;
      const double size = sizes[static_cast<Index>(order[k])];
      if (size > sizes[static_cast<Index>(order[0])] * 1e-15) {
        each(length, [&](Index i) { own[i] /= size; });
        continue;
      }
      const double enough = 0.5 * (length - k) / length;
      for (Index unit = 0; unit < length; ++unit) {
        each(length, [&](Index i) { own[i] = i == unit ? 1.0 : 0.0; });
        for (Index i = 0; i < 2 * k; ++i) {
          const double* other = w + static_cast<Index>(order[i % k]) * length;
          const double share = dot(own, other, length);
          __syncthreads();
          each(length, [&](Index j) { own[j] -= share * other[j]; });
        }
        const double rest = dot(own, own, length);
        __syncthreads();
        if (rest < enough) continue;
        each(length, [&](Index i) { own[i] /= sqrt(rest); });
        break;
      }
    }
"""


def _singular(rows: int, columns: int) -> int:
    """Return the doubles that the singular values of a matrix take."""
    small, length = sorted((rows, columns))
    return small * (length + small + 2)


def _write_svd(writer: Writer) -> None:
    writer.need(["float32"], ["float32"] * 3)
    rows, columns = writer.inputs[0].shape[-2:]
    _matrices(
        writer,
        f"""
{_SINGULAR}
{_COMPLETE}
    each(small, [&](Index k) {{
      const Index row = static_cast<Index>(order[k]);
      const double* u = tall ? w + row * length : v + row * small;
      const double* other = tall ? v + row * small : w + row * length;
      const double sign = sign_of(u, rows);
      values[m * small + k] = known ? static_cast<float>(sizes[row]) : unknown;
      for (Index i = 0; i < rows; ++i) {{
        left[(m * rows + i) * small + k] =
            known ? static_cast<float>(sign * u[i]) : unknown;
      }}
      for (Index i = 0; i < n; ++i) {{
        right[(m * small + k) * n + i] =
            known ? static_cast<float>(sign * other[i]) : unknown;
      }}
    }});
""",
        {
            "float* left": writer.output(0),
            "float* values": writer.output(1),
            "float* right": writer.output(2),
        },
        _singular(rows, columns),
        _ROTATION,
    )


def _write_pseudo_inverse(writer: Writer) -> None:
    writer.need(["float32"], ["float32"])
    rows, columns = writer.inputs[0].shape[-2:]
    _matrices(
        writer,
        f"""
{_SINGULAR}
    each(rows * n, [&](Index place) {{
      const Index i = place / rows, j = place % rows;
      const double least = rcond * sizes[static_cast<Index>(order[0])];
      double sum = 0;
      for (Index k = 0; k < small; ++k) {{  // w is longer than 1 by the value
        if (!(sizes[k] > least)) continue;
        const double of_w = w[k * length + (tall ? j : i)];
        sum += of_w * v[k * small + (tall ? i : j)] / (sizes[k] * sizes[k]);
      }}
      output[m * rows * n + place] = known ? static_cast<float>(sum) : unknown;
    }});
""",
        {
            "float* output": writer.output(),
            "double rcond": f64(writer.attributes["rcond"]),
        },
        _singular(rows, columns),
        _ROTATION,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "triangle": _write_triangle,
    "cholesky": _write_cholesky,
    "solve_triangular": _write_solve_triangular,
    "solve": _write_solve,
    "matrix_inverse": _write_inverse,
    "determinant": _write_determinant,
    "cofactors": _write_cofactors,
    "slogdet": _write_slogdet,
    "lu_factor": _write_lu_factor,
    "qr": _write_qr,
    "eigh": _write_eigh,
    "svd": _write_svd,
    "pseudo_inverse": _write_pseudo_inverse,
}
