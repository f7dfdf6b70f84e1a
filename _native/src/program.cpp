#include "memcfg/program.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "memcfg/error.hpp"
#include "memcfg/foreign.hpp"
#include "memcfg/threads.hpp"

namespace memcfg {
namespace {

constexpr std::byte kTouched{0xC7};  // any value: reports use several canaries

constexpr const char* kLeft =
    "a copy of a step that failed has not ended, and may still write to the arena: "
    "save "
    "the weights, or wait and run again";

std::int64_t nanoseconds() noexcept {
  using Clock = std::chrono::steady_clock;
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

std::string failure_of(std::size_t index, const char* what) {
  return "instruction " + std::to_string(index) + " failed: " + what;
}

bool conflict(bool any_written, Offset begin, Offset end, Offset from, Offset to) {
  return any_written && begin < to && from < end;
}

// Whether a code would be smaller by a twentieth, by pieces spread over the bytes. Pre:
// `to` has the codec's bound. Writes there.
bool pays(const Codec& codec, const std::byte* from, Bytes size, std::byte* to) {
  constexpr Bytes kPiece = 4096, kPieces = 8;  // bytes, and how many
  if (size < 2 * kPieces * kPiece) return true;
  const Bytes frame = codec.bound(0), step = size / kPieces / kPiece * kPiece;
  Bytes used = 0;
  for (Bytes i = 0; i < kPieces; ++i) {
    used += codec.encode(from + i * step, kPiece, to, codec.bound(kPiece)) - frame;
  }
  return used * 21 <= kPieces * kPiece * 20;
}

}  // namespace

void CallbackKernel::run(void* const* operands, void* scratch, RunState*) const {
  if (call_foreign(function_, context_, operands, scratch) != 0)
    throw callback_raised();
}

// One thread's turn with an arena: others are refused, not queued. All programs of an
// arena overwrite each other's bytes, so one flag serves them all.
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
  std::atomic<bool>& busy() noexcept { return program_.arena_->arena().busy(); }

