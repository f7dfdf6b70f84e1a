// Several axes of an array as one index.
#pragma once

#include <vector>

#include "kernels/spec.hpp"

namespace memcfg {

class Axes {
 public:
  // Lengths and strides are in elements; a stride may be 0 or negative.
  void prepend(Count length, Count stride) {
    axes_.insert(axes_.begin(), {length, stride});
    count_ *= length;
  }
  Count count() const noexcept { return count_; }
  // Where the element of an index lies, the last axis being the fastest.
  Count offset(Count index) const noexcept {
    Count result = 0;
    for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
      result += index % axis->length * axis->stride;
      index /= axis->length;
    }
    return result;
  }

 private:
  struct Axis {
    Count length, stride;
  };
  std::vector<Axis> axes_;
  Count count_ = 1;
};

// Strides of a contiguous array.
inline std::vector<Count> strides_of(const std::vector<Count>& shape) {
  std::vector<Count> strides(shape.size());
  Count stride = 1;
  for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

}  // namespace memcfg
