// Every factory of an op kernel, by the noun of the file that defines it, and the
// small class that most of them return.
#pragma once

#include <memory>
#include <utility>

#include "kernels/spec.hpp"
#include "memcfg/kernel.hpp"
#include "memcfg/onednn.hpp"

namespace memcfg {

// A kernel that is one callable: body(operands, scratch).
template <class Body>
class FunctionKernel final : public Kernel {
 public:
  FunctionKernel(const Sizes& sizes, Bytes scratch_bytes, Body body)
      : Kernel(sizes), scratch_bytes_(scratch_bytes), body_(std::move(body)) {}
  Bytes scratch_bytes() const noexcept override { return scratch_bytes_; }
  void run(void* const* operands, void* scratch, RunState*) const override {
    body_(operands, scratch);
  }

 private:
  Bytes scratch_bytes_;
  Body body_;
};

template <class Body>
std::unique_ptr<Kernel> function_kernel(const Kernel::Sizes& sizes,
                                        Bytes scratch_bytes,
                                        Body body) {
  return std::make_unique<FunctionKernel<Body>>(sizes, scratch_bytes, std::move(body));
}

// An operand as an array. Pre: the op declares that type for it.
inline const float* input(void* const* operands, int index) {
  return static_cast<const float*>(operands[index]);
}
inline float* output(void* const* operands, int index) {
  return static_cast<float*>(operands[index]);
}

using KernelPtr = std::unique_ptr<Kernel>;

// On oneDNN.
KernelPtr make_conv2d(const KernelSpec& spec, const OneDnn& library);
KernelPtr make_conv2d_gradient_kernel(const KernelSpec& spec, const OneDnn& library);
KernelPtr make_conv2d_gradient_input(const KernelSpec& spec, const OneDnn& library);
KernelPtr make_dense(const KernelSpec& spec, const OneDnn& library);
KernelPtr make_dense_gradient_kernel(const KernelSpec& spec, const OneDnn& library);
KernelPtr make_dense_gradient_input(const KernelSpec& spec, const OneDnn& library);

// Our own.
KernelPtr make_add(const KernelSpec& spec);
KernelPtr make_adam(const KernelSpec& spec);
KernelPtr make_average_pool2d(const KernelSpec& spec);
KernelPtr make_average_pool2d_gradient(const KernelSpec& spec);
KernelPtr make_batch_normalization(const KernelSpec& spec);
KernelPtr make_batch_normalization_gradient(const KernelSpec& spec);
KernelPtr make_batch_normalization_inference(const KernelSpec& spec);
KernelPtr make_bias(const KernelSpec& spec);
KernelPtr make_bias_gradient(const KernelSpec& spec);
KernelPtr make_copy(const KernelSpec& spec);
KernelPtr make_correct_count(const KernelSpec& spec);
KernelPtr make_dropout(const KernelSpec& spec);
KernelPtr make_global_average_pool2d(const KernelSpec& spec);
KernelPtr make_global_average_pool2d_gradient(const KernelSpec& spec);
KernelPtr make_max_pool2d(const KernelSpec& spec);
KernelPtr make_max_pool2d_gradient(const KernelSpec& spec);
KernelPtr make_max_pool2d_inference(const KernelSpec& spec);
KernelPtr make_moving_average(const KernelSpec& spec);
KernelPtr make_relu(const KernelSpec& spec);
KernelPtr make_relu_gradient(const KernelSpec& spec);
KernelPtr make_sgd(const KernelSpec& spec);
KernelPtr make_sgd_momentum(const KernelSpec& spec);
KernelPtr make_softmax_cross_entropy(const KernelSpec& spec);
KernelPtr make_softmax_cross_entropy_gradient(const KernelSpec& spec);
KernelPtr make_softmax_cross_entropy_inference(const KernelSpec& spec);

}  // namespace memcfg