  Program& program_;
};

// -- building ------------------------------------------------------------------------

Program::Program(std::shared_ptr<Arena> arena,
                 const std::vector<std::shared_ptr<Space>>& spaces,
                 const std::vector<std::shared_ptr<Lane>>& lanes)
    : arena_(std::make_shared<ArenaSpace>(std::move(arena))),
      spaces_{arena_},
      lanes_(lanes),
      waited_(lanes.size() + 1, std::vector<std::size_t>(lanes.size() + 1, 0)),
      last_(lanes.size(), 0) {
  // What lies where may change with a new program.
  if (arena_->arena().has_left()) throw kernel_failure(kLeft);
  spaces_.insert(spaces_.end(), spaces.begin(), spaces.end());
  users_.resize(spaces_.size());
}

std::size_t Program::add_buffer(std::shared_ptr<BufferSpace> buffer) {
  const Turn turn(*this);
  users_.reserve(spaces_.size() + 1);
  spaces_.push_back(buffer);
  users_.push_back({std::move(buffer), {}, {}});
  return spaces_.size() - 1;
}

Space& Program::check_place(Place place, Bytes size) const {
  if (place.space >= spaces_.size()) {
    throw std::invalid_argument("there is no space " + std::to_string(place.space));
  }
  Space& space = *spaces_[place.space];
  const Bytes end = space.size();
  if (place.offset % kAlignment != 0) {
    throw std::invalid_argument("offset " + std::to_string(place.offset) +
                                " is not a multiple of " + std::to_string(kAlignment));
  }
  if (size > end || place.offset > end - size) {
    throw std::invalid_argument(std::to_string(size) + " bytes at offset " +
                                std::to_string(place.offset) + " leave the " +
                                (place.space == 0 ? "arena" : "space") + " of " +
                                std::to_string(end) + " bytes");
  }
  return space;
}

void* Program::place(Place place, Bytes size) const {
  std::byte* const base = check_place(place, size).base();
  return base == nullptr ? nullptr : base + place.offset;
}

// Kernels work in the arena, where the planner's tiers are not.
void Program::require_kernel_space(std::size_t space) const {
  if (space != 0) find_buffer(space);
}

BufferSpace& Program::find_buffer(std::size_t space) const {
  if (space >= users_.size() || users_[space].buffer == nullptr) {
    throw std::invalid_argument("there is no buffer " + std::to_string(space));
  }
  return *users_[space].buffer;
}

void Program::relocate(const Users& users) noexcept {
  std::byte* const base = users.buffer->base();
  for (const std::size_t operand : users.operands) {
    if (!bound_[operand]) operands_[operand] = base + places_[operand].offset;
  }
  for (const auto& [instruction, offset] : users.scratch) {
    instructions_[instruction].scratch = base + offset;
  }
}

void Program::take_buffer(std::size_t space) {
  users_[space].buffer->take();
  relocate(users_[space]);
}

void Program::check_queue(std::size_t queue) const {
  if (queue > lanes_.size()) {
    throw std::invalid_argument("there is no queue " + std::to_string(queue));
  }
}

// The instruction comes last: what a failure before it leaves behind is not referred
// to.
std::size_t Program::append(const Instruction& instruction,
                            const std::vector<Place>& operands) {
  for (const Place& each : operands) {
    std::byte* const base = spaces_[each.space]->base();
    operands_.push_back(base == nullptr ? nullptr : base + each.offset);
    bound_.push_back(false);
    Users& users = users_[each.space];
    if (users.buffer != nullptr) users.operands.push_back(places_.size());
    places_.push_back(each);
  }
  numbers_.resize(instructions_.size() + 1);
  known_.resize(instructions_.size());
  known_.push_back(instruction.queue == 0 ? std::vector<std::size_t>()
                                          : waited_[instruction.queue]);
  for (std::size_t q = 0; q < known_.back().size(); ++q) {
    known_.back()[q] = std::max(known_.back()[q], waited_[0][q]);
  }
  instructions_.push_back(instruction);
  instructions_.back().first_operand = operands_.size() - operands.size();
  return instructions_.size() - 1;
}

std::size_t Program::append_wait(std::size_t queue, std::size_t event) {
  Instruction made;
  made.kind = Kind::wait;
  made.queue = queue;
  made.more = event;
  const std::size_t index = append(made);
  if (event != kNone) {
    std::vector<std::size_t>& waited = waited_[queue];
    std::size_t& own = waited[instructions_[event].queue];
    own = std::max(own, event + 1);
    for (std::size_t q = 0; q < known_[event].size(); ++q) {
      waited[q] = std::max(waited[q], known_[event][q]);
    }
  }
  return index;
}

// The compute queue runs inline: what was added to it before an instruction has run
// when that begins. Only lanes are waited for.
void Program::derive_waits(std::size_t queue, const std::vector<Access>& accesses) {
  for (const Access& own : accesses) {
    for (const LaneAccess& other : touched_) {
      const std::size_t seen =
          std::max(waited_[queue][other.queue], waited_[0][other.queue]);
      if (other.queue != queue && other.access.space == own.space &&
          other.instruction >= seen &&
          conflict(own.written || other.access.written,
                   own.begin,
                   own.end,
                   other.access.begin,
                   other.access.end)) {
        append_wait(queue, other.instruction);
      }
    }
  }
  touched_.erase(std::remove_if(touched_.begin(),
                                touched_.end(),
                                [this](const LaneAccess& each) {
                                  return each.instruction < waited_[0][each.queue];
                                }),
                 touched_.end());
}

// Of the instruction that was appended last, which is a lane's.
void Program::note_accesses(const std::vector<Access>& accesses) {
  const std::size_t index = instructions_.size() - 1;
  for (const Access& access : accesses) {
    touched_.push_back({access, instructions_[index].queue, index});
  }
}

// Pre: the kernel is kept alive.
Kernel::RunState* Program::state_of(const Kernel& kernel, std::size_t queue) {
  const std::pair key(&kernel, queue);
  const auto found = states_.find(key);
  if (found != states_.end()) return found->second.get();
  return states_.emplace(key, kernel.make_run_state()).first->second.get();
}

std::size_t Program::compute(std::shared_ptr<const Kernel> kernel,
                             const std::vector<Place>& places,
                             const std::vector<Bytes>& sizes,
                             std::optional<Place> scratch,
                             std::size_t queue) {
  const Turn turn(*this);
  check_queue(queue);
  if (kernel == nullptr) throw std::invalid_argument("no kernel");
  const auto& declared = kernel->operands();
  if (places.size() != declared.size() || sizes.size() != declared.size()) {
    throw std::invalid_argument("the kernel has " + std::to_string(declared.size()) +
                                " operands, got " + std::to_string(places.size()) +
                                " places and " + std::to_string(sizes.size()) +
                                " sizes");
  }
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (sizes[i] < declared[i].size) {
      throw std::invalid_argument("operand " + std::to_string(i) + " needs " +
                                  std::to_string(declared[i].size) + " bytes, got " +
                                  std::to_string(sizes[i]));
    }
    const auto [space, offset] = places[i];
    place(places[i], sizes[i]);
    require_kernel_space(space);
    accesses.push_back({space, offset, offset + sizes[i], declared[i].written});
  }
  const Bytes needed = kernel->scratch_bytes();
  if (needed > 0 && !scratch) {
    throw std::invalid_argument("the kernel needs " + std::to_string(needed) +
                                " bytes of scratch");
  }
  Instruction made;
  made.queue = queue;
  if (needed > 0) {
    made.scratch = place(*scratch, needed);
    require_kernel_space(scratch->space);
    accesses.push_back(
        {scratch->space, scratch->offset, scratch->offset + needed, true});
  }
  kernels_.push_back(std::move(kernel));
  made.kernel = kernels_.back().get();
  made.state = state_of(*made.kernel, queue);
  derive_waits(queue, accesses);
  const std::size_t index = append(made, places);
  if (queue != 0) note_accesses(accesses);
  if (needed > 0 && users_[scratch->space].buffer != nullptr) {
    users_[scratch->space].scratch.emplace_back(index, scratch->offset);
  }
  return index;
}

