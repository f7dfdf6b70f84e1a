// A GPU that is none, over memory of the host: what lies in its memory, and streams of
// work, which is done late: when somebody waits, in any order that is allowed.
//
// What a device address points to lies elsewhere, so that a touch by the host ends the
// program; only while a kernel runs it lies there. New memory holds garbage. Whoever
// breaks a rule of the driver's ends the program with a line that says which.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "memcfg/cuda_abi.h"
#include "systems.hpp"

namespace cuda_stand_in {

namespace abi = memcfg::cuda;
using abi::Address;
using abi::Handle;
using abi::Status;

inline constexpr std::size_t kPage = std::size_t{1} << 21;  // bytes; its granularity
inline constexpr unsigned char kGarbage = 0xA5;
inline constexpr int kMaxGpus = 8;
inline constexpr std::size_t kMaxPinned = std::size_t{1} << 28;  // bytes of a block

inline void demand(bool holds, const char* what) {
  if (holds) return;
  std::printf("CUDA stand-in: %s\n", what);
  std::fflush(stdout);
  std::abort();
}

inline Address number(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}
inline void* pointer(Address address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}
inline std::size_t whole(std::size_t size) {  // in pages of the host
  return (size + 4095) / 4096 * 4096;
}

// Past the sanitizers, which would note each page.
inline void* map_memory(
    void* at, std::size_t size, int access, int flags, int file, long) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, size, access, flags, file, 0L));
}
inline void unmap_memory(void* at, std::size_t size) {
  syscall(SYS_munmap, at, size);
}

// All past `operator new`, which a test may have made fail.
template <typename T>
using Rows =
    std::map<Address, T, std::less<>, PlainAllocator<std::pair<const Address, T>>>;

// A file of memory, and where the stand-in itself has it.
struct Store {
  int file;
  unsigned char* bytes;
};

// Memory of the device, as long as a handle, a mapping or a block refers to it.
class Physical {
 public:
  Physical(std::size_t nbytes, int owner) : size(nbytes), device(owner) {
    auto& kept = spare()[room()];
    if (kept.empty()) kept.push_back(make(room()));
    store_ = kept.back();
    kept.pop_back();
    static const std::vector<unsigned char, PlainAllocator<unsigned char>> garbage(
        kPage, kGarbage);
    for (std::size_t at = 0; at < size; at += kPage) {
      const long count = static_cast<long>(std::min(size - at, kPage));
      demand(syscall(SYS_pwrite64, store_.file, garbage.data(), count, at) == count,
             "no memory");
    }
  }
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
  ~Physical();

  void map(Address address) const {
    demand(map_memory(pointer(address),
                      whole(size),
                      PROT_NONE,
                      MAP_SHARED | MAP_FIXED,
                      store_.file,
                      0) != MAP_FAILED,
           "no addresses");
  }

  unsigned char* bytes() const { return store_.bytes; }

  const std::size_t size;
  const int device;

