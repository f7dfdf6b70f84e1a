// oneDNN 3, loaded at run time: the door through which kernels reach it.
#pragma once

#include <memory>
#include <string>

#include "memcfg/onednn_abi.h"
#include "memcfg/types.hpp"

namespace memcfg {

// A loaded library with one CPU engine and one in-order stream.
//
// Copies share the library; kernels hold a copy, so the object that a kernel was
// made from may go first. The library's code stays mapped until the process ends
// (its OpenMP threads may still be in it). Calls through `api()` are thread safe, as
// long as each object that they change, a memory object above all, has one user.
class OneDnn {
 public:
  // Loads the file at `path` with its symbols kept local. Throws
  // std::runtime_error when it cannot be loaded, is older than 3.0, lacks a
  // function, or names an enumerator otherwise than memcfg expects.
  explicit OneDnn(const std::string& path);

  std::string version() const;  // "3.2.0"
  // Whether convolutions and products take bfloat16 here, and whether the processor
  // multiplies them (`fast`) rather than is made to by instructions on float.
  bool has_bfloat16() const noexcept;
  bool has_fast_bfloat16() const noexcept;
  // Whether the processor adds up products of 8 bits in 32.
  bool has_int8_products() const noexcept;

  const onednn::Api& api() const noexcept { return state_->api; }
  onednn::Engine* engine() const noexcept { return state_->engine; }
  onednn::Stream* stream() const noexcept { return state_->stream; }
  // Tags of blocks of 16 rows by 64 and by 32 columns; 0 if the library has none.
  int wide_blocks() const noexcept { return state_->wide_blocks; }
  int narrow_blocks() const noexcept { return state_->narrow_blocks; }

  // Throws std::runtime_error naming `what` unless status is success.
  void check(onednn::Status status, const char* what) const;

 private:
  struct State : private NoCopy {
    State() = default;
    ~State();
    onednn::Api api;
    onednn::Engine* engine = nullptr;
    onednn::Stream* stream = nullptr;
    int wide_blocks = 0, narrow_blocks = 0;
  };
  std::shared_ptr<State> state_;
};

}  // namespace memcfg
