// Element-wise ops: the expression that comes as text, evaluated over arrays.
//
// What depends on no array is computed once a run, in double precision. Of the rest,
// expressions that were compiled with the library run as one loop. Others run block by
// block: each instruction is a loop over a block that stays in the first-level cache.
// Both make every element by the same operations, so their bits are the same.
#include "kernels/expression.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

#include "kernels/bfloat16.hpp"
#include "kernels/function_kernel.hpp"
#include "kernels/numbers.hpp"

namespace memcfg {
namespace {

constexpr std::size_t kInstructionsMost = 256;
constexpr std::size_t kOperandsMost = 32;
constexpr Count kBlockMost = 1024;        // elements
constexpr Count kRegisterFloats = 16384;  // floats of all blocks of one thread

// The nodes are listed in memcfg/ops/_nodes.py, which expression_nodes.inc is written
// from: here each becomes a code, a row that the parser reads, and a loop.
enum class Code {
  operand,
  scalar,
  attribute,
  constant,
#define MEMCFG_NODE(name, count, value) name,
#include "kernels/expression_nodes.inc"
};

using Function = double (*)(double x, double y, double z);

struct Name {
  const char* text;
  Code code;
  std::size_t arguments;
  Function of_numbers;
};

constexpr Name kNames[] = {
#define MEMCFG_NODE(name, count, value) \
  {#name,                               \
   Code::name,                          \
   count,                               \
   []([[maybe_unused]] double x,        \
      [[maybe_unused]] double y,        \
      [[maybe_unused]] double z) -> double { return value; }},
#include "kernels/expression_nodes.inc"
};

struct Instruction {
  Code code;
  std::array<std::size_t, 3> arguments = {};  // instructions before this one
  std::size_t count = 0;                      // of them
  Function function = nullptr;                // of these; null: the value
  bool uniform = true;                        // the same for all elements
  std::size_t operand = 0;                    // of operand and scalar
  double value = 0;                           // of constant and attribute
  std::size_t block = 0;                      // where an element-wise result goes
};

bool is_condition(Code code) {
  switch (code) {
#define MEMCFG_NODE(name, count, value)
#define MEMCFG_CONDITION(name, count, value) case Code::name:
#include "kernels/expression_nodes.inc"
    return true;
    default:
      return false;
  }
}

bool is_uniform_only(Code code) {
  switch (code) {
#define MEMCFG_NODE(name, count, value)
#define MEMCFG_UNIFORM(name, count, value) case Code::name:
#include "kernels/expression_nodes.inc"
    return true;
    default:
      return false;
  }
}

using Numbers = std::array<double, kInstructionsMost>;

struct Expression {
  std::vector<Instruction> instructions;
  std::vector<std::size_t> outputs;  // instructions
  std::vector<std::size_t> read;     // the uniform ones that elements read, ascending
  std::vector<std::size_t> kept;     // operands that are copied to blocks at the end
  std::size_t blocks = 0;            // that the element-wise results need
  bool direct = false;               // the last instruction makes the one output
  CompiledLoop::Run loop = nullptr;
  Count count = 0;
  std::size_t inputs = 0;    // operands that are read
  std::vector<bool> whole;   // which operands read are whole numbers (int64)
  std::vector<bool> narrow;  // which operands, outputs too, are bfloat16
  std::vector<bool> single;  // which are one number for all elements
  Count width = 0;           // elements of a block in float32; 0: no operand is narrow
};

// The words of a line. Read here and not by a stream, whose locale another library of
// the process may have set.
class Words {
 public:
  explicit Words(std::string_view line) noexcept : rest_(line) {}

  bool at_end() const noexcept { return rest_.find_first_not_of(' ') == rest_.npos; }

  // Empty at the end.
  std::string_view next() noexcept {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
    const std::string_view word = rest_.substr(0, rest_.find(' '));
    rest_.remove_prefix(word.size());
    return word;
  }