 private:
  // What has gone is kept for the next of its size: new memory is slow to touch.
  static Rows<std::vector<Store, PlainAllocator<Store>>>& spare() {
    static auto* const kept = new Rows<std::vector<Store, PlainAllocator<Store>>>;
    return *kept;
  }
  static Store make(std::size_t size) {
    const int file = memfd_create("memory", MFD_CLOEXEC);
    demand(file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0, "no memory");
    void* const found =
        map_memory(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    demand(found != MAP_FAILED, "no memory");
    return {file, static_cast<unsigned char*>(found)};
  }
  std::size_t room() const { return (size + kPage - 1) / kPage * kPage; }

  Store store_;
};

// -- work ----------------------------------------------------------------------------

struct Mark {  // what an event has recorded
  bool reached = false;
  double seconds = 0;
};

struct Work {
  virtual ~Work() = default;
  virtual bool ready() const { return true; }
  virtual bool advance() = 0;  // does some of it; true when all is done
  virtual bool uses(Address first, std::size_t size) const = 0;
  virtual bool runs(const struct Module*) const { return false; }
  virtual std::shared_ptr<Work> fresh() const = 0;  // the same, undone
};

struct Node {  // of a graph
  std::shared_ptr<Work> work;
  std::set<std::size_t> after;  // nodes
};

struct Capture {
  int mode = abi::kRelaxedCapture;
  bool valid = true;
  bool on = true;
  std::vector<Node> nodes;
};

struct Stream {
  int context;
  int priority;
  std::deque<std::shared_ptr<Work>> queue = {};
  std::shared_ptr<Capture> capture = nullptr;
  bool began = false;                // the capture
  std::set<std::size_t> after = {};  // nodes that its next one follows
  bool blocking = false;             // the default stream waits for it
  bool own = false;                  // the machine's: a default stream
};

struct Event {
  unsigned flags;
  std::shared_ptr<Mark> mark = nullptr;  // null: never recorded
  std::shared_ptr<Capture> capture = nullptr;
  std::set<std::size_t> after = {};
};

struct Graph {
  std::vector<Node> nodes;
};

struct Code {  // of a kernel: a library that is a module exports it as NAME_kernel
  void (*run)(const unsigned* grid, const unsigned* block, void* const* arguments);
  std::size_t count;         // of the parameters
  const std::size_t* sizes;  // of each, in bytes
};

struct Module {
  void* library = nullptr;   // null: of `Gpu::kernels`
  int* backwards = nullptr;  // whether it runs blocks and threads from the last one on
};

struct Function {
  const Module* module;
  Code code;
  int max_shared = abi::kSharedByDefault;
};

// One machine with GPUs. Tests change what is public.
struct Gpu {
  std::size_t memory = std::size_t{1} << 30;  // bytes of each
  int virtual_memory = 1;                     // whether it is announced
  std::string refused;  // the call of virtual memory that is refused all the same
  int count = 1;        // of GPUs; 0: cuInit finds none
  long calls_left = 1L << 60;  // then calls fail that may fail,
  bool once = false;           // or just one does
  long calls = 0;              // so far, that may fail
  long work_left =
      1L << 60;          // then a piece of work fails, and with it all that follows
  bool late = true;      // false: work is done as it comes
  bool busy = false;     // work is queued that uses memory; a wait ends it
  bool foreign = false;  // another library calls, with streams and captures of its kind
  std::map<std::string, Code> kernels;  // of the module with the image "kernels"

  std::recursive_mutex mutex;  // guards all below, and the calls of all threads
  pid_t process = getpid();
  std::size_t used = 0;                      // of all GPUs
  std::size_t used_by[kMaxGpus] = {};        // of each
  std::size_t most = 0;                      // highest `used`
  int retained = 0;                          // of the primary contexts
  Handle handles = 0;                        // so far
  Rows<std::shared_ptr<Physical>> physical;  // by handle
  struct Mapping {
    std::shared_ptr<Physical> bytes;
    bool access;
  };
  Rows<Mapping> mapped;  // by page
  Rows<std::size_t> reserved;
  Rows<std::shared_ptr<Physical>> blocks;  // of cuMemAlloc
  Rows<std::size_t> pinned;

  std::minstd_rand random;
  Status failure = 0;  // of work; every call that waits tells it
  std::map<Stream*, std::unique_ptr<Stream>> streams;
  std::map<std::thread::id, Stream*> per_thread;  // default streams
  Stream* legacy = nullptr;                       // the one of all threads
  std::set<Event*> events;
  std::set<Graph*> graphs;  // recorded
  std::map<Graph*, std::shared_ptr<Graph>> executables;
  std::map<Module*, std::unique_ptr<Module>> modules;
  std::map<Function*, std::unique_ptr<Function>> functions;

  bool all_back() const {
    const auto own = [](const auto& row) { return row.second->own; };
    return used == 0 && retained == 0 && physical.empty() && mapped.empty() &&
           reserved.empty() && blocks.empty() && pinned.empty() &&
           std::all_of(streams.begin(), streams.end(), own) && events.empty() &&
           graphs.empty() && executables.empty() && modules.empty();
  }

