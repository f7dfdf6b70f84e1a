#include "memcfg/program.hpp"

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

constexpr unsigned char kTouched = 0xC7;  // any value: reports use several canaries

bool is_finite(const void* address) noexcept {
  float value;
  std::memcpy(&value, address, sizeof value);
  return std::isfinite(value);
}

}  // namespace

// Writes the last byte of the scratch that a kernel is about to get.
void Program::touch_scratch(const Instruction& instruction) noexcept {
  if (instruction.scratch == nullptr) return;
  auto* const room = static_cast<unsigned char*>(instruction.scratch);
  room[instruction.kernel->scratch_bytes() - 1] = kTouched;
}

void CallbackKernel::run(void* const*, void*, RunState*) const {
  if (call_foreign(function_, context_) != 0) throw callback_raised();
}

// One thread's turn with an arena: others are refused, not queued. All programs of an
// arena overwrite each other's rooms, so one flag serves them all.
class Program::Turn {
 public:
  explicit Turn(Program& program) : program_(program) {
    if (busy().exchange(true)) {
      throw std::runtime_error("the program's arena is in use by another thread");
    }
  }
  ~Turn() { busy().store(false); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& busy() noexcept { return program_.pin_.arena().busy(); }

  Program& program_;
};

Program::Program(std::shared_ptr<Arena> arena) : pin_(std::move(arena)) {}

void* Program::place(Offset offset, Bytes size) const {
  const Bytes end = pin_.arena().size();
  if (offset % kAlignment != 0) {
    throw std::invalid_argument("offset " + std::to_string(offset) +
                                " is not a multiple of " + std::to_string(kAlignment));
  }
  if (size > end || offset > end - size) {
    throw std::invalid_argument(std::to_string(size) + " bytes at offset " +
                                std::to_string(offset) + " leave the arena of " +
                                std::to_string(end) + " bytes");
  }
  return pin_.arena().base() + offset;
}

// The instruction comes last: what a failure before it leaves behind is not referred
// to.
void Program::append(const Instruction& instruction,
                     const std::vector<void*>& operands) {
  operands_.insert(operands_.end(), operands.begin(), operands.end());
  instructions_.push_back(instruction);
}

// Pre: the kernel is kept alive.
Kernel::RunState* Program::state_of(const Kernel& kernel) {
  const auto found = states_.find(&kernel);
  if (found != states_.end()) return found->second.get();
  return states_.emplace(&kernel, kernel.make_run_state()).first->second.get();
}

void Program::compute(std::shared_ptr<const Kernel> kernel,
                      const std::vector<Offset>& offsets,
                      const std::vector<Bytes>& sizes,
                      std::optional<Offset> scratch) {
  const Turn turn(*this);
  if (kernel == nullptr) throw std::invalid_argument("no kernel");
  const auto& declared = kernel->operands();
  if (offsets.size() != declared.size() || sizes.size() != declared.size()) {
    throw std::invalid_argument("the kernel has " + std::to_string(declared.size()) +
                                " operands, got " + std::to_string(offsets.size()) +
                                " offsets and " + std::to_string(sizes.size()) +
                                " sizes");
  }
  std::vector<void*> operands;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (sizes[i] < declared[i].size) {
      throw std::invalid_argument("operand " + std::to_string(i) + " needs " +
                                  std::to_string(declared[i].size) + " bytes, got " +
                                  std::to_string(sizes[i]));
    }
    operands.push_back(place(offsets[i], sizes[i]));
  }
  const Bytes needed = kernel->scratch_bytes();
  if (needed > 0 && !scratch) {
    throw std::invalid_argument("the kernel needs " + std::to_string(needed) +
                                " bytes of scratch");
  }
  void* const room = needed > 0 ? place(*scratch, needed) : nullptr;
  kernels_.push_back(std::move(kernel));
  const Kernel& kept = *kernels_.back();
  append({&kept, operands_.size(), room, state_of(kept)}, operands);
}