// What lanes do with a buffer ends before it moves.
std::size_t Program::append_buffer(Kind kind, std::size_t space) {
  const Turn turn(*this);
  derive_waits(0, {{space, 0, find_buffer(space).size(), true}});
  Instruction made;
  made.kind = kind;
  made.more = space;
  return append(made);
}

std::size_t Program::allocate(std::size_t space) {
  return append_buffer(Kind::allocate, space);
}

std::size_t Program::free(std::size_t space) {
  return append_buffer(Kind::free, space);
}

std::size_t Program::discard(Offset offset, Bytes size) {
  const Turn turn(*this);
  place({0, offset}, size);
  derive_waits(0, {{0, offset, offset + size, true}});
  discards_.push_back({offset, size});
  Instruction made;
  made.kind = Kind::discard;
  made.more = discards_.size() - 1;
  return append(made);
}

void Program::take(std::size_t space, bool shared) {
  const Turn turn(*this);
  const BufferSpace& found = find_buffer(space);
  if (found.buffer() == nullptr || (!shared && found.buffer().use_count() > 1)) {
    take_buffer(space);
  }
}

void Program::drop(std::size_t space) {
  const Turn turn(*this);
  find_buffer(space).drop();
}

std::shared_ptr<Buffer> Program::buffer(std::size_t space) {
  const Turn turn(*this);
  return find_buffer(space).buffer();
}

std::size_t Program::append_transfer(Kind kind,
                                     std::size_t queue,
                                     const Transfer& transfer,
                                     const std::vector<Access>& accesses) {
  derive_waits(queue, accesses);
  transfers_.push_back(transfer);
  Instruction made;
  made.kind = kind;
  made.queue = queue;
  made.more = transfers_.size() - 1;
  const std::size_t index = append(made);
  if (queue != 0) note_accesses(accesses);
  return index;
}

