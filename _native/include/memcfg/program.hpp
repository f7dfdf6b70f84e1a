// A program: instructions over memory spaces, run in order on several queues.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memcfg/arena.hpp"
#include "memcfg/codec.hpp"
#include "memcfg/kernel.hpp"
#include "memcfg/lane.hpp"
#include "memcfg/space.hpp"
#include "memcfg/types.hpp"

namespace memcfg {

// Calls back into the language above, with the addresses of its operands and of its
// scratch. The function returns 0, or -1 when it failed; it has kept the reason then,
// and the program stops with callback_raised.
class CallbackKernel final : public Kernel {
 public:
  using Function = int (*)(void* context, void* const* operands, void* scratch);
  CallbackKernel(Function function,
                 void* context,
                 const Sizes& sizes = {},
                 Bytes scratch_bytes = 0)
      : Kernel(sizes),
        function_(function),
        context_(context),
        scratch_bytes_(scratch_bytes) {}
  Bytes scratch_bytes() const noexcept override { return scratch_bytes_; }
  void run(void* const* operands, void* scratch, RunState* state) const override;

 private:
  Function function_;
  void* context_;  // not owned
  Bytes scratch_bytes_;
};

// A list of instructions: compute, copy, encode, decode, wait, guard, protect,
// allocate, free, discard. Built once, then run any number of times; no two programs of
// an arena are at work at once. Running takes no memory but what `allocate` says. Keeps
// its spaces and shares its kernels and lanes.
//
// Space 0 is the arena. Kernels work on its bytes and on those of buffers, spaces that
// are taken from a resource in a step or before it. Queue 0 is `compute`, which runs
// inline, in the calling thread; the others are lanes, whose threads copy, or run
// kernels that wait for others, meanwhile. An instruction of a lane begins when the
// loop has come to it and those before it on its lane are done. It is its own event:
// `wait` names it.
//
// What an instruction touches is known when it is added, so no wait can be forgotten:
// one that would touch bytes that a lane may still write, or write bytes that a lane
// may still read, has a wait put in front of it.
//
// Invariant: every operand has the bytes that its kernel declares. It and every scratch
// lie, 64-byte aligned, inside the bytes that their space had when the instruction was
// added (it never shrinks; the base of a buffer alone moves, while no instruction runs
// that touches it); those of a bound input or result lie, 64-byte aligned, outside of
// the arena and of all buffers.
class Program {
 public:
  static constexpr std::int64_t kEnded = -1;
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // Which operand: inputs, then outputs, counted from 0.
  struct Operand {
    std::size_t instruction;
    std::size_t position;
  };
  struct Place {
    Place() = default;
    Place(Offset offset) : offset(offset) {}  // NOLINT: in the arena
    Place(std::size_t space, Offset offset) : space(space), offset(offset) {}
    std::size_t space = 0;
    Offset offset = 0;
    bool operator==(const Place& other) const noexcept {
      return space == other.space && offset == other.offset;
    }
  };
  // When an instruction ran, in seconds since the run began.
  struct Span {
    double begin = 0.0, end = 0.0;
  };

  // What an encoding did.
  struct Coded {
    std::uint64_t runs = 0;
    std::uint64_t raw = 0;  // of those, how often the bytes stayed as they are
    Bytes used = 0;         // of the last one; raw: the tensor's
  };

  // `spaces` become 1, 2, ...: tiers that programs of this arena alone use.
  explicit Program(std::shared_ptr<Arena> arena,
                   const std::vector<std::shared_ptr<Space>>& spaces = {},
                   const std::vector<std::shared_ptr<Lane>>& lanes = {});

  // Adds a buffer; returns its space.
  std::size_t add_buffer(std::shared_ptr<BufferSpace> buffer);

  // Those below append an instruction and return its index; it may have a derived wait
  // in front of it. They throw std::invalid_argument when a place is outside of its
  // space or unaligned, or a queue, a space or an instruction does not exist; nothing
  // was appended then.

