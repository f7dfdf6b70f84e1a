// A program: kernels bound to places in an arena, run in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "memcfg/arena.hpp"
#include "memcfg/kernel.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Calls back into the language above, which knows where its operands lie. The function
// returns 0, or -1 when it failed; it has kept the reason then, and the program stops
// with callback_raised.
class CallbackKernel final : public Kernel {
 public:
  using Function = int (*)(void* context);
  CallbackKernel(Function function, void* context, const Sizes& sizes = {})
      : Kernel(sizes), function_(function), context_(context) {}
  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  Function function_;
  void* context_;  // not owned
};

// A list of instructions, each a kernel with its operands' addresses or a guard. Built
// once, then run any number of times; no two programs of an arena are at work at once.
// Running takes no memory. Pins its arena and shares its kernels.
//
// Invariant: every operand has the bytes that its kernel declares. It and every scratch
// lie, 64-byte aligned, inside the bytes that the arena had when the instruction was
// added (it never shrinks, and its base never moves); those of a bound input lie,
// 64-byte aligned, outside of the arena.
class Program {
 public:
  static constexpr std::int64_t kEnded = -1;

  // Which operand: inputs, then outputs, counted from 0.
  struct Operand {
    std::size_t instruction;
    std::size_t position;
  };

  explicit Program(std::shared_ptr<Arena> arena);

  // Appends a kernel. Operands: inputs, then outputs, each with `sizes[i]` bytes from
  // `offsets[i]` in the arena. Throws std::invalid_argument when they are not as many
  // as the kernel declares, one has fewer bytes, a place is outside the arena or
  // unaligned, or scratch is missing; nothing was appended then.
  void compute(std::shared_ptr<const Kernel> kernel,
               const std::vector<Offset>& offsets,
               const std::vector<Bytes>& sizes,
               std::optional<Offset> scratch);

  // Appends a guard: a run that heeds guards stops here unless the float32 at
  // `offset` is finite.
  void guard(Offset offset);

  // Declares an input of `size` bytes: all operands that stand for its bytes, so that
  // runs can read them elsewhere. Pre: their kernels take addresses with each run and
  // do not write there (a copy in place writes nothing). Returns the input's number.
  // Throws std::invalid_argument when an operand does not exist or has more bytes, or
  // they lie at several places.
  std::size_t input(const std::vector<Operand>& operands, Bytes size);

  // Has runs read an input at `address`, which the caller keeps alive, until `unbind`.
  // Returns false, and nothing changed, unless it is 64-byte aligned, of the input's
  // size, and outside of the arena.
  bool bind(std::size_t input, const void* address, Bytes size);

  // Has runs read an input in the arena again.
  void unbind(std::size_t input);

  // Runs with at most `threads` OpenMP threads (0: as many as OpenMP would). Returns
  // kEnded, or the index of the instruction that is the guard that stopped it. Throws
  // kernel_failure with the instruction's index, callback_raised, or
  // std::runtime_error when another thread is in it.
  std::int64_t run(bool heed_guards, int threads) {
    return run(heed_guards, threads, 0, size());
  }
  // The same of the instructions from `begin` to before `end`.
  std::int64_t run(bool heed_guards, int threads, std::size_t begin, std::size_t end);

  // Runs to the end, guards unheeded: seconds of each instruction. For reports that
  // look for the highest byte that a step touches, it first writes the last byte of
  // each instruction's scratch: libraries pad their scratch for alignment and may leave
  // its end alone, and a room that a kernel was given is in use.
  std::vector<double> run_timed(int threads);

  std::size_t size() const noexcept { return instructions_.size(); }

 private:
  struct Instruction {
    const Kernel* kernel;       // null: a guard on the first operand
    std::size_t first_operand;  // index into operands_
    void* scratch;
    Kernel::RunState* state;
  };
  struct Input {
    std::vector<std::size_t> operands;  // indices into operands_
    void* home;                         // their place in the arena
    Bytes size;
  };
  class Turn;

  std::size_t find(const Operand& operand) const;
  Input& find_input(std::size_t input);
  void send(const Input& input, void* address) noexcept;
  void* place(Offset offset, Bytes size) const;
  Kernel::RunState* state_of(const Kernel& kernel);
  void append(const Instruction& instruction, const std::vector<void*>& operands);
  std::int64_t execute(bool heed_guards, std::size_t begin, std::size_t end);
  void execute_one(std::size_t index);
  static void touch_scratch(const Instruction& instruction) noexcept;

  Pin pin_;
  std::vector<Instruction> instructions_;
  std::vector<void*> operands_;
  std::vector<Input> inputs_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;  // keeps them alive
  // This program's own, by kernel: its instructions run one after another.
  std::unordered_map<const Kernel*, std::unique_ptr<Kernel::RunState>> states_;
};

}  // namespace memcfg