std::size_t Program::copy(std::size_t queue, Place from, Place to, Bytes size) {
  const Turn turn(*this);
  check_queue(queue);
  const Space& source = check_place(from, size);
  Space& target = check_place(to, size);
  const bool apart = from.space != to.space || from.offset + size <= to.offset ||
                     to.offset + size <= from.offset;
  if (!apart && size > 0) throw std::invalid_argument("a copy overlaps itself");
  return append_transfer(Kind::copy,
                         queue,
                         {&source, &target, from.offset, to.offset, size, 0, nullptr},
                         {{from.space, from.offset, from.offset + size, false},
                          {to.space, to.offset, to.offset + size, true}});
}

std::size_t Program::encode(const Codec& codec,
                            Offset from,
                            Bytes size,
                            Offset to,
                            Bytes capacity,
                            std::optional<Place> overflow) {
  const Turn turn(*this);
  place({0, from}, size);
  place({0, to}, capacity);
  Transfer made{arena_.get(), arena_.get(), from, to, size, capacity, &codec};
  std::vector<Access> accesses{{0, from, from + size, false},
                               {0, to, to + capacity, true}};
  made.overflows = overflow.has_value();
  if (overflow && capacity < size) {
    if (overflow->space == 0) {
      throw std::invalid_argument("an encoding overflows to another space");
    }
    made.beside = &check_place(*overflow, size - capacity);
    made.overflow = overflow->offset;
    accesses.push_back(
        {overflow->space, made.overflow, made.overflow + size - capacity, true});
  }
  return append_transfer(Kind::encode, 0, made, accesses);
}

std::size_t Program::decode(const Codec& codec,
                            Offset from,
                            Bytes capacity,
                            Offset to,
                            Bytes size,
                            std::size_t encoding) {
  const Turn turn(*this);
  place({0, from}, capacity);
  place({0, to}, size);
  Transfer made{arena_.get(), arena_.get(), from, to, size, capacity, &codec};
  std::vector<Access> accesses{{0, from, from + capacity, false},
                               {0, to, to + size, true}};
  if (encoding != kNone) {
    const Transfer& source = find_encoding(encoding);
    if (source.to != made.from || source.target != from || source.size != size ||
        source.capacity != capacity || source.codec != &codec) {
      throw std::invalid_argument("instruction " + std::to_string(encoding) +
                                  " encodes something else");
    }
    made.encoding = instructions_[encoding].more;
    for (std::size_t i = 1; i < spaces_.size(); ++i) {
      if (spaces_[i].get() != source.beside) continue;
      accesses.push_back(
          {i, source.overflow, source.overflow + size - capacity, false});
    }
  }
  return append_transfer(Kind::decode, 0, made, accesses);
}

std::size_t Program::copy_encoded(std::size_t queue,
                                  const Codec& codec,
                                  Offset from,
                                  Bytes size,
                                  Place to,
                                  Bytes capacity) {
  const Turn turn(*this);
  check_queue(queue);
  place({0, from}, size);
  Space& target = check_place(to, capacity);
  if (queue == 0 || to.space == 0 || target.base() == nullptr) {
    throw std::invalid_argument("a lane encodes to another space that has addresses");
  }
  if (capacity < std::max(size, codec.bound(size))) {
    throw std::invalid_argument("a lane encodes into no fewer bytes than it may need");
  }
  return append_transfer(
      Kind::encode,
      queue,
      {arena_.get(), &target, from, to.offset, size, capacity, &codec},
      {{0, from, from + size, false},
       {to.space, to.offset, to.offset + capacity, true}});
}

std::size_t Program::copy_decoded(std::size_t queue, std::size_t encoding, Offset to) {
  const Turn turn(*this);
  check_queue(queue);
  const Transfer& source = find_encoding(encoding);
  if (queue == 0 || instructions_[encoding].queue == 0) {
    throw std::invalid_argument("a lane copies back what a lane has encoded");
  }
  const Bytes size = source.size, capacity = source.capacity;
  place({0, to}, size);
  std::size_t space = 0;
  while (spaces_[space].get() != source.to) ++space;
  Transfer made{
      source.to, arena_.get(), source.target, to, size, capacity, source.codec};
  made.encoding = instructions_[encoding].more;
  return append_transfer(
      Kind::decode,
      queue,
      made,
      {{space, made.source, made.source + capacity, false}, {0, to, to + size, true}});
}