  // A kernel. Operands: inputs, then outputs, each with `sizes[i]` bytes from
  // `places[i]` in the arena or a buffer. Refused also when they are not as many as the
  // kernel declares, one has fewer bytes, or scratch is missing. On a lane it has one
  // OpenMP thread, and the lane's bandwidth is not its.
  std::size_t compute(std::shared_ptr<const Kernel> kernel,
                      const std::vector<Place>& places,
                      const std::vector<Bytes>& sizes,
                      std::optional<Place> scratch,
                      std::size_t queue = 0);
  // A copy between places that do not overlap.
  std::size_t copy(std::size_t queue, Place from, Place to, Bytes size);
  // Encodes `size` bytes of the arena into at most `capacity` bytes of it, or back.
  //
  // With `overflow`, of size - capacity bytes in another space, what does not fit stays
  // as it is, in both; without, a run fails there. Who decodes it names the `encoding`.
  std::size_t encode(const Codec& codec,
                     Offset from,
                     Bytes size,
                     Offset to,
                     Bytes capacity,
                     std::optional<Place> overflow = std::nullopt);
  std::size_t decode(const Codec& codec,
                     Offset from,
                     Bytes capacity,
                     Offset to,
                     Bytes size,
                     std::size_t encoding = kNone);
  // Copies `size` bytes of the arena to a space with addresses, encoded by the lane on
  // their way, and back. They have `capacity` bytes there, never fewer than either
  // needs; what a sample shows not to get smaller by a twentieth stays as it is. The
  // lane's bandwidth is that of the bytes that arrive there.
  std::size_t copy_encoded(std::size_t queue,
                           const Codec& codec,
                           Offset from,
                           Bytes size,
                           Place to,
                           Bytes capacity);
  std::size_t copy_decoded(std::size_t queue, std::size_t encoding, Offset to);
  // The event that everything has run that was added to a queue so far: its last
  // instruction, or kNone, for which nobody waits.
  std::size_t record(std::size_t queue) const;
  // Has a queue wait for an event of another.
  std::size_t wait(std::size_t queue, std::size_t event);
  // A guard: a run that checks guards stops here unless the float32 there is finite.
  std::size_t guard(Place place);
  // Takes a buffer that is not taken, or drops one. A run stops with out_of_memory
  // where it cannot be had.
  std::size_t allocate(std::size_t space);
  std::size_t free(std::size_t space);
  // Ends the life of bytes of the arena: the memory of whole pages goes back to the
  // system until they are touched again, see Arena::discard.
  std::size_t discard(Offset offset, Bytes size);
  // Saves the first `size` bytes of the arena at `to`. A run that fails behind it has
  // them back.
  std::size_t protect(Bytes size, Place to);

  // Declares an input of `size` bytes: all operands that stand for its bytes, so that
  // runs can read them elsewhere. Pre: their kernels take addresses with each run and
  // do not write there (a copy in place writes nothing). Or a result, which they write:
  // its place is a buffer that is never taken. Returns the input's number.
  // Throws std::invalid_argument when an operand does not exist or has more bytes, or
  // they lie at several places.
  std::size_t input(const std::vector<Operand>& operands, Bytes size);

  // Has runs read an input at `address`, or write a result there, until `unbind`. The
  // caller keeps it alive.
  // Returns false, and nothing changed, unless it is 64-byte aligned, of the input's
  // size, and outside of the arena and of all buffers.
  bool bind(std::size_t input, const void* address, Bytes size);

  // Has runs read an input in its place again.
  void unbind(std::size_t input);

  // Takes a buffer before a run, unless it is taken and nobody else refers to it or
  // `shared` says that this is well. Throws out_of_memory; nothing has changed then.
  void take(std::size_t space, bool shared);
  // Drops a buffer; who refers to it keeps its bytes.
  void drop(std::size_t space);
  // Null: it is not taken.
  std::shared_ptr<Buffer> buffer(std::size_t space);

