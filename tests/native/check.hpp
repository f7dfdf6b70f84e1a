// Tests in sixty lines: TEST(name) { CHECK(x == 3); CHECK_THROWS(type, call()); }
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

struct Register {
  Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

struct Failed : std::exception {
  explicit Failed(std::string text) : text(std::move(text)) {}
  const char* what() const noexcept override { return text.c_str(); }
  std::string text;
};

// One call, which sanitizers do not slow down: a loop over bytes takes minutes.
inline bool all_bytes(const void* address, std::size_t size, unsigned char value) {
  const auto* const bytes = static_cast<const unsigned char*>(address);
  return size == 0 ||
         (bytes[0] == value && std::memcmp(bytes, bytes + 1, size - 1) == 0);
}

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  throw Failed(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

inline bool passes(const Test& test) {
  try {
    test.body();
    return true;
  } catch (const std::exception& error) {
    std::printf("FAILED %s\n  %s\n", test.name, error.what());
    std::fflush(stdout);
  }
  return false;
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                  \
  do {                                                                    \
    if (!(condition)) check::fail(__FILE__, __LINE__, "not " #condition); \
  } while (false)

#define CHECK_THROWS(type, expression)                                              \
  do {                                                                              \
    bool thrown = false;                                                            \
    try {                                                                           \
      static_cast<void>(expression);                                                \
    } catch (const type&) {                                                         \
      thrown = true;                                                                \
    }                                                                               \
    if (!thrown) check::fail(__FILE__, __LINE__, "no " #type " from " #expression); \
  } while (false)

// One test file is one program; with an argument it runs the test of that name.
int main(int count, char** words) {
  int passed = 0;
  int failed = 0;
  for (const check::Test& test : check::tests()) {
    if (count > 1 && std::string(words[1]) != test.name) continue;
    ++(check::passes(test) ? passed : failed);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
