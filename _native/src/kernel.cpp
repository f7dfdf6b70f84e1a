#include "memcfg/kernel.hpp"

#include <stdexcept>

#include "kernels/factories.hpp"
#include "memcfg/fork_lock.hpp"

namespace memcfg {
namespace {

struct OwnRow {
  const char* type;
  KernelPtr (*make)(const KernelSpec&);
};

struct LibraryRow {
  const char* type;
  KernelPtr (*make)(const KernelSpec&, const OneDnn&);
};

constexpr LibraryRow kOnLibrary[] = {
    {"conv2d", make_conv2d},
    {"conv2d_gradient_input", make_conv2d_gradient_input},
    {"conv2d_gradient_kernel", make_conv2d_gradient_kernel},
    {"dense", make_dense},
    {"dense_gradient_input", make_dense_gradient_input},
    {"dense_gradient_kernel", make_dense_gradient_kernel},
};

constexpr OwnRow kOwn[] = {
    {"adam", make_adam},
    {"add", make_add},
    {"average_pool2d", make_average_pool2d},
    {"average_pool2d_gradient", make_average_pool2d_gradient},
    {"batch_normalization", make_batch_normalization},
    {"batch_normalization_gradient", make_batch_normalization_gradient},
    {"batch_normalization_inference", make_batch_normalization_inference},
    {"bias", make_bias},
    {"bias_gradient", make_bias_gradient},
    {"correct_count", make_correct_count},
    {"dropout", make_dropout},
    {"flatten", make_copy},
    {"global_average_pool2d", make_global_average_pool2d},
    {"global_average_pool2d_gradient", make_global_average_pool2d_gradient},
    {"max_pool2d", make_max_pool2d},
    {"max_pool2d_gradient", make_max_pool2d_gradient},
    {"max_pool2d_inference", make_max_pool2d_inference},
    {"moving_average", make_moving_average},
    {"relu", make_relu},
    {"relu_gradient", make_relu_gradient},
    {"reshape", make_copy},
    {"sgd", make_sgd},
    {"sgd_momentum", make_sgd_momentum},
    {"softmax_cross_entropy", make_softmax_cross_entropy},
    {"softmax_cross_entropy_gradient", make_softmax_cross_entropy_gradient},
    {"softmax_cross_entropy_inference", make_softmax_cross_entropy_inference},
};

}  // namespace

std::unique_ptr<Kernel> make_kernel(const KernelSpec& spec, const OneDnn* library) {
  for (const OwnRow& row : kOwn) {
    if (spec.type == row.type) return row.make(spec);
  }
  for (const LibraryRow& row : kOnLibrary) {
    if (spec.type != row.type) continue;
    if (library == nullptr) {
      throw std::invalid_argument("kernel '" + spec.type + "' needs oneDNN");
    }
    const NoFork inside;  // its caches have locks that a child would find held
    return row.make(spec, *library);
  }
  throw std::invalid_argument("there is no kernel of type '" + spec.type + "'");
}

}  // namespace memcfg
