// Files as memory: lengths, bytes, owners, blocks.
#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "check.hpp"
#include "conformance.hpp"
#include "files.hpp"
#include "memcfg/host_limits.hpp"
#include "memcfg/pool.hpp"
#include "threading.hpp"

using namespace files;
using conformance::kMiB;
using memcfg::kNoLimit;
using memcfg::Lifetime;
using memcfg::Request;

namespace {

constexpr Bytes kSizes[] = {1, 63, 64, 65, 100, 4095, 4096, 4097, 100000, 3 * kMiB + 1};

bool all(void* address, Bytes size, unsigned char value) {
  return check::all_bytes(address, size, value);
}

Request zeroed(Bytes size, Lifetime lifetime = Lifetime::unknown) {
  Request request{size, 64, lifetime};
  request.zeroed = true;
  return request;
}

}  // namespace

TEST(a_file_has_exactly_its_length_and_its_disk) {
  const Folder folder;
  for (const Bytes size : kSizes) {
    const std::string path = folder / std::to_string(size);
    FileResource file(at(path, size));
    CHECK(file.size() == size && std::filesystem::file_size(path) == size);
    CHECK(disk_of(path) >= size);
    void* const block = file.allocate({size});
    CHECK(file.stats().largest_free == 0 && file.stats().current >= size);
    CHECK(all(block, size, 0));
    std::memset(block, 'x', size);
    CHECK(read(path) == std::string(size, 'x'));
    file.check();
    file.deallocate(block, size);
    file.close();
    CHECK(read(path) == std::string(size, 'x'));
  }
}

TEST(no_block_reaches_behind_the_end) {
  const Folder folder;
  for (const Bytes size : kSizes) {
    FileResource file(at(folder / std::to_string(size), size));
    CHECK(file.stats().largest_free == size);
    CHECK_THROWS(memcfg::out_of_memory, file.allocate({size + 1}));
    std::vector<void*> lines;
    try {
      for (;;) lines.push_back(file.allocate({64, 64, Lifetime(lines.size() % 3)}));
    } catch (const memcfg::out_of_memory& error) {
      CHECK(error.info().cause == memcfg::OutOfMemoryInfo::file_full);
    }
    CHECK(lines.size() == size / 64);
    for (void* line : lines) CHECK(file.offset_of(line) + 64 <= size);
    for (void* line : lines) file.deallocate(line, 64);
    file.check();
    CHECK(file.stats().largest_free == size);
  }
}

TEST(the_whole_file_is_aligned_to_a_page) {
  const Folder folder;
  for (const Bytes size : kSizes) {
    FileResource file(at(folder / std::to_string(size), size));
    void* const block = file.allocate({size, 4096, Lifetime::short_lived});
    CHECK(file.offset_of(block) == 0);
    file.deallocate(block, size);
    void* const first = file.allocate({1});
    CHECK_THROWS(memcfg::out_of_memory, file.allocate({size, 4096}));
    file.deallocate(first, 1);
    file.check();
  }
}

TEST(an_existing_file_keeps_its_bytes) {
  const Folder folder;
  const std::string path = folder / "f";
  write(path, std::string(1000, 'o'));
  {
    FileResource same(at(path, 1000));
    CHECK(same.size() == 1000);
  }
  CHECK(read(path) == std::string(1000, 'o'));
  CHECK(FileResource(at(path, 0)).size() == 1000);
  {
    FileResource longer(at(path, 5000));
    CHECK(all(longer.allocate({5000}), 1000, 'o'));
  }
  CHECK(read(path) == std::string(1000, 'o') + std::string(4000, '\0'));
  CHECK_THROWS(std::invalid_argument, FileResource(at(path, 4999)));
  FileOptions odd = at(path, 0);
  odd.unit = 3;
  CHECK_THROWS(std::invalid_argument, FileResource{odd});
  CHECK(std::filesystem::file_size(path) == 5000);
}

TEST(overwriting_replaces_the_file_and_keeps_its_permissions) {
  const Folder folder;
  const std::string path = folder / "f";
  for (const Bytes size : {Bytes{0}, Bytes{10}, Bytes{5000}}) {
    write(path, std::string(1000, 'o'));
    std::filesystem::permissions(path, std::filesystem::perms(0640));
    const FileResource file(replacing(path, size));
    CHECK(read(path) == std::string(size == 0 ? 1000 : size, '\0'));
    CHECK(std::filesystem::status(path).permissions() == std::filesystem::perms(0640));
    CHECK(folder.content().size() == 1);
  }
  const FileResource fresh(replacing(folder / "g", 10));
  CHECK(read(folder / "g") == std::string(10, '\0'));
}

