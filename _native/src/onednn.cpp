#include "memcfg/onednn.hpp"

#include <dlfcn.h>

#include <array>
#include <stdexcept>
#include <string>

#include "memcfg/forks.hpp"

namespace memcfg {
namespace {

using onednn::Api;

void* open_library(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* reason = dlerror();
    throw std::runtime_error("cannot load oneDNN from '" + path +
                             "': " + (reason != nullptr ? reason : "unknown error"));
  }
  return handle;
}

void* find(void* handle, const char* name) {
  void* address = dlsym(handle, name);
  if (address == nullptr) {
    throw std::runtime_error(std::string("this oneDNN library has no function '") +
                             name + "'; version 3.0 or newer is needed");
  }
  return address;
}

void check_version(const Api& api) {
  const onednn::Version* version = api.version();
  if (version->major != 3) {
    throw std::runtime_error("oneDNN 3.x is needed, but this library is version " +
                             std::to_string(version->major) + "." +
                             std::to_string(version->minor));
  }
}

// The library's own name of an enumerator against the one that memcfg means.
void check_enumerators(const Api& api) {
  struct Row {
    const char* (*name_of)(int);
    int value;
    const char* name;
  };
  const std::array<Row, 13> rows{{
      {api.status2str, onednn::kLast, "last_impl_reached"},
      {api.dt2str, onednn::data_type::f32, "f32"},
      {api.dt2str, onednn::data_type::bf16, "bf16"},
      {api.dt2str, onednn::data_type::s32, "s32"},
      {api.dt2str, onednn::data_type::s8, "s8"},
      {api.dt2str, onednn::data_type::u8, "u8"},
      {api.fmt_tag2str, onednn::kTagAny, "any"},
      {api.engine_kind2str, onednn::kCpu, "cpu"},
      {api.scratchpad_mode2str, onednn::kUserScratchpad, "user"},
      {api.prop_kind2str, onednn::propagation::forward_training, "forward_training"},
      {api.alg_kind2str, onednn::algorithm::convolution_direct, "convolution_direct"},
      {api.alg_kind2str, onednn::algorithm::binary_add, "binary_add"},
      {api.alg_kind2str, onednn::algorithm::binary_mul, "binary_mul"},
  }};
  for (const Row& row : rows) {
    const std::string found = row.name_of(row.value);
    if (found != row.name) {
      throw std::runtime_error("this oneDNN library calls '" + found +
                               "' what memcfg knows as '" + row.name +
                               "'; its binary interface is not supported");
    }
  }
}

// A format tag's number, which is another in other versions; 0 if there is none.
int find_tag(const Api& api, const std::string& name) {
  constexpr int kTags = 4096;  // no version has so many
  for (int tag = onednn::kTagAny + 1; tag < kTags; ++tag) {
    const std::string found = api.fmt_tag2str(tag);
    if (found == name) return tag;
    if (found.rfind("unknown", 0) == 0) break;
  }
  return 0;
}

}  // namespace

OneDnn::State::~State() {
  if (stream != nullptr) api.stream_destroy(stream);
  if (engine != nullptr) api.engine_destroy(engine);
}

OneDnn::OneDnn(const std::string& path) : state_(std::make_shared<State>()) {
  void* handle = open_library(path);
  Api& api = state_->api;
#define MEMCFG_ONEDNN_LOAD(name, result, parameters) \
  api.name = reinterpret_cast<result(*) parameters>(find(handle, "dnnl_" #name));
  using namespace onednn;
  MEMCFG_ONEDNN_FUNCTIONS(MEMCFG_ONEDNN_LOAD)
#undef MEMCFG_ONEDNN_LOAD
  check_version(api);
  check_enumerators(api);
  const NoFork inside;  // what it sets up once for the process is whole in a child
  check(api.engine_create(&state_->engine, kCpu, 0), "making the CPU engine");
  check(api.stream_create(&state_->stream, state_->engine, kInOrder),
        "making the stream");
  state_->wide_blocks = find_tag(api, "BA16a64b");
  state_->narrow_blocks = find_tag(api, "BA16a32b");
}

std::string OneDnn::version() const {
  const onednn::Version* version = state_->api.version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

bool OneDnn::has_bfloat16() const noexcept {
  const unsigned isa = state_->api.get_effective_cpu_isa();
  return (isa & onednn::kAvx512Core) == onednn::kAvx512Core;
}

bool OneDnn::has_fast_bfloat16() const noexcept {
  const unsigned isa = state_->api.get_effective_cpu_isa();
  return (isa & onednn::kAvx512Bfloat16) == onednn::kAvx512Bfloat16;
}

bool OneDnn::has_int8_products() const noexcept {
  const unsigned isa = state_->api.get_effective_cpu_isa();
  return (isa & onednn::kAvx512Int8) == onednn::kAvx512Int8 ||
         (isa & onednn::kAvx2Int8) == onednn::kAvx2Int8;
}

void OneDnn::check(onednn::Status status, const char* what) const {
  if (status == 0) return;
  throw std::runtime_error(std::string("oneDNN failed in ") + what + ": " +
                           state_->api.status2str(status));
}

}  // namespace memcfg