Program::Transfer& Program::find_encoding(std::size_t instruction) {
  if (instruction >= instructions_.size() ||
      instructions_[instruction].kind != Kind::encode) {
    throw std::invalid_argument("instruction " + std::to_string(instruction) +
                                " is no encoding");
  }
  return transfers_[instructions_[instruction].more];
}

Program::Coded Program::coded(std::size_t instruction) {
  const Turn turn(*this);
  return find_encoding(instruction).coded;
}

std::size_t Program::record(std::size_t queue) const {
  check_queue(queue);
  for (std::size_t i = instructions_.size(); i > 0; --i) {
    if (instructions_[i - 1].queue == queue) return i - 1;
  }
  return kNone;
}

std::size_t Program::wait(std::size_t queue, std::size_t event) {
  const Turn turn(*this);
  check_queue(queue);
  if (event != kNone && event >= instructions_.size()) {
    throw std::invalid_argument("there is no event " + std::to_string(event));
  }
  return append_wait(queue, event);
}

std::size_t Program::guard(Place where) {
  const Turn turn(*this);
  place(where, sizeof(float));
  require_kernel_space(where.space);
  derive_waits(0, {{where.space, where.offset, where.offset + sizeof(float), false}});
  Instruction made;
  made.kind = Kind::guard;
  return append(made, {where});
}

std::size_t Program::protect(Bytes size, Place to) {
  const Turn turn(*this);
  place({0, 0}, size);
  Space& target = check_place(to, size);
  if (to.space == 0 || target.base() == nullptr) {
    throw std::invalid_argument("state is saved in another space that has addresses");
  }
  return append_transfer(
      Kind::protect,
      0,
      {arena_.get(), &target, 0, to.offset, size, 0, nullptr},
      {{0, 0, size, false}, {to.space, to.offset, to.offset + size, true}});
}

std::size_t Program::queue_of(std::size_t instruction) const {
  return instructions_.at(instruction).queue;
}