  // None if the next word is no whole number below 2^64.
  std::optional<std::uint64_t> number() noexcept {
    const std::string_view word = next();
    const char* const end = word.data() + word.size();
    std::uint64_t value = 0;
    const auto [last, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || last != end) return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

class Parser {
 public:
  Parser(const KernelSpec& spec, const SpecReader& reader)
      : spec_(spec), reader_(reader) {}

  Expression parse() {
    const std::string& text = reader_.text("expression");
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find(';'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      read_line(line);
    }
    if (found_.outputs.size() != spec_.outputs.size()) {
      malformed("has another number of outputs");
    }
    for (std::size_t place = 0; place < found_.instructions.size(); ++place) {
      if (!is_read_by_elements(place)) continue;
      found_.read.push_back(place);
    }
    place_blocks();
    keep_operands();
    const Instruction& last = found_.instructions.back();
    found_.direct = found_.outputs.size() == 1 && !last.uniform &&
                    found_.outputs[0] + 1 == found_.instructions.size() &&
                    last.code != Code::operand;
    found_.loop = reader_.has("interpreted") ? nullptr : CompiledLoop::find(text);
    return std::move(found_);
  }

 private:
  [[noreturn]] void malformed(const std::string& words) const {
    reader_.fail("has an expression that " + words);
  }

  void read_line(std::string_view line) {
    Words words(line);
    const std::string_view kind = words.next();
    if (!found_.outputs.empty()) malformed("goes on after its outputs");
    if (kind == "output") {
      while (!words.at_end()) {
        const std::size_t place = number(words, found_.instructions.size());
        if (is_condition(found_.instructions[place].code)) malformed("is a condition");
        found_.outputs.push_back(place);
      }
      return;
    }
    if (found_.instructions.size() == kInstructionsMost) malformed("is too long");
    Instruction made = instruction(kind, words);
    if (!words.at_end()) malformed("says more than it can mean: " + std::string(line));
    found_.instructions.push_back(made);
  }

  std::size_t number(Words& words, std::size_t end) const {
    const auto value = words.number();
    if (!value || *value >= end) malformed("names what is not there");
    return static_cast<std::size_t>(*value);
  }

  Instruction instruction(std::string_view kind, Words& words) const {
    Instruction made{};
    if (kind == "operand" || kind == "scalar") {
      made.code = kind == "operand" ? Code::operand : Code::scalar;
      made.uniform = made.code == Code::scalar;
      made.operand = number(words, kOperandsMost);
      if (made.operand >= spec_.inputs.size()) {
        reader_.fail("has more inputs than " + std::to_string(spec_.inputs.size()));
      }
      const OperandSpec& operand = spec_.inputs[made.operand];
      if (made.uniform && reader_.count(operand) != 1) malformed("reads one number");
      if (made.uniform && operand.dtype == kInt64) return made;
      if (operand.dtype == kBfloat16) return made;
      if (operand.dtype != kFloat32)
        reader_.fail("reads float32, not " + operand.dtype);
    } else if (kind == "constant") {
      const auto bits = words.number();
      if (!bits) malformed("has no constant where it says so");
      made.code = Code::constant;
      std::memcpy(&made.value, &*bits, sizeof *bits);
    } else if (kind == "attribute") {
      made.code = Code::attribute;
      made.value = reader_.real(std::string(words.next()).c_str());
    } else {
      calculate(made, kind, words);
    }
    return made;
  }

  void calculate(Instruction& made, std::string_view kind, Words& words) const {
    const auto* name =
        std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& each) {
          return kind == each.text;
        });
    if (name == std::end(kNames))
      malformed("knows a function '" + std::string(kind) + "'");
    made.code = name->code;
    made.count = name->arguments;
    made.function = name->of_numbers;
    for (std::size_t i = 0; i < made.count; ++i) {
      made.arguments[i] = number(words, found_.instructions.size());
      const Instruction& argument = found_.instructions[made.arguments[i]];
      const bool wanted = made.code == Code::select && i == 0;
      if (is_condition(argument.code) != wanted) malformed("mixes conditions, numbers");
      made.uniform = made.uniform && argument.uniform;
    }
    if (is_uniform_only(made.code) && !made.uniform)
      malformed("rounds elements, not uniform numbers");
  }

  bool is_read_by_elements(std::size_t place) const {
    const auto& all = found_.instructions;
    if (!all[place].uniform || all[place].code == Code::constant) return false;
    const auto& outputs = found_.outputs;
    if (std::find(outputs.begin(), outputs.end(), place) != outputs.end()) return true;
    return std::any_of(all.begin(), all.end(), [&](const Instruction& reader) {
      const auto* end = reader.arguments.begin() + reader.count;
      return !reader.uniform && std::find(reader.arguments.begin(), end, place) != end;
    });
  }

  // One of several outputs may overwrite an operand that another one is: that operand
  // is copied first.
  void keep_operands() {
    if (found_.outputs.size() == 1) return;
    for (const std::size_t place : found_.outputs) {
      Instruction& made = found_.instructions[place];
      if (made.code != Code::operand) continue;
      made.block = found_.blocks++;
      found_.kept.push_back(place);
    }
  }