  bool pending() const {
    return std::any_of(streams.begin(), streams.end(), [](const auto& row) {
      return !row.second->queue.empty();
    });
  }
  bool pending(const Module* module) const {
    for (const auto& [stream, kept] : streams) {
      for (const auto& work : kept->queue) {
        if (work->runs(module)) return true;
      }
    }
    return false;
  }
  bool pending(Address first, std::size_t size) const {
    for (const auto& [stream, kept] : streams) {
      for (const auto& work : kept->queue) {
        if (work->uses(first, size)) return true;
      }
    }
    return false;
  }

  // Does a piece of work of any stream that has some; false if none has.
  bool step() {
    std::vector<Stream*> ready;
    for (const auto& [stream, kept] : streams) {
      if (!kept->queue.empty() && kept->queue.front()->ready()) ready.push_back(stream);
    }
    if (ready.empty()) return false;
    Stream& next = *ready[random() % ready.size()];
    if (work_left-- == 0) failure = abi::status::launch_failed;
    if (failure != 0) {  // nothing is done any more, but what waits may go on
      for (const auto& [stream, kept] : streams) kept->queue.clear();
      return true;
    }
    if (next.queue.front()->advance()) next.queue.pop_front();
    return true;
  }

  template <typename Condition>
  void until(Condition holds) {
    while (!holds()) {
      if (failure != 0) return;
      demand(step(), "a wait for what never comes");
    }
  }
  void finish() {
    until([this] { return !pending(); });
    busy = false;
  }

  // Pre: a GPU is current.
  Stream& default_stream(Stream*& place, int context) {
    if (place == nullptr) {
      auto made = std::make_unique<Stream>(Stream{context, 0});
      made->own = true;
      place = made.get();
      streams.emplace(place, std::move(made));
    }
    return *place;
  }