void Program::set_jitter(std::uint32_t seed, std::uint32_t microseconds) {
  random_ = seed;
  jitter_ = microseconds;
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
  Input made{{}, places_[find(operands.front())], size};
  for (const Operand& operand : operands) {
    made.operands.push_back(find(operand));
    if (!(places_[made.operands.back()] == made.home)) {
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

void Program::send(const Input& input, void* address, bool bound) noexcept {
  for (const std::size_t operand : input.operands) {
    operands_[operand] = address;
    bound_[operand] = bound;
  }
}

bool Program::bind(std::size_t input, const void* address, Bytes size) {
  const Turn turn(*this);
  const Input& found = find_input(input);
  const auto begin = reinterpret_cast<std::uintptr_t>(address);
  const auto is_outside = [&](const void* start, Bytes capacity) {
    const auto base = reinterpret_cast<std::uintptr_t>(start);
    return begin >= base + capacity || (begin < base && size <= base - begin);
  };
  bool outside = is_outside(arena_->arena().base(), arena_->arena().capacity());
  for (const Users& each : users_) {
    if (each.buffer == nullptr || each.buffer->base() == nullptr) continue;
    outside = outside && is_outside(each.buffer->base(), each.buffer->size());
  }
  if (begin % kAlignment != 0 || size != found.size || !outside) return false;
  // Kernels take void*, and only read an input; memory of a result can be written.
  send(found, const_cast<void*>(address), true);
  return true;
}

void Program::unbind(std::size_t input) {
  const Turn turn(*this);
  const Input& found = find_input(input);
  std::byte* const base = spaces_[found.home.space]->base();
  send(found, base == nullptr ? nullptr : base + found.home.offset, false);
}

// -- running -------------------------------------------------------------------------

bool Program::is_finite(const Instruction& instruction) const noexcept {
  float value;
  std::memcpy(&value, operands_[instruction.first_operand], sizeof value);
  return std::isfinite(value);
}

double Program::now() const noexcept {
  return static_cast<double>(nanoseconds() - began_) * 1e-9;
}

// A copy that was left may have overwritten inputs as long as it went on: they have to
// be written again, which only whoever called can do.
void Program::require_nothing_left() {
  switch (arena_->arena().look_at_left()) {
    case Arena::Left::nothing:
      return;
    case Arena::Left::goes_on:
      throw kernel_failure(kLeft);
    case Arena::Left::ended:
      throw kernel_failure(
          "a copy of a step that failed has ended since, and may have written over "
          "inputs: run again");
  }
}

// Spans are the program's own: a lane that hangs may still write to them.
void Program::begin_run(bool traced) {
  failed_at_ = kNone;
  require_nothing_left();
  traced_ = traced;
  if (traced) spans_.assign(size(), Span{});
  for (std::size_t i = 1; i < spaces_.size(); ++i) spaces_[i]->prepare();
  for (const auto& lane : lanes_) lane->expect(max_threads());
  std::fill(last_.begin(), last_.end(), 0);
  protected_ = false;
  lane_failed_at_ = kNone;
  lane_called_ = false;
  failed_ = false;
  began_ = nanoseconds();
}

void Program::note_failure(std::size_t index,
                           const std::string& text,
                           bool called) noexcept {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  if (failed_) return;
  if (instructions_[index].kind == Kind::compute) lane_failed_at_ = index;
  lane_called_ = called;
  try {
    failure_ = text;
  } catch (const std::bad_alloc&) {
    failure_.clear();  // it failed all the same
  }
  failed_ = true;
}

void Program::throw_failure() {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  failed_at_ = lane_failed_at_;
  if (lane_called_) throw callback_raised();
  throw kernel_failure(failure_);
}

// A linear congruential generator: lanes may draw in any order.
void Program::sleep_a_little() noexcept {
  const std::uint32_t drawn =
      random_.fetch_add(2654435761U, std::memory_order_relaxed) * 1664525U;
  std::this_thread::sleep_for(std::chrono::microseconds((drawn >> 8) % (jitter_ + 1)));
}

void Program::encode_now(Transfer& row, bool on_lane) {
  const std::byte* const from = row.from->base() + row.source;
  std::byte* const to = row.to->base() + row.target;
  std::optional<Bytes> used;
  if (!on_lane && !row.overflows) {
    used = row.codec->encode(from, row.size, to, row.capacity);
  } else if (!on_lane || pays(*row.codec, from, row.size, to)) {
    used = row.codec->try_encode(from, row.size, to, row.capacity);
  }
  row.raw = !used;
  if (row.raw) {
    const Bytes here = std::min(row.size, row.capacity);
    copy_between(*row.from, row.source, *row.to, row.target, here);
    if (here < row.size) {
      copy_between(
          *row.from, row.source + here, *row.beside, row.overflow, row.size - here);
    }
  }
  row.coded.used = used.value_or(row.size);
  row.coded.raw += row.raw;
  ++row.coded.runs;
}

void Program::decode_now(const Transfer& row) {
  if (row.encoding == kNone || !transfers_[row.encoding].raw) {
    row.codec->decode(row.from->base() + row.source,
                      row.capacity,
                      row.to->base() + row.target,
                      row.size);
    return;
  }
  const Transfer& kept = transfers_[row.encoding];
  const Bytes here = std::min(row.size, row.capacity);
  copy_between(*row.from, row.source, *row.to, row.target, here);
  if (here < row.size) {
    copy_between(
        *kept.beside, kept.overflow, *row.to, row.target + here, row.size - here);
  }
}

// Bytes that a lane moves.
Bytes Program::moved(const Transfer& row) const noexcept {
  if (row.codec == nullptr) return row.size;
  return row.encoding == kNone ? row.coded.used : transfers_[row.encoding].coded.used;
}

void Program::transfer(const Instruction& instruction) {
  Transfer& row = transfers_[instruction.more];
  switch (instruction.kind) {
    case Kind::encode:
      encode_now(row, instruction.queue != 0);
      break;
    case Kind::decode:
      decode_now(row);
      break;
    default:
      copy_between(*row.from, row.source, *row.to, row.target, row.size);
  }
}

void Program::run_on_lane(void* context, std::size_t index) noexcept {
  Program& program = *static_cast<Program*>(context);
  if (program.failed_) return;
  if (program.jitter_ > 0) program.sleep_a_little();
  // A kernel is alone on its thread: others compute meanwhile.
  const bool computes = program.instructions_[index].kind == Kind::compute;
  const ThreadCount count(computes ? 1 : 0);
  try {
    const std::chrono::steady_clock::time_point begin =
        std::chrono::steady_clock::now();
    if (program.traced_) program.spans_[index].begin = program.now();
    program.execute_one(index);
    program.keep_to_bandwidth(index, begin);
    if (program.traced_) program.spans_[index].end = program.now();
  } catch (const callback_raised& error) {
    program.note_failure(index, error.what(), true);
  } catch (const std::exception& error) {
    program.note_failure(index, error.what(), false);
  }
}

// A copy ends no sooner than its bytes take at the lane's bandwidth; the next one on it
// begins behind it.
void Program::keep_to_bandwidth(std::size_t index,
                                std::chrono::steady_clock::time_point begin) {
  const Instruction& instruction = instructions_[index];
  const double rate = lanes_[instruction.queue - 1]->bytes_per_second();
  const bool copies = instruction.kind == Kind::copy ||
                      instruction.kind == Kind::encode ||
                      instruction.kind == Kind::decode;
  if (!copies || rate <= 0) return;
  const Bytes size = moved(transfers_[instruction.more]);
  const std::chrono::duration<double> duration(static_cast<double>(size) / rate);
  const auto end =
      begin + std::chrono::duration_cast<std::chrono::steady_clock::duration>(duration);
  constexpr std::chrono::milliseconds kSlice{10};  // how late it hears of a failure
  for (auto time = begin; time < end && !failed_;) {
    time = std::min(end, std::chrono::steady_clock::now() + kSlice);
    std::this_thread::sleep_until(time);
    Lane::get_on();
  }
}

void Program::submit(std::size_t index) {
  const std::size_t lane = instructions_[index].queue - 1;
  numbers_[index] = lanes_[lane]->submit({run_on_lane, this, index});
  last_[lane] = numbers_[index];
}

void Program::await(std::size_t event) {
  if (event == kNone || instructions_[event].queue == 0) return;
  lanes_[instructions_[event].queue - 1]->wait(numbers_[event]);
}

void Program::execute_one(std::size_t index) {
  const Instruction& instruction = instructions_[index];
  try {
    if (index == failing_) {
      if (instruction.kind == Kind::allocate) users_[instruction.more].buffer->refuse();
      throw std::runtime_error("a fault was asked for");
    }
    switch (instruction.kind) {
      case Kind::compute:
        instruction.kernel->run(operands_.data() + instruction.first_operand,
                                instruction.scratch,
                                instruction.state);
        break;
      case Kind::wait:
        await(instruction.more);
        break;
      case Kind::guard:
        break;
      case Kind::allocate:
        if (users_[instruction.more].buffer->buffer() == nullptr) {
          take_buffer(instruction.more);
        }
        break;
      case Kind::free:
        users_[instruction.more].buffer->drop();
        break;
      case Kind::discard: {
        const auto& [offset, size] = discards_[instruction.more];
        arena_->arena().discard(offset, size);
        break;
      }
      default:
        transfer(instruction);
    }
  } catch (const callback_raised&) {
    throw;
  } catch (const std::exception& error) {
    if (instruction.kind == Kind::allocate) throw;  // as the resource says it
    throw kernel_failure(failure_of(index, error.what()));
  }
}

// In the thread of the loop, which hears here what has failed on a lane.
void Program::execute_inline(std::size_t index) {
  failed_at_ = index;
  execute_one(index);
  failed_at_ = kNone;
  if (instructions_[index].kind == Kind::protect) {
    saved_ = index;
    protected_ = true;
  }
}

// What an instruction of this thread takes is the time since the one before, and what
// its guard finds out counts for the next: a clock is read once for each, which
// programs of some microseconds an instruction show.
std::int64_t Program::execute(bool check_guards, std::size_t begin, std::size_t end) {
  double time = traced_ ? now() : 0.0;
  for (std::size_t i = begin; i < end; ++i) {
    const Instruction& instruction = instructions_[i];
    if (instruction.queue != 0) {
      submit(i);
      if (traced_) time = now();
    } else {
      execute_inline(i);
      if (traced_) {
        spans_[i].begin = time;
        spans_[i].end = time = now();
      }
      if (instruction.kind == Kind::guard && check_guards && !is_finite(instruction)) {
        return static_cast<std::int64_t>(i);
      }
    }
    if (failed_) throw_failure();
  }
  return kEnded;
}

void Program::settle_lanes() {
  std::vector<std::pair<std::shared_ptr<Lane>, std::uint64_t>> stalled;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i]->settle(last_[i])) stalled.emplace_back(lanes_[i], last_[i]);
  }
  if (stalled.empty()) return;
  arena_->arena().leave([tasks = std::move(stalled)] {
    return std::all_of(tasks.begin(), tasks.end(), [](const auto& task) {
      return task.first->ended(task.second);
    });
  });
}