TEST(overwriting_keeps_the_owner_and_its_permissions) {
  if (geteuid() != 0) return;  // others can give no file away
  const Folder folder;
  const std::string path = folder / "f";
  write(path, "text");
  CHECK(chown(path.c_str(), 1234, 4321) == 0 && chmod(path.c_str(), 02640) == 0);
  const FileResource file(replacing(path, 10));
  struct stat row = {};
  CHECK(stat(path.c_str(), &row) == 0 && row.st_size == 10);
  CHECK(row.st_uid == 1234 && row.st_gid == 4321 && (row.st_mode & 07777) == 02640);
}

TEST(what_cannot_be_a_length) {
  const Folder folder;
  write(folder / "empty", "");
  CHECK_THROWS(std::invalid_argument, FileResource(at(folder / "none", 0)));
  CHECK_THROWS(std::invalid_argument, FileResource(at(folder / "empty", 0)));
  CHECK(error_of([&] { FileResource(at(folder / "f", kNoLimit)); }) == EFBIG);
  CHECK(error_of([&] { FileResource(at(folder / "f", kNoLimit / 4)); }) == ENOSPC);
  CHECK(folder.content().size() == 1);
  CHECK(FileResource(at(folder / "empty", 3)).size() == 3);
}

TEST(paths_that_lead_to_no_file) {
  const Folder folder;
  std::filesystem::create_symlink(folder / "nothing", folder / "link");
  CHECK(error_of([&] { FileResource(at(folder.path(), 10)); }) == EISDIR);
  CHECK(error_of([&] { FileResource(at("/dev/null", 10)); }) == EINVAL);
  CHECK(error_of([&] { FileResource(at(folder / "link", 10)); }) == EINVAL);
  CHECK(error_of([&] { FileResource(at(folder / "a/b", 10)); }) == ENOENT);
  CHECK(error_of([&] { FileResource(at(folder / "a/b", 0)); }) == ENOENT);
  CHECK(error_of([&] { FileResource(at(folder / std::string(256, 'n'), 10)); }) ==
        ENAMETOOLONG);
  write(folder / "f", "x");
  CHECK(error_of([&] { FileResource(at(folder / "f/b", 10)); }) == ENOTDIR);
  CHECK(FileResource(at(folder / std::string(255, 'n'), 10)).size() == 10);
  try {
    FileResource(at(folder / "a/b", 10));
  } catch (const memcfg::file_error& error) {
    CHECK(error.path() == folder / "a/b");
    CHECK(std::string(error.what()).find("the folder " + folder / "a") !=
          std::string::npos);
  }
}

TEST(gaps_get_their_disk) {
  const Folder folder;
  const std::string path = folder / "sparse";
  write(path, "begin");
  std::filesystem::resize_file(path, 4 * kMiB);
  CHECK(disk_of(path) < kMiB);
  const FileResource file(at(path, 0));
  CHECK(disk_of(path) >= 4 * kMiB);
  CHECK(read(path) == "begin" + std::string(4 * kMiB - 5, '\0'));
}

TEST(a_file_has_one_owner) {
  const Folder folder;
  const std::string path = folder / "f";
  write(path, "text");
  {
    const FileResource file(at(path, 1000));
    for (const FileOptions& options :
         {at(path, 0), at(path, 2000), replacing(path, 5), passing(path, 1000)}) {
      CHECK(error_of([&] { FileResource{options}; }) == EWOULDBLOCK);
    }
    CHECK(std::filesystem::file_size(path) == 1000 && folder.content().size() == 1);
  }
  try {
    const FileResource file(at(path, 1000));
    FileResource(at(path, 1000));
    check::fail(__FILE__, __LINE__, "it has two owners");
  } catch (const memcfg::file_error& error) {
    CHECK(std::string(error.what()).find("owner in this process") != std::string::npos);
  }
  FileResource next(replacing(path, 7));
  CHECK(error_of([&] { FileResource(at(path, 7)); }) == EWOULDBLOCK);
  next.close();
  const FileResource last(at(path, 7));
}

// Not by a mapping: any lock of flock(2).
TEST(what_another_has_locked) {
  const Folder folder;
  write(folder / "f", "text");
  const FileResource ours(at(folder / "g", 10));
  const int file = open((folder / "f").c_str(), O_RDWR | O_CLOEXEC);
  CHECK(flock(file, LOCK_EX | LOCK_NB) == 0);
  try {
    FileResource(at(folder / "f", 1000));
    check::fail(__FILE__, __LINE__, "it has two owners");
  } catch (const memcfg::file_error& error) {
    CHECK(error.number() == EWOULDBLOCK);
    CHECK(std::string(error.what()).find("another process") != std::string::npos);
  }
  close(file);
  CHECK(FileResource(at(folder / "f", 0)).size() == 4);
}