  // Runs with at most `threads` OpenMP threads (0: as many as OpenMP would). Returns
  // kEnded, or the index of the instruction that is the guard that stopped it; every
  // lane is done by then. Throws kernel_failure with the instruction's index,
  // callback_raised, on whichever queue, or std::runtime_error when another thread is
  // in it.
  //
  // Throws kernel_failure, too, if a lane has stalled. What it does then may go on: the
  // program must not go before `ended`, and runs of its arena's programs throw until
  // then and once more, since inputs may have been overwritten. What is saved is not.
  std::int64_t run(bool check_guards, int threads) {
    return run(check_guards, threads, 0, size());
  }
  // The same of the instructions from `begin` to before `end`. With `spans`, of size(),
  // also when each of them ran, which costs two readings of a clock.
  std::int64_t run(bool check_guards,
                   int threads,
                   std::size_t begin,
                   std::size_t end,
                   std::vector<Span>* spans = nullptr);

  // Runs to the end, guards unchecked, one instruction after another: seconds of each.
  // For reports that look for the highest byte that a step touches, it first writes the
  // last byte of each instruction's scratch and encoding: libraries pad their scratch
  // for alignment and may leave its end alone, and a range that a kernel was given is
  // in use.
  //
  // With a resource, also what was in use there just before each instruction, in bytes.
  std::vector<double> run_timed(int threads,
                                const Resource* resource = nullptr,
                                std::vector<Bytes>* in_use = nullptr);

  // Runs to the end, guards unchecked: when each instruction ran.
  std::vector<Span> run_traced(int threads);

  std::size_t size() const noexcept { return instructions_.size(); }
  // The instruction of the compute queue, or the kernel on a lane, at which the last
  // run failed; kNone: it did not, or at a copy.
  std::size_t failed_at() const noexcept { return failed_at_; }
  std::size_t queue_of(std::size_t instruction) const;
  // Of an encoding. Throws std::invalid_argument where it is none.
  Coded coded(std::size_t instruction);

  // Whether no lane works for it any more.
  bool ended() const noexcept;

  // For tests: what a slow link and a fault do. Lanes sleep up to so many microseconds
  // before each instruction, drawn from the seed; runs fail at an instruction, an
  // `allocate` with out_of_memory.
  void set_jitter(std::uint32_t seed, std::uint32_t microseconds);
  void fail_at(std::size_t instruction) { failing_ = instruction; }

 private:
  enum class Kind : unsigned char {
    compute,
    guard,
    copy,
    encode,
    decode,
    wait,
    protect,
    allocate,
    free,
    discard
  };
  struct Instruction {
    Kind kind = Kind::compute;
    std::size_t queue = 0;
    std::size_t first_operand = 0;  // index into operands_
    std::size_t more = 0;  // index into transfers_ or discards_, an event, or a space
    const Kernel* kernel = nullptr;
    void* scratch = nullptr;
    Kernel::RunState* state = nullptr;
  };
  struct Transfer {
    const Space* from;
    Space* to;
    Offset source, target;
    Bytes size, capacity;
    const Codec* codec;
    bool overflows = false;   // what does not fit stays as it is
    Space* beside = nullptr;  // where that goes for which there is no room
    Offset overflow = 0;
    std::size_t encoding = kNone;  // of a decoding: index into transfers_
    Coded coded{};                 // of an encoding
    bool raw = false;              // whether its last run kept the bytes as they are
  };
  struct Input {
    std::vector<std::size_t> operands;  // indices into operands_
    Place home;
    Bytes size;
  };
  // What has an address in a buffer.
  struct Users {
    std::shared_ptr<BufferSpace> buffer;                  // null: the space is none
    std::vector<std::size_t> operands;                    // indices into operands_
    std::vector<std::pair<std::size_t, Offset>> scratch;  // of instructions
  };
  // Bytes that an instruction touches.
  struct Access {
    std::size_t space;
    Offset begin, end;
    bool written;
  };
  struct LaneAccess {
    Access access;
    std::size_t queue, instruction;
  };
  class Turn;

