// Rows of one length, gathered from a file.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace memcfg {

// Row r lies at offset + r * row_bytes.
struct RowFile {
  int descriptor;
  std::int64_t offset;     // >= 0
  std::int64_t row_bytes;  // > 0
};

struct RowsRead {
  std::int64_t rows;  // that were read whole
  int error;          // why the next was not, as errno(3); 0: the file ends
};

// Pre: offset >= 0, size > 0. Reads it all, or up to the end; minus errno(3) where that
// cannot be. `read` is pread(2), which may return less than it is asked for.
template <typename Read>
std::int64_t read_fully(
    Read read, int file, char* out, std::int64_t size, std::int64_t offset) {
  constexpr std::int64_t kMost = 1 << 30;  // Linux takes no more than 2 GiB at once
  std::int64_t done = 0;
  while (done < size) {
    const auto part = static_cast<std::size_t>(std::min(size - done, kMost));
    const std::int64_t count = read(file, out + done, part, offset + done);
    if (count == 0) break;
    if (count > 0) {
      done += count;
    } else if (errno != EINTR) {
      return -errno;
    }
  }
  return done;
}

// How many of the `count` numbers at `rows` follow one another.
inline std::int64_t run_length(const std::int64_t* rows, std::int64_t count) {
  std::int64_t length = 1;
  while (length < count && rows[length] - length == rows[0]) ++length;
  return length;
}

// Reads rows in any order, one after the other into `out`; rows that follow one another
// in the file are one read.
// Pre: rows are not negative; room for all of them in `out`.
template <typename Read = decltype(&::pread)>
RowsRead read_rows(const RowFile& file,
                   const std::int64_t* rows,
                   std::int64_t count,
                   char* out,
                   Read read = &::pread) {
  const std::int64_t row_bytes = file.row_bytes;
  const std::int64_t end =
      (std::numeric_limits<std::int64_t>::max() - file.offset) / row_bytes;
  std::int64_t done = 0;
  while (done < count) {
    const std::int64_t run = run_length(rows + done, count - done);
    if (rows[done] >= end - run) return {done, EOVERFLOW};
    const std::int64_t size = run * row_bytes;
    const std::int64_t found = read_fully(read,
                                          file.descriptor,
                                          out + done * row_bytes,
                                          size,
                                          file.offset + rows[done] * row_bytes);
    if (found < 0) return {done, static_cast<int>(-found)};
    if (found < size) return {done + found / row_bytes, 0};
    done += run;
  }
  return {done, 0};
}

}  // namespace memcfg
