// CUDA C++ as a C++ compiler for the host reads it: include it before a source.
//
// The threads of a block are fibers of one thread of the host, which change places at
// barriers; blocks run one after the other. A barrier that not all threads of a block
// reach ends the program with a line. Each kernel NAME is described by the exported
// `const cuda_shim::Kernel NAME_kernel`, which CUDA_SHIM_KERNEL(NAME) defines.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define CUDA_SHIM_EXPORT __attribute__((visibility("default")))
#define __global__ CUDA_SHIM_EXPORT
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __syncthreads() cuda_shim::wait_for_block()
#define threadIdx (cuda_shim::here.thread)
#define blockIdx (cuda_shim::here.block)
#define blockDim (cuda_shim::here.threads)
#define gridDim (cuda_shim::here.blocks)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

inline float __int_as_float(int bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __float_as_int(float value) {
  int bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<unsigned long long>(a) * b) >> 32);
}

namespace cuda_shim {

struct Kernel {
  // Runs all blocks; `parameters` has the address of each.
  void (*run)(const dim3& blocks, const dim3& threads, void* const* parameters);
  size_t count;         // of parameters
  const size_t* sizes;  // of each, in bytes
};

// Whether blocks and threads run from the last to the first. No result may depend on
// it.
extern "C" {
CUDA_SHIM_EXPORT inline int cuda_shim_backwards = 0;
}

struct Here {
  dim3 blocks, threads, block, thread;
};
inline thread_local Here here;

[[noreturn]] inline void fail(const char* words) {
  fprintf(stderr, "CUDA shim: %s\n", words);
  abort();
}

// Runs the threads of one block. A fiber that comes to a barrier keeps its thread, and
// another one goes on with the next thread.
class Block {
 public:
  static constexpr unsigned kMost = 1024;            // threads of a block, as on a GPU
  static constexpr size_t kStack = size_t{1} << 16;  // bytes

  using Body = void (*)(void* const* parameters);

  void run(Body body, void* const* parameters) {
    body_ = body;
    parameters_ = parameters;
    count_ = here.threads.x * here.threads.y * here.threads.z;
    if (count_ == 0 || count_ > kMost) fail("a block of no threads, or of too many");
    started_ = ended_ = used_ = 0;
    while (started_ < count_) {  // to the end, or to the first barrier
      begin(used_);
      enter(used_++);
    }
    while (waiting_ > 0) {
      if (ended_ > 0) fail("a barrier that not all threads of the block reach");
      waiting_ = 0;
      const unsigned fibers = used_;
      for (unsigned i = 0; i < fibers; ++i) {
        if (fibers_[i].waits) enter(i);
      }
    }
  }

  [[gnu::noinline]] void wait() {
    Fiber& fiber = fibers_[current_];
    fiber.thread = here.thread;
    fiber.waits = true;
    ++waiting_;
    if (__builtin_setjmp(fiber.place) == 0) leave();
  }

  static Block& of_this_thread() {
    static thread_local Block block;
    return block;
  }

 private:
  struct Fiber {
    ucontext_t context;   // where it begins
    void* place[5] = {};  // where it waits
    char* stack = nullptr;
    dim3 thread;
    bool waits = false;
    ~Fiber() { free(stack); }
  };

  void begin(unsigned place) {
    Fiber& fiber = fibers_[place];
    if (fiber.stack == nullptr) fiber.stack = static_cast<char*>(malloc(kStack));
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Block::run_threads, 0);
    fiber.waits = false;
  }

  [[gnu::noinline]] void enter(unsigned place) {
    Fiber& fiber = fibers_[place];
    const bool began = fiber.waits;
    if (began) {
      fiber.waits = false;
      here.thread = fiber.thread;
    }
    current_ = place;
    if (__builtin_setjmp(back_) == 0) go(fiber, began);
  }

  // Apart, since one function may not set a place and jump. No system calls, as
  // swapcontext has, and nothing that sanitizers look at.
  [[gnu::noinline]] void leave() { __builtin_longjmp(back_, 1); }
  [[gnu::noinline]] static void go(Fiber& fiber, bool began) {
    if (began) __builtin_longjmp(fiber.place, 1);
    setcontext(&fiber.context);
  }

  // The start of a fiber: threads as long as there are any. When one goes on behind a
  // barrier there are none.
  static void run_threads() {
    Block& block = of_this_thread();
    while (block.started_ < block.count_) {
      const unsigned next = block.started_++;
      const unsigned i = cuda_shim_backwards ? block.count_ - 1 - next : next;
      const dim3& size = here.threads;
      here.thread = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      block.body_(block.parameters_);
      ++block.ended_;
    }
    block.leave();
  }

  Fiber fibers_[kMost];
  void* back_[5] = {};
  Body body_ = nullptr;
  void* const* parameters_ = nullptr;
  unsigned count_ = 0, started_ = 0, ended_ = 0, used_ = 0, current_ = 0, waiting_ = 0;
};

inline void wait_for_block() {
  Block::of_this_thread().wait();
}

template <class... Parameters>
struct Call {
  static constexpr size_t sizes[sizeof...(Parameters) + 1] = {sizeof(Parameters)..., 0};

  template <void (*function)(Parameters...), size_t... places>
  static void one(void* const* parameters) {
    function(*static_cast<Parameters*>(parameters[places])...);
  }
  template <void (*function)(Parameters...), size_t... places>
  static void all(const dim3& blocks, const dim3& threads, void* const* parameters) {
    here.blocks = blocks;
    here.threads = threads;
    const size_t count = size_t{blocks.x} * blocks.y * blocks.z;
    for (size_t next = 0; next < count; ++next) {
      const size_t i = cuda_shim_backwards ? count - 1 - next : next;
      here.block = {static_cast<unsigned>(i % blocks.x),
                    static_cast<unsigned>(i / blocks.x % blocks.y),
                    static_cast<unsigned>(i / blocks.x / blocks.y)};
      Block::of_this_thread().run(&one<function, places...>, parameters);
    }
  }
};

template <size_t... places>
struct Places {};
template <size_t count, size_t... places>
struct Counted : Counted<count - 1, count - 1, places...> {};
template <size_t... places>
struct Counted<0, places...> {
  using type = Places<places...>;
};

template <auto function>
struct Description;
template <class... Parameters, void (*function)(Parameters...)>
struct Description<function> {
  using Its = Call<Parameters...>;
  template <size_t... places>
  static constexpr Kernel made(Places<places...>) {
    return {&Its::template all<function, places...>, sizeof...(Parameters), Its::sizes};
  }
  static constexpr Kernel kernel =
      made(typename Counted<sizeof...(Parameters)>::type());
};

}  // namespace cuda_shim

#define CUDA_SHIM_KERNEL(name)                                       \
  extern "C" CUDA_SHIM_EXPORT const cuda_shim::Kernel name##_kernel; \
  const cuda_shim::Kernel name##_kernel = cuda_shim::Description<&name>::kernel;