bool Program::ended() const noexcept {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i]->ended(last_[i])) return false;
  }
  return true;
}

void Program::restore() {
  if (!protected_) return;
  protected_ = false;
  const Transfer& row = transfers_[instructions_[saved_].more];
  copy_between(*row.to, row.target, *arena_, 0, row.size);
}

std::int64_t Program::run(bool check_guards,
                          int threads,
                          std::size_t begin,
                          std::size_t end,
                          std::vector<Span>* spans) {
  const Turn turn(*this);
  const ThreadCount count(threads);
  begin_run(spans != nullptr);
  try {
    const std::int64_t stopped = execute(check_guards, begin, end);
    for (std::size_t i = 0; i < lanes_.size(); ++i) lanes_[i]->wait(last_[i]);
    if (failed_) throw_failure();
    if (spans != nullptr) {
      for (std::size_t i = begin; i < end; ++i) (*spans)[i] = spans_[i];
    }
    return stopped;
  } catch (const lane_stalled& stalled) {
    give_up();
    throw kernel_failure(stalled.what());
  } catch (...) {
    give_up();
    throw;
  }
}

// What is still to come on a lane is of no use.
void Program::give_up() {
  failed_ = true;
  try {
    settle_lanes();
  } catch (...) {  // there is no memory to note what goes on
    restore();
    throw;
  }
  restore();
}