  // A block each for the results that are alive at once; a result may take the block
  // of an argument that nobody reads after it.
  void place_blocks() {
    auto& all = found_.instructions;
    std::vector<std::size_t> last(all.size(), 0), free;
    for (std::size_t place = 0; place < all.size(); ++place) {
      for (std::size_t i = 0; i < all[place].count; ++i) {
        last[all[place].arguments[i]] = place;
      }
    }
    for (const std::size_t place : found_.outputs) last[place] = all.size();
    for (std::size_t place = 0; place < all.size(); ++place) {
      if (all[place].uniform || all[place].code == Code::operand) continue;
      for (std::size_t i = 0; i < all[place].count; ++i) {
        const std::size_t argument = all[place].arguments[i];
        const bool again = std::find(all[place].arguments.begin(),
                                     all[place].arguments.begin() + i,
                                     argument) != all[place].arguments.begin() + i;
        if (again || last[argument] != place || all[argument].uniform) continue;
        if (all[argument].code != Code::operand) free.push_back(all[argument].block);
      }
      if (free.empty()) free.push_back(found_.blocks++);
      all[place].block = free.back();
      free.pop_back();
    }
  }

  const KernelSpec& spec_;
  const SpecReader& reader_;
  Expression found_;
};

double calculate(const Instruction& each, const Numbers& n) {
  const auto& from = each.arguments;
  return each.function ? each.function(n[from[0]], n[from[1]], n[from[2]]) : each.value;
}

// The numbers that are the same for all elements.
Numbers calculate_uniform(const Expression& e, void* const* operands) {
  Numbers numbers;
  std::fill_n(numbers.begin(), e.instructions.size(), 0.0);
  for (std::size_t place = 0; place < e.instructions.size(); ++place) {
    const Instruction& each = e.instructions[place];
    if (!each.uniform) continue;
    if (each.code != Code::scalar) {
      numbers[place] = calculate(each, numbers);
    } else if (e.whole[each.operand]) {
      std::int64_t value;
      std::memcpy(&value, operands[each.operand], sizeof value);
      numbers[place] = static_cast<double>(value);
    } else if (e.narrow[each.operand]) {
      numbers[place] = widened(*static_cast<const Bfloat16*>(operands[each.operand]));
    } else {
      numbers[place] = *input(operands, static_cast<int>(each.operand));
    }
  }
  return numbers;
}

// What an instruction reads: an array, or a number for all elements.
struct Source {
  const float* array;
  float value;
};

template <class F>
MEMCFG_INLINE void loop1(const Source& a, Count count, float* out, F f) {
  MEMCFG_INDEPENDENT
  for (Count i = 0; i < count; ++i) out[i] = f(a.array[i]);
}

template <class F>
MEMCFG_INLINE void loop2(
    const Source& a, const Source& b, Count count, float* out, F f) {
  if (a.array == nullptr) {
    const float left = a.value;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = f(left, b.array[i]);
  } else if (b.array == nullptr) {
    const float right = b.value;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = f(a.array[i], right);
  } else {
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = f(a.array[i], b.array[i]);
  }
}

// By condition: a mask in the bits of a float.
MEMCFG_INLINE void select_loop(const Source& condition,
                               const Source& a,
                               const Source& b,
                               Count count,
                               float* out) {
  if (condition.array == nullptr) {
    const Source& chosen = condition.value != 0 ? a : b;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) {
      out[i] = chosen.array == nullptr ? chosen.value : chosen.array[i];
    }
    return;
  }
  const float* mask = condition.array;
  if (a.array == nullptr && b.array == nullptr) {
    const float yes = a.value, no = b.value;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = blend(bits_of(mask[i]), yes, no);
  } else if (a.array == nullptr) {
    const float yes = a.value;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = blend(bits_of(mask[i]), yes, b.array[i]);
  } else if (b.array == nullptr) {
    const float no = b.value;
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) out[i] = blend(bits_of(mask[i]), a.array[i], no);
  } else {
    MEMCFG_INDEPENDENT
    for (Count i = 0; i < count; ++i) {
      out[i] = blend(bits_of(mask[i]), a.array[i], b.array[i]);
    }
  }
}