  // Whether calls of a thread whose mode is not relaxed break a capture.
  bool captures_globally() const {
    return std::any_of(streams.begin(), streams.end(), [](const auto& row) {
      const auto& capture = row.second->capture;
      return capture != nullptr && capture->mode != abi::kRelaxedCapture;
    });
  }
  bool captures_blocking() const {
    return std::any_of(streams.begin(), streams.end(), [](const auto& row) {
      return row.second->capture != nullptr && row.second->blocking;
    });
  }
};

inline Gpu& gpu() {
  static Gpu* const only = new Gpu;
  return *only;
}

inline Physical::~Physical() {
  gpu().used -= size;
  gpu().used_by[device] -= size;
  spare()[room()].push_back(store_);
}

inline Address addresses(std::size_t size, std::size_t alignment) {
  void* const found = map_memory(nullptr,
                                 size + alignment,
                                 PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                 -1,
                                 0);
  demand(found != MAP_FAILED, "no addresses");
  const Address start = number(found);
  const Address first = (start + alignment - 1) / alignment * alignment;
  if (first > start) unmap_memory(found, first - start);
  if (start + alignment > first) {
    unmap_memory(pointer(first + size), start + alignment - first);
  }
  return first;
}

// What was mapped is addresses again.
inline void unmap_addresses(Address address, std::size_t size) {
  demand(map_memory(pointer(address),
                    size,
                    PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                    -1,
                    0) != MAP_FAILED,
         "no addresses");
}

inline std::shared_ptr<Physical> take(std::size_t size, int device) {
  Gpu& here = gpu();
  if (size > here.memory || here.used_by[device] > here.memory - size) return nullptr;
  here.used += size;
  here.used_by[device] += size;
  here.most = std::max(here.most, here.used);
  return std::allocate_shared<Physical>(PlainAllocator<Physical>(), size, device);
}

// Where `count` bytes at an address lie; null: not in one block or accessible page.
inline unsigned char* bytes_at(Address address, std::size_t count) {
  Gpu& here = gpu();
  const auto block = here.blocks.upper_bound(address);
  if (block != here.blocks.begin()) {
    const auto& [start, bytes] = *std::prev(block);
    if (address - start + count <= bytes->size)
      return bytes->bytes() + (address - start);
  }
  const auto page = here.mapped.find(address / kPage * kPage);
  if (page == here.mapped.end() || !page->second.access) return nullptr;
  if (address % kPage + count > kPage) return nullptr;
  return page->second.bytes->bytes() + address % kPage;
}

inline bool is_pinned(Address address, std::size_t count) {
  const auto next = gpu().pinned.upper_bound(address);
  if (next == gpu().pinned.begin()) return false;
  const auto& [start, size] = *std::prev(next);
  return address + count <= start + size;
}

// Whether an address is the device's, with memory or without.
inline bool is_device(Address address) {
  const auto next = gpu().reserved.upper_bound(address);
  if (next != gpu().reserved.begin()) {
    const auto& [start, size] = *std::prev(next);
    if (address < start + size) return true;
  }
  return bytes_at(address, 1) != nullptr;
}

// Calls `act(bytes, offset, count)` for each piece of a range of the device's or the
// host's.
template <typename Act>
void each_piece(Address address, std::size_t count, Act act) {
  if (!is_device(address)) {
    act(static_cast<unsigned char*>(pointer(address)), std::size_t{0}, count);
    return;
  }
  for (std::size_t at = 0; at < count;) {
    std::size_t piece = count - at;
    unsigned char* bytes = bytes_at(address + at, piece);
    if (bytes == nullptr) {
      piece = std::min(piece, kPage - (address + at) % kPage);
      bytes = bytes_at(address + at, piece);
    }
    demand(bytes != nullptr, "work on memory that is not there");
    act(bytes, at, piece);
    at += piece;
  }
}

inline bool overlap(Address a, std::size_t na, Address b, std::size_t nb) {
  return a < b + nb && b < a + na;
}

struct Copy final : Work {
  Copy(Address to, Address from, std::size_t nbytes)
      : target(to), source(from), size(nbytes) {}
  bool advance() override {
    std::vector<unsigned char> data(size);
    each_piece(source, size, [&](unsigned char* bytes, std::size_t at, std::size_t n) {
      std::memcpy(data.data() + at, bytes, n);
    });
    each_piece(target, size, [&](unsigned char* bytes, std::size_t at, std::size_t n) {
      std::memcpy(bytes, data.data() + at, n);
    });
    return true;
  }
  bool uses(Address first, std::size_t nbytes) const override {
    return overlap(source, size, first, nbytes) || overlap(target, size, first, nbytes);
  }
  std::shared_ptr<Work> fresh() const override { return std::make_shared<Copy>(*this); }
  const Address target;
  const Address source;
  const std::size_t size;
};

struct Fill final : Work {
  Fill(Address to, unsigned char with, std::size_t nbytes)
      : target(to), byte(with), size(nbytes) {}
  bool advance() override {
    each_piece(target, size, [&](unsigned char* bytes, std::size_t, std::size_t n) {
      std::memset(bytes, byte, n);
    });
    return true;
  }
  bool uses(Address first, std::size_t nbytes) const override {
    return overlap(target, size, first, nbytes);
  }
  std::shared_ptr<Work> fresh() const override { return std::make_shared<Fill>(*this); }
  const Address target;
  const unsigned char byte;
  const std::size_t size;
};

// While one lives the host can touch the memory of the device.
class Open {
 public:
  Open() { protect(PROT_READ | PROT_WRITE); }
  ~Open() { protect(PROT_NONE); }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;