void Program::touch_unused(const Instruction& instruction) noexcept {
  if (instruction.scratch != nullptr) {
    auto* const scratch = static_cast<std::byte*>(instruction.scratch);
    scratch[instruction.kernel->scratch_bytes() - 1] = kTouched;
  } else if (instruction.kind == Kind::encode && instruction.queue == 0) {
    const Transfer& row = transfers_[instruction.more];
    if (row.capacity > 0) row.to->base()[row.target + row.capacity - 1] = kTouched;
  }
}

std::vector<double> Program::run_timed(int threads,
                                       const Resource* resource,
                                       std::vector<Bytes>* in_use) {
  const Turn turn(*this);
  const ThreadCount count(threads);
  std::vector<Span> spans(instructions_.size());
  begin_run(false);
  try {
    for (std::size_t i = 0; i < instructions_.size(); ++i) {
      touch_unused(instructions_[i]);
      if (in_use != nullptr) in_use->push_back(resource->stats().current);
      spans[i].begin = now();
      if (instructions_[i].queue == 0) {
        execute_inline(i);
      } else {
        submit(i);
        lanes_[instructions_[i].queue - 1]->wait(numbers_[i]);
        if (failed_) throw_failure();
      }
      spans[i].end = now();
    }
  } catch (const lane_stalled& stalled) {
    give_up();
    throw kernel_failure(stalled.what());
  } catch (...) {
    give_up();
    throw;
  }
  std::vector<double> seconds;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const bool is_guard = instructions_[i].kind == Kind::guard;
    seconds.push_back(is_guard ? 0.0 : spans[i].end - spans[i].begin);
  }
  return seconds;
}

std::vector<Program::Span> Program::run_traced(int threads) {
  std::vector<Span> spans(size());
  run(false, threads, 0, size(), &spans);
  return spans;
}

}  // namespace memcfg