// One instruction over a block.
MEMCFG_VECTORIZED void run_block(Code code,
                                 const Source& a,
                                 const Source& b,
                                 const Source& c,
                                 Count count,
                                 float* out) {
  switch (code) {
#define MEMCFG_LOOP_1(value) loop1(a, count, out, [](float x) { return value; })
#define MEMCFG_LOOP_2(value) \
  loop2(a, b, count, out, [](float x, float y) { return value; })
#define MEMCFG_LOOP_3(value) select_loop(a, b, c, count, out)
#define MEMCFG_NODE(name, count, value) \
  case Code::name:                      \
    MEMCFG_LOOP_##count(value);         \
    break;
#define MEMCFG_CONDITION(name, count, value) \
  MEMCFG_NODE(name, count, float_of(mask_of(value)))
#define MEMCFG_UNIFORM(name, count, value)
#include "kernels/expression_nodes.inc"
#undef MEMCFG_LOOP_1
#undef MEMCFG_LOOP_2
#undef MEMCFG_LOOP_3
    default:
      break;
  }
}

// Elements [begin, begin + count) of all outputs, block by block. Outputs may be the
// inputs of in-place pairs: they are written when all inputs of the block are read.
void interpret(const Expression& e,
               const Numbers& numbers,
               void* const* operands,
               Count begin,
               Count count) {
  alignas(64) float memory[kRegisterFloats];
  const Count blocks = static_cast<Count>(std::max<std::size_t>(e.blocks, 1));
  const Count size = std::min(kBlockMost, kRegisterFloats / blocks / 16 * 16);
  const auto block_of = [&](std::size_t place) {
    return memory + static_cast<Count>(e.instructions[place].block) * size;
  };
  const auto target = [&](std::size_t i) {
    return output(operands, static_cast<int>(e.inputs + i));
  };
  for (Count from = begin; from < begin + count; from += size) {
    const Count length = std::min(size, begin + count - from);
    const auto source = [&](std::size_t place) -> Source {
      const Instruction& each = e.instructions[place];
      if (each.uniform) return {nullptr, static_cast<float>(numbers[place])};
      if (each.code != Code::operand) return {block_of(place), 0};
      return {input(operands, static_cast<int>(each.operand)) + from, 0};
    };
    for (std::size_t place = 0; place < e.instructions.size(); ++place) {
      const Instruction& each = e.instructions[place];
      if (each.uniform || each.code == Code::operand) continue;
      const auto& arguments = each.arguments;
      const bool last = e.direct && place + 1 == e.instructions.size();
      run_block(each.code,
                source(arguments[0]),
                source(arguments[1]),
                source(arguments[2]),
                length,
                last ? target(0) + from : block_of(place));
    }
    if (e.direct) continue;
    for (const std::size_t place : e.kept) {
      std::memcpy(block_of(place), source(place).array, float_bytes(length));
    }
    for (std::size_t i = 0; i < e.outputs.size(); ++i) {
      const bool kept =
          e.instructions[e.outputs[i]].code == Code::operand && e.outputs.size() > 1;
      const Source made =
          kept ? Source{block_of(e.outputs[i]), 0} : source(e.outputs[i]);
      float* out = target(i) + from;
      if (made.array == nullptr) {
        std::fill_n(out, length, made.value);
      } else if (made.array != out) {
        std::memcpy(out, made.array, float_bytes(length));
      }
    }
  }
}

void run_compiled(const Expression& e,
                  const Numbers& numbers,
                  void* const* operands,
                  Count begin,
                  Count count) {
  std::array<float, kInstructionsMost> uniform;
  for (std::size_t i = 0; i < e.read.size(); ++i) {
    uniform[i] = static_cast<float>(numbers[e.read[i]]);
  }
  std::array<const float*, kOperandsMost> inputs;
  std::array<float*, kOperandsMost> outputs;
  for (std::size_t i = 0; i < e.inputs; ++i) {
    inputs[i] = input(operands, static_cast<int>(i)) + begin;
  }
  for (std::size_t i = 0; i < e.outputs.size(); ++i) {
    outputs[i] = output(operands, static_cast<int>(e.inputs + i)) + begin;
  }
  e.loop(inputs.data(), outputs.data(), uniform.data(), count);
}

using Run = void (*)(const Expression&, const Numbers&, void* const*, Count, Count);