TEST(a_file_that_was_there_does_not_pass_unless_it_is_overwritten) {
  const Folder folder;
  for (const char* bytes : {"text", ""}) {
    write(folder / "f", bytes);
    for (const Bytes size : {Bytes{0}, Bytes{3}, Bytes{1000}}) {
      CHECK(error_of([&] { FileResource(passing(folder / "f", size)); }) == EEXIST);
      CHECK(read(folder / "f") == bytes);
    }
    FileResource(replacing_passing(folder / "f", 1000)).check();
    CHECK(folder.content().empty());
  }
}

TEST(a_file_that_passes_is_removed_unless_it_is_another_one) {
  const Folder folder;
  const std::string path = folder / "f";
  {
    const FileResource file(passing(path, 1000));
  }
  CHECK(folder.content().empty());
  {
    FileResource file(passing(path, 1000));
    std::filesystem::rename(path, folder / "moved");
    write(path, "another");
    file.close();
  }
  CHECK(read(path) == "another" && std::filesystem::exists(folder / "moved"));
  {
    FileResource file(replacing_passing(folder / "moved", 0));
    std::filesystem::remove(folder / "moved");
    file.close();
  }
  CHECK(folder.content().size() == 1);
}

TEST(closing) {
  const Folder folder;
  const FaultyFiles system;
  FileResource file(at(folder / "f", 1000), system);
  void* const block = file.allocate({100, 64, Lifetime::unknown, "a"});
  system.order.clear();
  CHECK_THROWS(memcfg::still_held, file.close());
  CHECK(!file.closed());
  file.deallocate(block, 100);
  file.flush();
  CHECK(system.page_flushes == 1 && system.order == "f");
  file.close();
  CHECK(system.page_flushes == 2 && system.order == "ff");
  file.close();
  CHECK(file.closed() && system.has_all_back());
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { file.allocate({1}); },
                                          [&] { file.flush(); },
                                          [&] { file.drop(0, 1); }}) {
    CHECK_THROWS(std::invalid_argument, call());
  }
  CHECK_THROWS(memcfg::bad_free, file.deallocate(block, 100));
  CHECK(file.stats().reserved == 0 && file.stats().largest_free == 0);
  file.check();
  file.abandon();
}

TEST(abandoning_ends_blocks_that_are_out) {
  const Folder folder;
  const FaultyFiles system;
  const auto file = std::make_unique<FileResource>(at(folder / "f", 1000), system);
  void* const block = file->allocate({1000});
  std::memset(block, 'x', 1000);
  file->abandon();
  CHECK(system.has_all_back() && read(folder / "f") == std::string(1000, 'x'));
  file->deallocate(block, 1000);
  file->check();
}

// Whatever was there before, and whatever blocks have left behind.
TEST(zeroed_blocks_are_zero) {
  const Folder folder;
  std::mt19937 random(5);
  for (const Bytes before : {Bytes{0}, Bytes{1000}, kMiB}) {
    write(folder / "f", std::string(before, 'o'));
    FileResource file(at(folder / "f", kMiB));
    std::vector<std::pair<void*, Bytes>> blocks;
    for (int step = 0; step < 2000; ++step) {
      if (random() % 2 == 0 && !blocks.empty()) {
        const auto [address, size] = blocks.back();
        blocks.pop_back();
        file.deallocate(address, size);
        continue;
      }
      const Bytes size = conformance::log_uniform(random, kMiB);
      try {
        void* const block = file.allocate(zeroed(size, Lifetime(random() % 3)));
        blocks.emplace_back(block, size);
        CHECK(all(block, size, 0));
        std::memset(block, 'x', size);
      } catch (const memcfg::out_of_memory&) {
      }
    }
    file.check();
  }
}

TEST(fresh_bytes_are_not_touched_to_be_zero) {
  const Folder folder;
  FileResource file(at(folder / "f", 64 * kMiB));
  file.allocate(zeroed(40 * kMiB));
  CHECK(file.drop(0, file.size()) == 0);
}

