// dense, with and without a bias, and its gradients: one matrix product each, on
// oneDNN.
#include "kernels/product.hpp"

namespace memcfg {
namespace {

using namespace onednn;

struct Extents {
  Dim m, k, n;

  // x[m, k], y[m, n], whichever of them is an output.
  Extents(const SpecReader& reader, const OperandSpec& x, const OperandSpec& y) {
    m = reader.narrow(reader.rows(x).rows, "rows");
    k = reader.narrow(reader.rows(x).channels, "inputs");
    n = reader.narrow(reader.rows(y).channels, "units");
    if (reader.rows(y).rows != m) reader.fail("has an output of other rows");
    reader.product({k, n});
  }
  Bytes x_bytes() const { return float_bytes(m * k); }
  Bytes kernel_bytes() const { return float_bytes(k * n); }
  Bytes y_bytes() const { return float_bytes(m * n); }
};

// y[M, N] = x[M, K] kernel[K, N]
KernelPtr make_dense(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.inputs[0], spec.outputs[0]);
  const Matrix x{s.m, s.k, s.k, 1}, kernel{s.k, s.n, s.n, 1};
  const Kernel::Sizes sizes{{s.x_bytes(), s.kernel_bytes()}, {s.y_bytes()}};
  return std::make_unique<Product>(library, sizes, x, kernel, 0, 1);
}

// y[M, N] = x[M, K] kernel[K, N] + bias[N]
KernelPtr make_dense_bias(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.inputs[0], spec.outputs[0]);
  if (reader.count(spec.inputs[2]) != s.n) reader.fail("has a bias of other units");
  const Matrix x{s.m, s.k, s.k, 1}, kernel{s.k, s.n, s.n, 1};
  const Kernel::Sizes sizes{{s.x_bytes(), s.kernel_bytes(), float_bytes(s.n)},
                            {s.y_bytes()}};
  return std::make_unique<Product>(library, sizes, x, kernel, 0, 1, true);
}

// dkernel[K, N] = x[M, K]^T dy[M, N]
KernelPtr make_dense_gradient_kernel(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.inputs[0], spec.inputs[1]);
  const Matrix x{s.k, s.m, 1, s.k}, dy{s.m, s.n, s.n, 1};
  const Kernel::Sizes sizes{{s.x_bytes(), s.y_bytes()}, {s.kernel_bytes()}};
  return std::make_unique<Product>(library, sizes, x, dy, 0, 1);
}

// dx[M, K] = dy[M, N] kernel[K, N]^T
KernelPtr make_dense_gradient_input(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kFloat32, kFloat32}, {kFloat32});
  const Extents s(reader, spec.outputs[0], spec.inputs[1]);
  const Matrix dy{s.m, s.n, s.n, 1}, kernel{s.n, s.k, 1, s.n};
  const Kernel::Sizes sizes{{s.kernel_bytes(), s.y_bytes()}, {s.x_bytes()}};
  return std::make_unique<Product>(library, sizes, dy, kernel, 1, 0);
}

const KernelType kDense{"dense", make_dense};
const KernelType kDenseBias{"dense_bias", make_dense_bias};
const KernelType kDenseGradientKernel{"dense_gradient_kernel",
                                      make_dense_gradient_kernel};
const KernelType kDenseGradientInput{"dense_gradient_input", make_dense_gradient_input};

}  // namespace
}  // namespace memcfg