// Elements [begin, begin + count) where operands are bfloat16: these are read and
// written through blocks of float32 that stay in the first-level cache.
void run_narrow(const Expression& e,
                Run run,
                const Numbers& numbers,
                void* const* operands,
                Count begin,
                Count count) {
  alignas(64) float memory[kRegisterFloats];
  const std::size_t all = e.narrow.size();
  std::array<void*, kOperandsMost> given;
  for (Count from = begin; from < begin + count; from += e.width) {
    const Count length = std::min(e.width, begin + count - from);
    float* block = memory;
    for (std::size_t i = 0; i < all; ++i) {
      if (!e.narrow[i]) {
        given[i] = static_cast<float*>(operands[i]) + (e.single[i] ? 0 : from);
        continue;
      }
      given[i] = block;
      block += e.width;
      if (i < e.inputs && !e.single[i]) {
        const auto* x = static_cast<const Bfloat16*>(operands[i]);
        widen(x + from, length, static_cast<float*>(given[i]));
      }
    }
    run(e, numbers, given.data(), 0, length);
    for (std::size_t i = e.inputs; i < all; ++i) {
      if (!e.narrow[i]) continue;
      auto* y = static_cast<Bfloat16*>(operands[i]);
      round(static_cast<const float*>(given[i]), length, y + from);
    }
  }
}

// An expression whose operands are as it wants them, and their bytes.
std::pair<Expression, Kernel::Sizes> parse(const KernelSpec& spec) {
  const SpecReader reader(spec);
  if (spec.inputs.size() + spec.outputs.size() > kOperandsMost ||
      spec.outputs.empty()) {
    reader.fail("has outputs, and at most 32 operands");
  }
  Expression e = Parser(spec, reader).parse();
  Kernel::Sizes sizes;
  e.count = reader.count(spec.outputs[0]);
  e.inputs = spec.inputs.size();
  for (const OperandSpec& each : spec.inputs) {
    sizes.inputs.push_back(reader.bytes(each));
    e.whole.push_back(each.dtype == kInt64);
    e.narrow.push_back(each.dtype == kBfloat16);
    e.single.push_back(reader.count(each) != e.count);
  }
  for (const OperandSpec& each : spec.outputs) {
    if (each.dtype != kFloat32 && each.dtype != kBfloat16) {
      reader.fail("writes float32, not " + each.dtype);
    }
    e.narrow.push_back(each.dtype == kBfloat16);
    e.single.push_back(false);
    sizes.outputs.push_back(reader.bytes(each));
    if (reader.count(each) != e.count) reader.fail("has outputs of several sizes");
  }
  for (const Instruction& each : e.instructions) {
    if (each.code == Code::operand &&
        reader.count(spec.inputs[each.operand]) != e.count) {
      reader.fail("has operands of several sizes");
    }
  }
  const Count narrow = std::count(e.narrow.begin(), e.narrow.end(), true);
  if (narrow > 0) e.width = std::min(kBlockMost, kRegisterFloats / narrow / 16 * 16);
  return {std::move(e), std::move(sizes)};
}

}  // namespace

KernelPtr make_expression(const KernelSpec& spec) {
  const auto [parsed, sizes] = parse(spec);
  return function_kernel(sizes, 0, [e = parsed](void* const* operands, void*) {
    const Numbers numbers = calculate_uniform(e, operands);
    const Run run = e.loop == nullptr ? interpret : run_compiled;
    parallel_chunks(e.count, kChunk, [&](Count begin, Count count) {
      if (e.width == 0) {
        run(e, numbers, operands, begin, count);
      } else {
        run_narrow(e, run, numbers, operands, begin, count);
      }
    });
  });
}

RowLoop make_row_expression(const KernelSpec& spec, std::vector<Count> strides) {
  Expression parsed = parse(spec).first;
  const SpecReader reader(spec);
  const Count length = reader.rows(spec.outputs[0]).channels;
  if (parsed.width != 0 || strides.size() != parsed.narrow.size()) {
    reader.fail("has float32 alone, and a stride for each operand");
  }
  for (std::size_t i = 0; i < strides.size(); ++i) {
    if (parsed.single[i]) strides[i] = 0;
  }
  return [e = std::move(parsed), strides = std::move(strides), length](
             void* const* operands) {
    const Numbers numbers = calculate_uniform(e, operands);
    const Run run = e.loop == nullptr ? interpret : run_compiled;
    const Count pieces = (length + kChunk - 1) / kChunk;  // of a row
    parallel_for(e.count / length * pieces, e.count, [&](Count i) {
      const Count row = i / pieces, begin = i % pieces * kChunk;
      std::array<void*, kOperandsMost> at;
      for (std::size_t j = 0; j < strides.size(); ++j) {
        at[j] = static_cast<float*>(operands[j]) + row * strides[j];
      }
      run(e, numbers, at.data(), begin, std::min(kChunk, length - begin));
    });
  };
}

const KernelType kChain{"chain", make_expression, Floats::bfloat16};

}  // namespace memcfg
