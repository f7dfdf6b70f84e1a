// Element-wise ops as expressions: the loops that were compiled with the library.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/function_kernel.hpp"
#include "kernels/functions.hpp"
#include "kernels/powers.hpp"

namespace memcfg {

// The kernel of an op whose attribute `expression` says what an element is.
KernelPtr make_expression(const KernelSpec& spec);

// The same in some columns of matrices. The spec's operands, all float32, are [rows,
// columns] or one number; rows of operand i, inputs first, begin `strides[i]` elements
// apart. The call takes the addresses of the operands.
using RowLoop = std::function<void(void* const* operands)>;
RowLoop make_row_expression(const KernelSpec& spec, std::vector<Count> strides);

// A compiled loop over `count` elements. `inputs` and `outputs` have an array for each
// operand of the op; `uniform` has the numbers that the elements read, in the order of
// their instructions. One is a constant in the source
// that the build writes (see `_native/generate.py`); that it is there makes it known.
class CompiledLoop : private NoCopy {
 public:
  using Run = void (*)(const float* const* inputs,
                       float* const* outputs,
                       const float* uniform,
                       Count count);

  CompiledLoop(const char* text, Run run) noexcept
      : text_(text), run_(run), next_(std::exchange(first(), this)) {}

  // Null for an expression that was not compiled.
  static Run find(const std::string& text) noexcept {
    const CompiledLoop* loop = first();
    while (loop != nullptr && text != loop->text_) loop = loop->next_;
    return loop == nullptr ? nullptr : loop->run_;
  }

 private:
  static const CompiledLoop*& first() noexcept {
    static const CompiledLoop* loop = nullptr;
    return loop;
  }

  const char* text_;
  Run run_;
  const CompiledLoop* next_;
};

}  // namespace memcfg