  std::size_t find(const Operand& operand) const;
  Input& find_input(std::size_t input);
  void send(const Input& input, void* address, bool bound) noexcept;
  void* place(Place place, Bytes size) const;
  void require_kernel_space(std::size_t space) const;
  BufferSpace& find_buffer(std::size_t space) const;
  void take_buffer(std::size_t space);
  void relocate(const Users& users) noexcept;
  std::size_t append_buffer(Kind kind, std::size_t space);
  Space& check_place(Place place, Bytes size) const;
  void check_queue(std::size_t queue) const;
  Kernel::RunState* state_of(const Kernel& kernel, std::size_t queue);
  std::size_t append(const Instruction& instruction,
                     const std::vector<Place>& operands = {});
  std::size_t append_transfer(Kind kind,
                              std::size_t queue,
                              const Transfer& transfer,
                              const std::vector<Access>& accesses);
  std::size_t append_wait(std::size_t queue, std::size_t event);
  void derive_waits(std::size_t queue, const std::vector<Access>& accesses);
  void note_accesses(const std::vector<Access>& accesses);
  bool is_finite(const Instruction& instruction) const noexcept;

  std::int64_t execute(bool check_guards, std::size_t begin, std::size_t end);
  void execute_inline(std::size_t index);
  void execute_one(std::size_t index);
  void transfer(const Instruction& instruction);
  void encode_now(Transfer& row, bool on_lane);
  void decode_now(const Transfer& row);
  Bytes moved(const Transfer& row) const noexcept;
  Transfer& find_encoding(std::size_t instruction);
  void submit(std::size_t index);
  void await(std::size_t event);
  static void run_on_lane(void* program, std::size_t index) noexcept;
  void keep_to_bandwidth(std::size_t index,
                         std::chrono::steady_clock::time_point begin);
  void sleep_a_little() noexcept;
  void note_failure(std::size_t index, const std::string& text, bool called) noexcept;
  void throw_failure();
  void begin_run(bool traced);
  void require_nothing_left();
  void settle_lanes();
  void give_up();
  void restore();
  void touch_unused(const Instruction& instruction) noexcept;
  double now() const noexcept;

  std::shared_ptr<ArenaSpace> arena_;
  std::vector<std::shared_ptr<Space>> spaces_;  // that of the arena first
  std::vector<std::shared_ptr<Lane>> lanes_;    // of queues 1, 2, ...
  std::vector<Instruction> instructions_;
  std::vector<void*> operands_;
  std::vector<Place> places_;  // of the operands
  std::vector<bool> bound_;    // operands that stand for a bound input
  std::vector<Users> users_;   // by space
  std::vector<Transfer> transfers_;
  std::vector<std::pair<Offset, Bytes>> discards_;  // where, and how many
  std::vector<Input> inputs_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;  // keeps them alive
  // This program's own, by kernel and queue, whose instructions run one after another.
  std::map<std::pair<const Kernel*, std::size_t>, std::unique_ptr<Kernel::RunState>>
      states_;

  // While it is built: what lanes touch, and up to which instruction of each queue each
  // other queue has waited.
  std::vector<LaneAccess> touched_;
  std::vector<std::vector<std::size_t>> waited_;  // by waiting queue, by queue
  std::vector<std::vector<std::size_t>> known_;   // by instruction: its queue's waited_

  // Of a run.
  std::vector<std::uint64_t> numbers_;  // by instruction, of a lane: its task's
  std::vector<std::uint64_t> last_;     // by lane
  bool traced_ = false;
  std::vector<Span> spans_;  // by instruction, of a run that is traced
  std::int64_t began_ = 0;   // nanoseconds
  bool protected_ = false;   // state was saved
  std::size_t saved_ = 0;    // by this instruction
  std::atomic<bool> failed_{false};
  std::mutex failure_mutex_;
  std::string failure_;
  std::size_t lane_failed_at_ = kNone;  // the kernel on a lane that failed first
  bool lane_called_ = false;            // it was a callback that raised
  std::size_t failing_ = kNone;
  std::size_t failed_at_ = kNone;
  std::uint32_t jitter_ = 0;  // microseconds
  std::atomic<std::uint32_t> random_{0};
};

}  // namespace memcfg