 private:
  static void protect(int how) {
    for (const auto& [address, bytes] : gpu().blocks) {
      mprotect(pointer(address), whole(bytes->size), how);
    }
    for (const auto& [address, page] : gpu().mapped) {
      if (page.access) mprotect(pointer(address), kPage, how);
    }
  }
};

// The begin of the reservation, block or pinned memory that has an address; 0: none
// has.
inline Address home_of(Address address) {
  const auto of = [address](const auto& rows, auto size_of) -> Address {
    const auto next = rows.upper_bound(address);
    if (next == rows.begin()) return 0;
    const auto& [start, what] = *std::prev(next);
    return address < start + size_of(what) ? start : 0;
  };
  const auto plain = [](std::size_t size) { return size; };
  Address found = of(gpu().reserved, plain);
  if (found == 0) found = of(gpu().pinned, plain);
  if (found == 0) found = of(gpu().blocks, [](const auto& b) { return b->size; });
  return found;
}

struct Launch final : Work {
  bool advance() override {
    demand(gpu().functions.count(function) == 1, "a kernel of an unloaded module");
    std::vector<void*> addresses;
    for (auto& each : arguments) addresses.push_back(each.data());
    if (int* const backwards = function->module->backwards) {
      *backwards = gpu().random() % 2;
    }
    const Open open;
    function->code.run(grid, block, addresses.data());
    return true;
  }
  // Whether an argument, or a part of one, lies in the same memory; who knows where.
  bool uses(Address first, std::size_t) const override {
    const Address home = home_of(first);
    for (const auto& each : arguments) {
      for (std::size_t at = 0; at + sizeof(Address) <= each.size(); at += 8) {
        Address value = 0;
        std::memcpy(&value, each.data() + at, sizeof value);
        if (home != 0 && home_of(value) == home) return true;
      }
    }
    return false;
  }
  bool runs(const Module* module) const override { return function->module == module; }
  std::shared_ptr<Work> fresh() const override {
    return std::make_shared<Launch>(*this);
  }
  Function* function = nullptr;
  unsigned grid[3] = {};
  unsigned block[3] = {};
  std::vector<std::vector<unsigned char>> arguments;
};

struct Record final : Work {
  explicit Record(std::shared_ptr<Mark> what) : mark(std::move(what)) {}
  bool advance() override {
    mark->reached = true;
    mark->seconds = std::chrono::duration<double>(
                        std::chrono::steady_clock::now().time_since_epoch())
                        .count();
    return true;
  }
  bool uses(Address, std::size_t) const override { return false; }
  std::shared_ptr<Work> fresh() const override { return nullptr; }
  const std::shared_ptr<Mark> mark;
};

struct Wait final : Work {
  explicit Wait(std::shared_ptr<Mark> what) : mark(std::move(what)) {}
  bool ready() const override { return mark->reached; }
  bool advance() override { return true; }
  bool uses(Address, std::size_t) const override { return false; }
  std::shared_ptr<Work> fresh() const override { return nullptr; }
  const std::shared_ptr<Mark> mark;
};

// A graph that was launched: its nodes in any order that its edges allow.
struct Replay final : Work {
  explicit Replay(std::shared_ptr<const Graph> what) : graph(std::move(what)) {
    for (const Node& node : graph->nodes) left.push_back(node.work->fresh());
  }
  bool advance() override {
    std::vector<std::size_t> ready;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const std::set<std::size_t>& after = graph->nodes[i].after;
      if (left[i] != nullptr && std::all_of(after.begin(), after.end(), [&](auto one) {
            return left[one] == nullptr;
          })) {
        ready.push_back(i);
      }
    }
    if (ready.empty()) return true;
    std::shared_ptr<Work>& next = left[ready[gpu().random() % ready.size()]];
    if (next->advance()) next = nullptr;
    return ready.size() == 1 &&
           std::all_of(left.begin(), left.end(), [](auto& one) { return !one; });
  }
  bool uses(Address first, std::size_t size) const override {
    return std::any_of(left.begin(), left.end(), [&](const auto& one) {
      return one != nullptr && one->uses(first, size);
    });
  }
  bool runs(const Module* module) const override {
    return std::any_of(left.begin(), left.end(), [&](const auto& one) {
      return one != nullptr && one->runs(module);
    });
  }
  std::shared_ptr<Work> fresh() const override {
    return std::make_shared<Replay>(graph);
  }
  const std::shared_ptr<const Graph> graph;
  std::vector<std::shared_ptr<Work>> left;  // null: done
};

}  // namespace cuda_stand_in
