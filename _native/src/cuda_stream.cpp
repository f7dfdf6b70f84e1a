#include "memcfg/cuda_stream.hpp"

#include <mutex>
#include <stdexcept>
#include <utility>

#include "memcfg/error.hpp"

namespace memcfg {
namespace {

using Current = CudaContext::Current;

// Whether the status of a query says that the work is done; throws if it is an error.
bool is_done(const CudaContext& context, cuda::Status status, const char* what) {
  if (status == cuda::status::not_ready) return false;
  context.check(status, what);
  return true;
}

}  // namespace

CudaEvent::CudaEvent(std::shared_ptr<const CudaContext> context, bool timing)
    : context_(std::move(context)) {
  const Current current(*context_);
  current.require();
  const unsigned flags = timing ? 0 : cuda::kDisableTiming;
  context_->check(context_->api().cuEventCreate(&handle_, flags), "cuEventCreate");
}

CudaEvent::~CudaEvent() {
  const Current current(*context_);
  if (current) context_->api().cuEventDestroy_v2(handle_);
}

void CudaEvent::synchronize() const {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuEventSynchronize(handle_), "cuEventSynchronize");
}

bool CudaEvent::done() const {
  const Current current(*context_);
  current.require();
  return is_done(*context_, context_->api().cuEventQuery(handle_), "cuEventQuery");
}

double CudaEvent::seconds_since(const CudaEvent& earlier) const {
  const Current current(*context_);
  current.require();
  float milliseconds = 0;
  context_->check(
      context_->api().cuEventElapsedTime(&milliseconds, earlier.handle_, handle_),
      "cuEventElapsedTime");
  return static_cast<double>(milliseconds) / 1000;
}

CudaModule::CudaModule(std::shared_ptr<const CudaContext> context,
                       const std::string& image)
    : context_(std::move(context)) {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuModuleLoadData(&handle_, image.c_str()),
                  "cuModuleLoadData");
}

CudaModule::~CudaModule() {
  const Current current(*context_);
  if (!current) return;
  context_->wait();
  context_->api().cuModuleUnload(handle_);
}

cuda::Function* CudaModule::find(const std::string& name) const {
  const Current current(*context_);
  current.require();
  cuda::Function* found = nullptr;
  const cuda::Status status =
      context_->api().cuModuleGetFunction(&found, handle_, name.c_str());
  if (status == cuda::status::not_found) {
    throw kernel_failure("the module has no kernel '" + name + "'");
  }
  context_->check(status, "cuModuleGetFunction");
  return found;
}

CudaFunction::CudaFunction(std::shared_ptr<const CudaModule> module,
                           const std::string& name)
    : module_(std::move(module)), handle_(module_->find(name)) {}

void CudaFunction::allow_shared(unsigned nbytes) const {
  if (nbytes <= shared_) return;
  // The driver keeps the number of the last call. A smaller one would be too small for
  // another thread that is about to launch the kernel with more.
  const std::lock_guard<std::mutex> lock(mutex_);
  if (nbytes <= shared_) return;
  const CudaContext& context = module_->context();
  context.check(context.api().cuFuncSetAttribute(
                    handle_, cuda::kMaxDynamicSharedMemory, static_cast<int>(nbytes)),
                "cuFuncSetAttribute");
  shared_ = nbytes;
}

CudaGraph::CudaGraph(std::shared_ptr<const CudaContext> context, cuda::Graph* recording)
    : context_(std::move(context)) {
  const Current current(*context_);
  current.require();
  const cuda::Api& api = context_->api();
  cuda::Status status = api.cuGraphGetNodes(recording, nullptr, &nodes_);
  const char* what = "cuGraphGetNodes";
  if (status == 0) {
    status = api.cuGraphInstantiateWithFlags(&handle_, recording, 0);
    what = "cuGraphInstantiate";
  }
  api.cuGraphDestroy(recording);
  context_->check(status, what);
}

CudaGraph::~CudaGraph() {
  const Current current(*context_);
  if (current) context_->api().cuGraphExecDestroy(handle_);  // after a launch has run
}

CudaStream::CudaStream(std::shared_ptr<const CudaContext> context, int priority)
    : context_(std::move(context)) {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuStreamCreateWithPriority(
                      &handle_, cuda::kNonBlocking, priority),
                  "cuStreamCreateWithPriority");
  try {
    context_->add(handle_);
  } catch (...) {
    context_->api().cuStreamDestroy_v2(handle_);
    throw;
  }
}

CudaStream::~CudaStream() {
  const Current current(*context_);
  if (!current) return;
  if (capturing_) {
    cuda::Graph* graph = nullptr;
    context_->end_capture(handle_, &graph);
    if (graph != nullptr) context_->api().cuGraphDestroy(graph);
  }
  context_->wait(handle_);  // cuStreamDestroy does not, and nobody could afterwards
  context_->remove(handle_);
  context_->api().cuStreamDestroy_v2(handle_);
}

void CudaStream::synchronize() const {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuStreamSynchronize(handle_), "cuStreamSynchronize");
}

bool CudaStream::done() const {
  const Current current(*context_);
  current.require();
  return is_done(*context_, context_->api().cuStreamQuery(handle_), "cuStreamQuery");
}

void CudaStream::record(const CudaEvent& event) const {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuEventRecord(event.handle(), handle_),
                  "cuEventRecord");
}

void CudaStream::wait(const CudaEvent& event) const {
  const Current current(*context_);
  current.require();
  context_->check(context_->wait_event(handle_, event.handle()), "cuStreamWaitEvent");
}

void CudaStream::copy(cuda::Address target, cuda::Address source, Bytes size) const {
  if (size == 0) return;
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuMemcpyAsync(target, source, size, handle_),
                  "cuMemcpyAsync");
}

void CudaStream::fill(cuda::Address target, unsigned char byte, Bytes size) const {
  if (size == 0) return;
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuMemsetD8Async(target, byte, size, handle_),
                  "cuMemsetD8Async");
}

void CudaStream::launch(const CudaFunction& function,
                        const Shape& grid,
                        const Shape& block,
                        unsigned shared_bytes,
                        void** arguments) const {
  const Current current(*context_);
  current.require();
  function.allow_shared(shared_bytes);
  context_->check(context_->api().cuLaunchKernel(function.handle(),
                                                 grid[0],
                                                 grid[1],
                                                 grid[2],
                                                 block[0],
                                                 block[1],
                                                 block[2],
                                                 shared_bytes,
                                                 handle_,
                                                 arguments,
                                                 nullptr),
                  "cuLaunchKernel");
}

void CudaStream::launch(const CudaGraph& graph) const {
  const Current current(*context_);
  current.require();
  context_->check(context_->api().cuGraphLaunch(graph.handle(), handle_),
                  "cuGraphLaunch");
}

void CudaStream::begin_capture() {
  const Current current(*context_);
  current.require();
  context_->check(context_->begin_capture(handle_), "cuStreamBeginCapture");
  capturing_ = true;
}

std::unique_ptr<CudaGraph> CudaStream::end_capture() {
  const Current current(*context_);
  current.require();
  if (!capturing_.exchange(false)) {
    throw kernel_failure("no capture was begun on this stream");
  }
  cuda::Graph* recording = nullptr;
  const cuda::Status status = context_->end_capture(handle_, &recording);
  if (status != 0 && recording != nullptr) context_->api().cuGraphDestroy(recording);
  context_->check(status, "cuStreamEndCapture");
  return std::make_unique<CudaGraph>(context_, recording);
}

}  // namespace memcfg