void Program::guard(Offset offset) {
  const Turn turn(*this);
  void* const operand = place(offset, sizeof(float));
  append({nullptr, operands_.size(), nullptr, nullptr}, {operand});
}

// The index of an operand in operands_. An instruction's end where the next's begin.
std::size_t Program::find(const Operand& operand) const {
  const std::size_t next = operand.instruction + 1;
  if (operand.instruction < instructions_.size()) {
    const std::size_t end = next < instructions_.size()
                                ? instructions_[next].first_operand
                                : operands_.size();
    const std::size_t begin = instructions_[operand.instruction].first_operand;
    if (operand.position < end - begin) return begin + operand.position;
  }
  throw std::invalid_argument("instruction " + std::to_string(operand.instruction) +
                              " has no operand " + std::to_string(operand.position));
}

std::size_t Program::input(const std::vector<Operand>& operands, Bytes size) {
  const Turn turn(*this);
  if (operands.empty()) throw std::invalid_argument("an input without operands");
  Input made{{}, operands_[find(operands.front())], size};
  for (const Operand& operand : operands) {
    made.operands.push_back(find(operand));
    if (operands_[made.operands.back()] != made.home) {
      throw std::invalid_argument("the operands of an input lie at several places");
    }
    const Kernel* const kernel = instructions_[operand.instruction].kernel;
    if (kernel == nullptr) continue;  // a guard reads
    const Kernel::Operand& declared = kernel->operands()[operand.position];
    if (declared.size > size) {
      throw std::invalid_argument("an input of " + std::to_string(size) +
                                  " bytes is read as one of " +
                                  std::to_string(declared.size));
    }
  }
  inputs_.push_back(std::move(made));
  return inputs_.size() - 1;
}

Program::Input& Program::find_input(std::size_t input) {
  if (input < inputs_.size()) return inputs_[input];
  throw std::invalid_argument("there is no input " + std::to_string(input));
}

void Program::send(const Input& input, void* address) noexcept {
  for (const std::size_t operand : input.operands) operands_[operand] = address;
}

bool Program::bind(std::size_t input, const void* address, Bytes size) {
  const Turn turn(*this);
  const Input& found = find_input(input);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto base = reinterpret_cast<std::uintptr_t>(pin_.arena().base());
  const bool outside =
      begin >= base + pin_.arena().capacity() || (begin < base && size <= base - begin);
  if (begin % kAlignment != 0 || size != found.size || !outside) return false;
  send(found, const_cast<void*>(address));  // kernels take void*, and only read there
  return true;
}

void Program::unbind(std::size_t input) {
  const Turn turn(*this);
  const Input& found = find_input(input);
  send(found, found.home);
}

void Program::execute_one(std::size_t index) {
  const Instruction& instruction = instructions_[index];
  try {
    instruction.kernel->run(operands_.data() + instruction.first_operand,
                            instruction.scratch,
                            instruction.state);
  } catch (const callback_raised&) {
    throw;
  } catch (const std::exception& error) {
    throw kernel_failure("instruction " + std::to_string(index) +
                         " failed: " + error.what());
  }
}

std::int64_t Program::execute(bool heed_guards, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    if (instructions_[i].kernel != nullptr) {
      execute_one(i);
    } else if (heed_guards && !is_finite(operands_[instructions_[i].first_operand])) {
      return static_cast<std::int64_t>(i);
    }
  }
  return kEnded;
}

std::int64_t Program::run(bool heed_guards,
                          int threads,
                          std::size_t begin,
                          std::size_t end) {
  const Turn turn(*this);
  const ThreadCount count(threads);
  return execute(heed_guards, begin, end);
}

std::vector<double> Program::run_timed(int threads) {
  using Clock = std::chrono::steady_clock;
  const Turn turn(*this);
  const ThreadCount count(threads);
  std::vector<double> seconds(instructions_.size(), 0.0);
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    if (instructions_[i].kernel == nullptr) continue;
    touch_scratch(instructions_[i]);
    const Clock::time_point start = Clock::now();
    execute_one(i);
    seconds[i] = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return seconds;
}

}  // namespace memcfg
