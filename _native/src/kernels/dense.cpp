// dense, with and without a bias, an array that is added and a ReLU, and its gradients:
// one matrix product each, on oneDNN but for what it does not multiply in blocks.
#include "kernels/chained_product.hpp"
#include "kernels/product.hpp"
#include "kernels/row_product.hpp"

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
};

// Operands that are all of one type, but for the gradient of a kernel, which is
// float32.
struct Types {
  int inputs, output;

  Types(const KernelSpec& spec, const SpecReader& reader, bool gradient)
      : inputs(type_of(reader, spec.inputs[0])),
        output(type_of(reader, spec.outputs[0])) {
    const bool same = spec.inputs[0].dtype == spec.inputs[1].dtype;
    if (!same || output != (gradient ? data_type::f32 : inputs)) {
      reader.fail("has operands of one type, and float32 gradients of kernels");
    }
  }
};

Kernel::Sizes sizes(const KernelSpec& spec, const SpecReader& reader) {
  return {{reader.bytes(spec.inputs[0]), reader.bytes(spec.inputs[1])},
          {reader.bytes(spec.outputs[0])}};
}

// A product of an op: which operands, and what they are.
struct Factors {
  Kernel::Sizes sizes;
  Matrix left, right;
  int left_operand, right_operand, output;  // of that type
  Epilogue epilogue = {};
};

// y[M, N] = x[M, K] kernel[K, N]
Factors dense_factors(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype, kAnyDtype}, {kAnyDtype});
  const Extents s(reader, spec.inputs[0], spec.outputs[0]);
  const Types types(spec, reader, false);
  return {sizes(spec, reader),
          {s.m, s.k, s.k, 1, 1, 0, types.inputs},
          {s.k, s.n, s.n, 1, 1, 0, types.inputs},
          0,
          1,
          types.output};
}

// y[M, N] = x[M, K] kernel[K, N] + bias[N], perhaps + other[M, N], and a ReLU of it
template <bool sum, bool relu>
Factors dense_bias_factors(const KernelSpec& spec) {
  SpecReader::Dtypes inputs{kAnyDtype, kAnyDtype, kFloat32};
  if (sum) inputs.push_back(kFloat32);
  const SpecReader reader(spec, inputs, {kAnyDtype});
  const Extents s(reader, spec.inputs[0], spec.outputs[0]);
  if (reader.count(spec.inputs[2]) != s.n) reader.fail("has a bias of other units");
  const Types types(spec, reader, false);
  Kernel::Sizes bytes = sizes(spec, reader);
  bytes.inputs.push_back(float_bytes(s.n));
  if (sum) {
    if (spec.inputs[3].shape != spec.outputs[0].shape) {
      reader.fail("adds an array of another shape");
    }
    bytes.inputs.push_back(float_bytes(s.m * s.n));
  }
  return {bytes,
          {s.m, s.k, s.k, 1, 1, 0, types.inputs},
          {s.k, s.n, s.n, 1, 1, 0, types.inputs},
          0,
          1,
          types.output,
          {true, {sum, relu}}};
}

// dkernel[K, N] = x[M, K]^T dy[M, N]
KernelPtr make_dense_gradient_kernel(const KernelSpec& spec, const OneDnn& library) {
  const SpecReader reader(spec, {kAnyDtype, kAnyDtype}, {kAnyDtype});
  const Extents s(reader, spec.inputs[0], spec.inputs[1]);
  const Types types(spec, reader, true);
  const Matrix x{s.k, s.m, 1, s.k, 1, 0, types.inputs};
  const Matrix dy{s.m, s.n, s.n, 1, 1, 0, types.inputs};
  return std::make_unique<Product>(
      library, sizes(spec, reader), x, dy, 0, 1, types.output);
}

