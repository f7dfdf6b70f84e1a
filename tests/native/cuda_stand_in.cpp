// The stand-in as a library that is loaded as the driver is; `memcfg_stand_in_*` are
// the tests' own.
#include "cuda_stand_in.hpp"

using cuda_stand_in::Call;
using cuda_stand_in::Gpu;
using cuda_stand_in::gpu;

[[gnu::used]] static const cuda_stand_in::abi::Api exported = cuda_stand_in::api();

extern "C" {

void memcfg_stand_in_machine(std::size_t memory, int count, int virtual_memory) {
  gpu().memory = memory;
  gpu().count = count;
  gpu().virtual_memory = virtual_memory;
}

// Which call of the virtual memory that is announced the driver refuses; empty: none.
void memcfg_stand_in_refuse(const char* call) {
  gpu().refused = call;
}

// Another library begins a capture that forbids the calls of all threads, and ends it;
// whether nothing has broken it.
static cuda_stand_in::abi::Stream* foreign = nullptr;
void memcfg_stand_in_begin_foreign(bool blocking) {
  using namespace cuda_stand_in;
  gpu().foreign = true;
  cuCtxPushCurrent_v2(reinterpret_cast<abi::Context*>(&contexts[0]));
  cuStreamCreateWithPriority(&foreign, blocking ? 0 : abi::kNonBlocking, 0);
  cuStreamBeginCapture_v2(foreign, 0);
  gpu().foreign = false;
}
bool memcfg_stand_in_end_foreign() {
  using namespace cuda_stand_in;
  gpu().foreign = true;
  abi::Graph* graph = nullptr;
  const Status status = cuStreamEndCapture(foreign, &graph);
  if (graph != nullptr) cuGraphDestroy(graph);
  cuStreamDestroy_v2(foreign);
  abi::Context* popped = nullptr;
  cuCtxPopCurrent_v2(&popped);
  gpu().foreign = false;
  return status == 0;
}

// Whether work is done when somebody waits, in an order that the seed chooses.
void memcfg_stand_in_late(bool late, unsigned seed) {
  gpu().late = late;
  gpu().random.seed(seed);
}

// After so many calls one fails, or all that follow; below 0: none.
void memcfg_stand_in_fail_calls(long after, bool once) {
  gpu().calls_left = after < 0 ? 1L << 60 : after;
  gpu().once = once;
}

// After so many pieces of work one fails, and with it all that follow; below 0: none,
// and what has failed works again.
void memcfg_stand_in_fail_work(long after) {
  gpu().work_left = after < 0 ? 1L << 60 : after;
  if (after < 0) gpu().failure = 0;
}

long memcfg_stand_in_calls() {
  return gpu().calls;
}
std::size_t memcfg_stand_in_used() {
  return gpu().used;
}
std::size_t memcfg_stand_in_peak() {
  return gpu().most;
}
void memcfg_stand_in_reset_peak() {
  gpu().most = gpu().used;
}
bool memcfg_stand_in_pending() {
  return gpu().pending();
}
bool memcfg_stand_in_all_back() {
  return gpu().all_back();
}
}