TEST(blocks_change_their_size_where_they_lie) {
  const Folder folder;
  FileResource file(at(folder / "f", 1000));
  void* const block = file.allocate({100});
  std::memset(block, 'x', 100);
  CHECK(file.resize(block, 100, 900) && all(block, 100, 'x'));
  CHECK(!file.resize(block, 900, 1001));
  CHECK(file.resize(block, 900, 1000) && file.stats().requested == 1000);
  CHECK(file.resize(block, 1000, 64));
  void* const other = file.allocate({64});
  CHECK(!file.resize(block, 64, 65));
  CHECK_THROWS(memcfg::bad_free, file.resize(block, 65, 64));
  CHECK(file.resize(other, 64, 960 - 64) && !file.resize(other, 960 - 64, 900));
  file.deallocate(other, 960 - 64);
  file.check();
  CHECK(file.resize(block, 64, 128));
  file.deallocate(block, 128);
  CHECK(file.stats().largest_free == 1000);
}

TEST(dropped_pages_come_back_with_their_bytes) {
  const Folder folder;
  FileResource file(at(folder / "f", 8 * kMiB + 10));
  void* const block = file.allocate({8 * kMiB + 10});
  std::memset(block, 'x', 8 * kMiB + 10);
  CHECK(file.drop(0, file.size()) == 8 * kMiB + 4096);
  CHECK(file.drop(0, file.size()) == 0);
  CHECK(all(block, 8 * kMiB + 10, 'x'));
  CHECK(file.drop(1, 8191) == 4096);  // one whole page
  CHECK(file.drop(5, 100) == 0);
  CHECK_THROWS(std::invalid_argument, file.drop(0, file.size() + 1));
  CHECK_THROWS(std::invalid_argument, file.drop(file.size() + 1, 0));
  CHECK_THROWS(std::invalid_argument, file.drop(kNoLimit, kNoLimit));
}

TEST(resident_pages_of_files_refuse_nobody) {
  const Folder folder;
  FileResource file(at(folder / "f", 64 * kMiB));
  memcfg::Pool pool("pool");
  pool.deallocate(pool.allocate({kMiB}), kMiB);
  void* const block = file.allocate({64 * kMiB});
  std::memset(block, 'x', 64 * kMiB);
  memcfg::set_host_limits({kNoLimit, memcfg::resident_size() - 32 * kMiB});
  std::memset(block, 'y', 64 * kMiB);
  CHECK(memcfg::resident_size() > memcfg::host_limits().rss);
  pool.deallocate(pool.allocate({16 * kMiB}), 16 * kMiB);
  CHECK_THROWS(memcfg::out_of_memory, pool.allocate({64 * kMiB}));
  CHECK(all(block, 64 * kMiB, 'y'));
  CHECK(memcfg::tracked_bytes() == 0);
  memcfg::set_host_limits({});
}

TEST(threads_use_one_file) {
  const Folder folder;
  FileResource file(at(folder / "f", 64 * kMiB));
  void* const held = file.allocate({64});
  std::atomic<bool> done{false};
  threading::Threads threads;
  threads.start([&] {
    while (!done) file.flush();
  });
  threads.start([&] {
    while (!done) {
      file.drop(0, file.size());
      CHECK_THROWS(std::invalid_argument, file.drop(file.size(), 1));
    }
  });
  threads.start([&] {
    while (!done) {
      try {
        file.close();
      } catch (const memcfg::still_held&) {
      }
      if (file.closed()) return;
    }
  });
  std::vector<std::pair<void*, unsigned char>> blocks;
  for (int round = 0; round < 300; ++round) {
    const auto value = static_cast<unsigned char>(round);
    blocks.emplace_back(file.allocate({100000}), value);
    std::memset(blocks.back().first, value, 100000);
    if (blocks.size() < 100) continue;
    CHECK(all(blocks.front().first, 100000, blocks.front().second));
    file.deallocate(blocks.front().first, 100000);
    blocks.erase(blocks.begin());
  }
  for (const auto& row : blocks) file.deallocate(row.first, 100000);
  done = true;
  threads.finish();  // or one of them might meet a file that another has closed
  file.check();
  file.deallocate(held, 64);
  file.close();
  CHECK(file.closed());
}

TEST(a_pool_in_a_file) {
  const Folder folder;
  auto file = std::make_shared<FileResource>(at(folder / "f", 64 * kMiB));
  memcfg::Pool pool("", 64 * kMiB, true, file);
  std::vector<void*> blocks;
  for (int i = 0; i < 1000; ++i) blocks.push_back(pool.allocate({30000}));
  CHECK(file->stats().current >= 1000 * 30000);
  CHECK_THROWS(memcfg::still_held, file->close());
  for (void* block : blocks) pool.deallocate(block, 30000);
  pool.trim(0);
  pool.check();
  file->close();
  CHECK_THROWS(memcfg::out_of_memory, pool.allocate({100}));
}
