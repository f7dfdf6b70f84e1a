// Rows from a file: runs, short reads, interruptions, failures, and the end.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "files.hpp"
#include "memcfg/read_rows.hpp"

using memcfg::read_rows;
using memcfg::RowFile;
using memcfg::RowsRead;
using Rows = std::vector<std::int64_t>;

namespace {

constexpr std::int64_t kOffset = 5;
constexpr std::int64_t kRowBytes = 3;
constexpr std::int64_t kCount = 100;  // rows in the file

// A file of rows "r", r, r + 1 behind a head of five bytes; closed at the end.
class Open {
 public:
  Open() {
    std::string bytes(kOffset, '#');
    for (std::int64_t row = 0; row < kCount; ++row) bytes += text(row);
    files::write(folder_ / "rows", bytes);
    file.descriptor = ::open((folder_ / "rows").c_str(), O_RDONLY);
    CHECK(file.descriptor >= 0);
  }
  ~Open() { ::close(file.descriptor); }

  static std::string text(std::int64_t row) {
    return {'r', static_cast<char>(row), static_cast<char>(row + 1)};
  }
  static std::string text(const Rows& rows) {
    std::string all;
    for (const std::int64_t row : rows) all += text(row);
    return all;
  }
  void cut(std::int64_t size) {
    CHECK(truncate((folder_ / "rows").c_str(), size) == 0);
  }

  RowFile file{-1, kOffset, kRowBytes};

 private:
  files::Folder folder_;
};

struct Result {
  RowsRead read;
  std::string bytes;
};

template <typename... Read>
Result rows_of(const RowFile& file, const Rows& rows, Read... read) {
  std::string bytes(rows.size() * kRowBytes, '\0');
  const auto count = static_cast<std::int64_t>(rows.size());
  const RowsRead done = read_rows(file, rows.data(), count, bytes.data(), read...);
  return {done, bytes};
}

}  // namespace

TEST(rows_come_in_the_order_that_is_asked_for) {
  const Open open;
  std::mt19937 random(3);
  for (const std::size_t count : {0UL, 1UL, 2UL, 50UL, 1000UL}) {
    Rows rows(count);
    for (std::int64_t& row : rows) row = static_cast<std::int64_t>(random() % kCount);
    const Result result = rows_of(open.file, rows);
    CHECK(result.read.rows == static_cast<std::int64_t>(count));
    CHECK(result.read.error == 0);
    CHECK(result.bytes == Open::text(rows));
  }
}

TEST(rows_that_follow_one_another_are_one_read) {
  const Open open;
  std::vector<std::size_t> sizes;
  const auto noting = [&](int file, char* out, std::size_t size, std::int64_t at) {
    sizes.push_back(size);
    return ::pread(file, out, size, at);
  };
  const Rows rows = {4, 5, 6, 7, 9, 8, 8, 0, 1};
  CHECK(rows_of(open.file, rows, noting).bytes == Open::text(rows));
  CHECK(sizes == (std::vector<std::size_t>{12, 3, 3, 3, 6}));
}

TEST(short_and_interrupted_reads_are_gone_on_with) {
  const Open open;
  int calls = 0;
  const auto slow = [&](int file, char* out, std::size_t size, std::int64_t at) {
    if (++calls % 2 == 1) {
      errno = EINTR;
      return ssize_t{-1};
    }
    return ::pread(file, out, std::min<std::size_t>(size, 2), at);
  };
  Rows rows(kCount);
  std::iota(rows.begin(), rows.end(), 0);
  const Result result = rows_of(open.file, rows, slow);
  CHECK(result.read.rows == kCount && result.read.error == 0);
  CHECK(result.bytes == Open::text(rows));
}

TEST(the_end_of_the_file_is_told_with_the_rows_before_it) {
  Open open;
  open.cut(kOffset + 10 * kRowBytes + 1);
  for (const Rows& rows : {Rows{3, 8, 9, 10, 11, 2}, Rows{3, 8, 9, 11}}) {
    const Result result = rows_of(open.file, rows);
    CHECK(result.read.rows == 3);
    CHECK(result.read.error == 0);
    CHECK(result.bytes.substr(0, 3 * kRowBytes) == Open::text({3, 8, 9}));
  }
}

TEST(a_failure_is_told_by_its_number) {
  const Open open;
  CHECK(rows_of({-1, 0, kRowBytes}, {0}).read.error == EBADF);
  int calls = 0;
  const auto failing = [&](int file, char* out, std::size_t size, std::int64_t at) {
    if (++calls < 3) return ::pread(file, out, size, at);
    errno = EIO;
    return ssize_t{-1};
  };
  const Result result = rows_of(open.file, {1, 5, 9, 13}, failing);
  CHECK(result.read.rows == 2 && result.read.error == EIO);
}

TEST(a_place_that_no_file_has_is_refused) {
  const Open open;
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t row : {kMax, kMax / kRowBytes, kMax / kRowBytes - 2})
    CHECK(rows_of(open.file, {0, row}).read.error == EOVERFLOW);
}

TEST(threads_read_one_file_side_by_side) {
  const Open open;
  std::vector<std::thread> threads;
  std::vector<std::string> found(4);
  for (std::size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto start = static_cast<std::int64_t>(i);
      for (int turn = 0; turn < 200; ++turn)
        found[i] = rows_of(open.file, {start, 50 - start, start + 1}).bytes;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto start = static_cast<std::int64_t>(i);
    CHECK(found[i] == Open::text({start, 50 - start, start + 1}));
  }
}