// dx[M, K] = dy[M, N] kernel[K, N]^T
Factors gradient_input_factors(const KernelSpec& spec) {
  const SpecReader reader(spec, {kAnyDtype, kAnyDtype}, {kAnyDtype});
  const Extents s(reader, spec.outputs[0], spec.inputs[1]);
  const Types types(spec, reader, false);
  return {sizes(spec, reader),
          {s.m, s.n, s.n, 1, 1, 0, types.inputs},
          {s.n, s.k, 1, s.n, 1, 0, types.inputs},
          1,
          0,
          types.output};
}

// Whether a product has a matrix whose rows lie one after another, which oneDNN does
// not multiply in blocks.
bool is_plain(const OneDnn& library, const Factors& f) {
  const bool plain =
      f.right.column_stride == 1 && f.right.row_stride == f.right.columns;
  return plain && f.left_operand == 0 && f.left.type == data_type::f32 &&
         f.output == data_type::f32 &&
         !is_in_blocks(library, f.left, f.right, f.epilogue);
}

// A thread multiplies so many rows by a section of a matrix in less time than the next
// section takes to be read.
constexpr Dim kRowsOfThread = 16;

// Products {beside_read} run while another thread reads what is multiplied next.
template <Factors (*factors)(const KernelSpec&)>
KernelPtr make(const KernelSpec& spec, const OneDnn& library) {
  const Factors f = factors(spec);
  const Dim rows = f.left.rows, steps = f.right.rows, columns = f.right.columns;
  const int threads =
      spec.attributes.count("beside_read") == 0
          ? 0
          : static_cast<int>((rows + kRowsOfThread - 1) / kRowsOfThread);
  if (is_plain(library, f)) {
    const auto [sum, relu, scaled] = f.epilogue.post;
    static_cast<void>(scaled);
    const bool bias = f.epilogue.bias;
    if (rows == 1) {
      return std::make_unique<OneRowProduct>(
          f.sizes, steps, columns, bias, sum, relu, threads);
    }
    return std::make_unique<ChainedProduct>(
        f.sizes,
        ChainedProduct::Extents{rows, steps, columns},
        bias,
        sum,
        relu,
        threads);
  }
  return std::make_unique<Product>(library,
                                   f.sizes,
                                   f.left,
                                   f.right,
                                   f.left_operand,
                                   f.right_operand,
                                   f.output,
                                   f.epilogue,
                                   threads);
}

template <Factors (*factors)(const KernelSpec&)>
std::optional<Packing> pack(const KernelSpec& spec, const OneDnn& library) {
  const Factors f = factors(spec);
  return pack_product(
      library, f.sizes, f.left, f.right, f.left_operand, f.right_operand, f.epilogue);
}

const KernelType kDense{
    "dense", make<dense_factors>, nullptr, Floats::bfloat16, pack<dense_factors>};
const KernelType kDenseBias{"dense_bias",
                            make<dense_bias_factors<false, false>>,
                            nullptr,
                            Floats::bfloat16,
                            pack<dense_bias_factors<false, false>>};
const KernelType kDenseBiasRelu{"dense_bias_relu",
                                make<dense_bias_factors<false, true>>,
                                nullptr,
                                Floats::bfloat16,
                                pack<dense_bias_factors<false, true>>};
const KernelType kDenseBiasAdd{"dense_bias_add",
                               make<dense_bias_factors<true, false>>,
                               nullptr,
                               Floats::float32,
                               pack<dense_bias_factors<true, false>>};
const KernelType kDenseBiasAddRelu{"dense_bias_add_relu",
                                   make<dense_bias_factors<true, true>>,
                                   nullptr,
                                   Floats::float32,
                                   pack<dense_bias_factors<true, true>>};
const KernelType kDenseGradientKernel{
    "dense_gradient_kernel", make_dense_gradient_kernel, nullptr, Floats::bfloat16};
const KernelType kDenseGradientInput{"dense_gradient_input",
                                     make<gradient_input_factors>,
                                     nullptr,
                                     Floats::bfloat16,
                                     pack<gradient_input_factors>};

}  // namespace
}  // namespace memcfg
