#include "kernels/spec.hpp"

#include <algorithm>

namespace memcfg {
namespace {

constexpr Count kMost = Count{1} << 60;

Bytes item_bytes(const std::string& dtype) {
  if (dtype == "bool" || dtype == "int8" || dtype == "uint8") return 1;
  if (dtype == "int16" || dtype == "uint16" || dtype == "float16" ||
      dtype == kBfloat16) {
    return 2;
  }
  if (dtype == "int32" || dtype == "uint32" || dtype == "float32") return 4;
  if (dtype == "int64" || dtype == "uint64" || dtype == "float64") return 8;
  return 0;
}

}  // namespace

Count SpecReader::times(Count left, Count right) const {
  if (right != 0 && left > kMost / right) fail("has too large a shape");
  return left * right;
}

const std::vector<Count>& SpecReader::shape(const OperandSpec& operand,
                                            std::size_t rank) const {
  if (operand.shape.size() != rank) {
    fail("needs an operand of " + std::to_string(rank) + " dimensions, got " +
         std::to_string(operand.shape.size()));
  }
  count(operand);
  return operand.shape;
}

Count SpecReader::count(const OperandSpec& operand) const {
  Count result = 1;
  for (const Count length : operand.shape) {
    if (length < 1) fail("needs dimensions >= 1, got " + std::to_string(length));
    result = times(result, length);
  }
  return result;
}

SpecReader::Rows SpecReader::rows(const OperandSpec& operand) const {
  const Count all = count(operand);
  const Count channels = operand.shape.empty() ? 1 : operand.shape.back();
  return {all / channels, channels, all};
}

Bytes SpecReader::bytes(const OperandSpec& operand) const {
  const Bytes item = item_bytes(operand.dtype);
  if (item == 0) fail("has no operands of type " + operand.dtype);
  return static_cast<Bytes>(count(operand)) * item;
}

Count SpecReader::narrow(Count value, const char* name) const {
  if (value < 1 || value > std::numeric_limits<std::int32_t>::max()) {
    fail(std::string("needs 0 < ") + name + " < 2^31, got " + std::to_string(value));
  }
  return value;
}

const KernelSpec::Attribute& SpecReader::attribute(const char* name) const {
  const auto found = spec_.attributes.find(name);
  if (found == spec_.attributes.end()) {
    fail(std::string("needs the attribute '") + name + "'");
  }
  return found->second;
}

Count SpecReader::integer(const char* name, Count least) const {
  const auto* value = std::get_if<Count>(&attribute(name));
  if (value == nullptr) fail(std::string("needs a whole number '") + name + "'");
  if (*value < least) {
    fail(std::string("needs ") + name + " >= " + std::to_string(least) + ", got " +
         std::to_string(*value));
  }
  return *value;
}

double SpecReader::real(const char* name) const {
  const auto& found = attribute(name);
  if (const auto* value = std::get_if<double>(&found)) return *value;
  if (const auto* value = std::get_if<Count>(&found)) {
    return static_cast<double>(*value);
  }
  fail(std::string("needs a number '") + name + "'");
}

const std::string& SpecReader::text(const char* name) const {
  const auto* value = std::get_if<std::string>(&attribute(name));
  if (value == nullptr) fail(std::string("needs a text '") + name + "'");
  return *value;
}

const std::vector<Count>& SpecReader::list(const char* name,
                                           std::size_t size,
                                           Count least) const {
  const auto& found = integers(name, least);
  if (found.size() != size) {
    fail("needs " + std::to_string(size) + " whole numbers '" + name + "'");
  }
  return found;
}

const std::vector<Count>& SpecReader::integers(const char* name, Count least) const {
  const auto* value = std::get_if<std::vector<Count>>(&attribute(name));
  if (value == nullptr) fail(std::string("needs whole numbers '") + name + "'");
  for (const Count each : *value) {
    if (each < least || each > std::numeric_limits<std::int32_t>::max()) {
      fail("needs " + std::to_string(least) + " <= " + name + " < 2^31, got " +
           std::to_string(each));
    }
  }
  return *value;
}

void SpecReader::check_dtypes(const char* side,
                              const std::vector<OperandSpec>& operands,
                              const Dtypes& dtypes) const {
  const auto fits = [](const OperandSpec& operand, const char* dtype) {
    return dtype == kAnyDtype || operand.dtype == dtype;
  };
  if (std::equal(
          operands.begin(), operands.end(), dtypes.begin(), dtypes.end(), fits)) {
    return;
  }
  std::string words = std::string("has ") + side;
  for (const char* dtype : dtypes) words += std::string(" ") + (dtype ? dtype : "any");
  words += ", got";
  for (const OperandSpec& operand : operands) words += " " + operand.dtype;
  fail(words);
}

}  // namespace memcfg
