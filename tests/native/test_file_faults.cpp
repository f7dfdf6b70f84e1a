// Files when something goes wrong: every call, the disk, other processes.
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "check.hpp"
#include "failing_new.hpp"
#include "files.hpp"
#include "memcfg/pool.hpp"
#include "memcfg/types.hpp"

using namespace files;
using memcfg::kNoLimit;

namespace {

constexpr Bytes kMiB = Bytes{1} << 20;
constexpr int kMostCalls = 60;  // of one step; far more than it makes

struct Step {
  const char* name;
  FileOptions (*options)(const std::string& path, Bytes size);
  Bytes before;  // bytes of the file that is there; 0: there is none
  Bytes size;
};

const Step kSteps[] = {
    {"a new file", at, 0, 100000},
    {"a new file that passes", passing, 0, 100000},
    {"the same length", at, 1000, 1000},
    {"longer", at, 1000, 100000},
    {"its own length", at, 1000, 0},
    {"replaced", replacing, 1000, 100000},
    {"replaced by a shorter one", replacing, 1000, 10},
    {"replaced by one that passes", replacing_passing, 1000, 100000},
    {"nothing to replace", replacing, 0, 100000},
};

bool overwrites(const Step& step) {
  return step.options("", step.size).overwrite;
}

// Whether it has a point of no return, after which the folder is flushed.
bool replaces(const Step& step) {
  return overwrites(step) && step.before > 0;
}

std::string old_bytes(Bytes size) {
  return std::string(size, 'o');
}

// Whether the folder is as if the step had succeeded.
bool is_done(const Folder& folder, const Step& step) {
  const auto content = folder.content();
  const Bytes size = step.size == 0 ? step.before : step.size;
  std::string wanted = overwrites(step) ? "" : old_bytes(step.before);
  wanted.resize(size);
  return content.size() == 1 && content.begin()->second == wanted;
}

// Whether it is past that point, and what was to pass has gone.
bool has_replaced(const Folder& folder, const Step& step) {
  if (!replaces(step)) return false;
  return step.options("", step.size).remove ? folder.content().empty()
                                            : is_done(folder, step);
}

void lay_out(const Folder& folder, const Step& step) {
  if (step.before > 0) write(folder / "f", old_bytes(step.before));
}

// Opens the file while the n-th call, and no other, fails. True: that was too many.
bool survives(const Step& step, const FaultyFiles& system, int grants) {
  const Folder folder;
  lay_out(folder, step);
  const auto before = folder.content();
  system.calls_left = grants;
  bool opened = false;
  int error = 0;
  {
    std::optional<FileResource> file;
    error =
        error_of([&] { file.emplace(step.options(folder / "f", step.size), system); });
    const bool unused = system.calls_left > 0;
    system.calls_left = FaultyFiles::kMany;
    opened = file.has_value();
    CHECK(opened == (error == 0));
    if (opened) CHECK(is_done(folder, step));
    if (opened) file->check();
    if (unused) return true;
  }
  CHECK(system.has_all_back());
  CHECK(opened || error == system.error);
  CHECK(opened || folder.content() == before || has_replaced(folder, step));
  return false;
}

// Runs it in a child process; its exit status, or minus the signal that ended it.
template <typename Work>
int in_a_child(Work work) {
  std::fflush(stdout);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    int failed = 0;
    try {
      work();
    } catch (const std::exception& error) {
      std::printf("in the child: %s\n", error.what());
      std::fflush(stdout);
      failed = 1;
    }
    _exit(failed);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Ends when the object does.
class Sleeper {
 public:
  Sleeper() : child_(fork()) {
    CHECK(child_ >= 0);
    if (child_ != 0) return;
    for (;;) pause();
  }
  ~Sleeper() {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

 private:
  const pid_t child_;
};

bool is_free(const std::string& path) {
  return error_of([&] { FileResource(at(path, 0)); }) == 0;
}

}  // namespace

TEST(each_call_fails_once_while_a_file_is_opened) {
  for (const Step& step : kSteps) {
    for (const bool plain : {true, false}) {
      FaultyFiles system;
      system.allocates = plain;
      system.foreign = !plain;
      int grants = 0;
      while (!survives(step, system, grants)) CHECK(++grants < kMostCalls);
      CHECK(grants > 8);
    }
  }
}

TEST(each_call_fails_once_while_a_file_is_used) {
  for (const bool removes : {false, true}) {
    for (int grants = 0; grants < 12; ++grants) {
      const Folder folder;
      const FaultyFiles system;
      FileResource file((removes ? passing : at)(folder / "f", 1000), system);
      for (const auto& call :
           std::vector<std::function<void()>>{[&] { file.flush(); },
                                              [&] { file.drop(0, 1000); },
                                              [&] { file.close(); }}) {
        system.calls_left = grants;
        if (error_of(call) != 0) {
          CHECK(!file.closed() && std::filesystem::exists(folder / "f"));
          file.deallocate(file.allocate({1000}), 1000);
        }
        system.calls_left = FaultyFiles::kMany;
        call();
      }
      CHECK(file.closed() && system.has_all_back());
      CHECK(std::filesystem::exists(folder / "f") != removes);
    }
  }
}

TEST(what_fails_at_the_end_is_told_and_the_file_is_closed) {
  const Folder folder;
  const FaultyFiles system;
  auto file = std::make_unique<FileResource>(at(folder / "f", 1000), system);
  system.calls_left = 0;
  CHECK(error_of([&] { file->abandon(); }) == EIO);
  file.reset();
  CHECK(system.has_all_back() && is_free(folder / "f"));
}

TEST(the_heap_may_refuse_the_metadata_at_any_call) {
  for (const Step& step : kSteps) {
    for (int grants = 0;; ++grants) {
      CHECK(grants < 500);
      const Folder folder;
      lay_out(folder, step);
      const auto before = folder.content();
      const FaultyFiles system;
      const FileOptions options = step.options(folder / "f", step.size);
      bool refused = false;
      {
        std::optional<FileResource> file;
        try {
          const failing_new::After after(grants);
          file.emplace(options, system);
        } catch (const std::bad_alloc&) {
          refused = true;
        }
      }
      CHECK(system.has_all_back());
      if (!refused) break;
      CHECK(folder.content() == before || has_replaced(folder, step));
    }
  }
}

TEST(a_full_disk_is_told_before_the_first_write) {
  for (const Step& step : kSteps) {
    for (const bool allocates : {true, false}) {
      const Folder folder;
      lay_out(folder, step);
      const auto before = folder.content();
      FaultyFiles system;
      system.allocates = allocates;
      system.disk = 500;
      const Bytes size = 100000;
      try {
        FileResource(step.options(folder / "f", size), system);
        check::fail(__FILE__, __LINE__, "a full disk took it");
      } catch (const memcfg::file_error& error) {
        CHECK(error.number() == ENOSPC);
        const std::string words = error.what();
        CHECK(words.find(" more are needed, ") != std::string::npos);
        CHECK(words.find(" are free") != std::string::npos);
      }
      CHECK(folder.content() == before && system.has_all_back());
      if (step.before > 0) CHECK(disk_of(folder / "f") <= 4096);
    }
  }
}

// The file, then the folder; and nothing for a file that is there already.
TEST(what_is_made_is_on_the_disk_before_it_is_used) {
  const Folder folder;
  const auto order = [&](const FileOptions& options) {
    const FaultyFiles system;
    const FileResource file(options, system);
    return system.order;
  };
  CHECK(order(at(folder / "f", 1000)) == "ff");
  CHECK(order(at(folder / "f", 1000)).empty());
  CHECK(order(replacing(folder / "f", 1000)) == "frf");
}

TEST(a_file_whose_owner_cannot_be_kept_is_not_replaced) {
  const Folder folder;
  write(folder / "f", old_bytes(1000));
  FaultyFiles system;
  system.foreign = true;
  {
    const FileResource file(at(folder / "f", 1000), system);
    CHECK(system.order.empty());  // which has it still
  }
  system.order.clear();
  system.owner_error = EPERM;
  try {
    FileResource(replacing(folder / "f", 10), system);
    check::fail(__FILE__, __LINE__, "it has another owner");
  } catch (const memcfg::file_error& error) {
    CHECK(error.number() == EPERM);
    CHECK(std::string(error.what()).find("not have the owner") != std::string::npos);
  }
  CHECK(system.order == "o" && system.has_all_back() && is_free(folder / "f"));
  CHECK(folder.content().size() == 1 && read(folder / "f") == old_bytes(1000));
  system.owner_error = 0;
  system.order.clear();
  const FileResource file(replacing(folder / "f", 10), system);
  CHECK(system.order == "ofrf");
}

// The old file has gone by then: the failure is told, and the new file is as one that
// was opened and closed.
TEST(a_folder_that_cannot_be_flushed_after_the_file_was_replaced) {
  for (const bool removes : {false, true}) {
    int told = 0;
    for (int grants = 0; grants < kMostCalls; ++grants) {
      const Folder folder;
      write(folder / "f", old_bytes(1000));
      const FaultyFiles system;
      system.calls_left = grants;
      std::optional<FileResource> file;
      const int error = error_of([&] {
        file.emplace((removes ? replacing_passing : replacing)(folder / "f", 10),
                     system);
      });
      system.calls_left = FaultyFiles::kMany;
      if (error == 0 || read(folder / "f") == old_bytes(1000)) continue;
      ++told;
      CHECK(error == EIO && system.has_all_back());
      CHECK(folder.content().size() == (removes ? 0 : 1));
      if (!removes) CHECK(read(folder / "f") == std::string(10, '\0'));
      if (!removes) CHECK(is_free(folder / "f"));
    }
    CHECK(told == 2);  // to open the folder, and to flush it
  }
}

// What cannot be looked at may be another's: it is left there.
TEST(only_what_is_known_to_be_ours_is_removed) {
  const Folder folder;
  const FaultyFiles system;
  system.before_locking = [&] {
    std::filesystem::remove(folder / "f");
    write(folder / "f", "another's");
    system.calls_left = 0;
  };
  CHECK(error_of([&] { FileResource(at(folder / "f", 10), system); }) == EIO);
  CHECK(read(folder / "f") == "another's" && system.has_all_back());
}

// What happens between finding a file and locking it.
TEST(a_file_that_is_replaced_or_removed_before_it_is_locked) {
  for (const bool overwrite : {false, true}) {
    for (const bool replaced : {true, false}) {
      const Folder folder;
      const std::string path = folder / "f";
      write(path, "first");
      const FaultyFiles system;
      system.before_locking = [&] {
        std::filesystem::remove(path);
        if (replaced) write(path, "second");
      };
      FileResource file((overwrite ? replacing : at)(path, 10), system);
      CHECK(folder.content().size() == 1 && !is_free(path));
      CHECK((read(path).substr(0, 6) == "second") == (replaced && !overwrite));
      std::memset(file.allocate({10}), 'x', 10);
      CHECK(read(path) == std::string(10, 'x'));
    }
  }
}

TEST(a_file_that_another_locks_as_soon_as_it_is_made) {
  const Folder folder;
  const FaultyFiles system;
  std::optional<FileResource> other;
  system.before_locking = [&] { other.emplace(at(folder / "f", 20)); };
  CHECK(error_of([&] { FileResource(at(folder / "f", 10), system); }) == EWOULDBLOCK);
  CHECK(read(folder / "f").size() == 20 && system.has_all_back());
}

// Threads that replace and open without heeding any lock.
TEST(others_are_faster) {
  const Folder folder;
  const std::string path = folder / "f";
  for (int round = 0; round < 40; ++round) {
    write(path, "x");
    std::thread other([&] {
      for (int i = 0; i < 20; ++i) {
        write(folder / "next", "next");
        std::filesystem::rename(folder / "next", path);
      }
    });
    for (int i = 0; i < 20; ++i) {
      const int error = error_of([&] {
        FileResource file(replacing(path, 1000));
        file.close();
      });
      CHECK(error == 0 || error == EAGAIN);
    }
    other.join();
  }
  CHECK(folder.content().size() == 1);
}

// Each tries until it was the owner often enough; while it is, nobody else may be.
TEST(processes_race_for_one_file) {
  const Folder folder;
  const std::string path = folder / "f";
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    alarm(60);
    try {
      for (int owned = 0; owned < 30;) {
        FileOptions options = (child == 2 ? replacing : at)(path, 64);
        options.remove = owned % 3 == 0;
        options.overwrite = options.overwrite || options.remove;
        std::optional<FileResource> file;
        const int error = error_of([&] { file.emplace(options); });
        if (!file && error != EWOULDBLOCK && error != EAGAIN) _exit(2);
        if (!file) continue;
        auto* const word = static_cast<volatile int*>(file->allocate({64}));
        *word = child;
        std::this_thread::yield();
        const std::string seen = read(path);  // the path leads to the very same file
        if (*word != child || seen.size() != 64 || seen[0] != child) _exit(3);
        file->abandon();
        ++owned;
      }
    } catch (const std::exception&) {
      _exit(4);
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  CHECK(folder.content().size() <= 1);
}

TEST(a_child_has_a_copy_and_leaves_the_file_alone) {
  const Folder folder;
  const std::string path = folder / "f";
  const auto file = std::make_shared<FileResource>(passing(path, kMiB));
  auto* const block = static_cast<char*>(file->allocate({1000}));
  std::memset(block, 'p', 1000);
  CHECK(in_a_child([&] {
          CHECK(block[999] == 'p');
          std::memset(block, 'c', 1000);
          auto* const more = static_cast<char*>(file->allocate({1000}));
          std::memset(more, 'm', 1000);
          memcfg::FileResource::drop_all();
          CHECK(block[0] == 'c' && more[0] == 'm');
          CHECK_THROWS(std::runtime_error, file->flush());
          CHECK_THROWS(std::runtime_error, file->drop(0, kMiB));
          file->deallocate(block, 1000);
          file->deallocate(more, 1000);
          file->check();
          CHECK(error_of([&] { FileResource(at(path, 0)); }) == EWOULDBLOCK);
          file->close();
          CHECK(file->closed());
        }) == 0);
  CHECK(block[0] == 'p' && std::filesystem::exists(path) && !is_free(path));
  CHECK(read(path) == std::string(1000, 'p') + std::string(kMiB - 1000, '\0'));
  const Sleeper child;
  file->abandon();
  CHECK(!std::filesystem::exists(path));
}

TEST(a_pool_in_a_file_is_a_childs_own_too) {
  const Folder folder;
  const auto file = std::make_shared<FileResource>(at(folder / "f", 8 * kMiB));
  memcfg::Pool pool("", 8 * kMiB, true, file);
  auto* const block = static_cast<char*>(pool.allocate({100000}));
  std::memset(block, 'p', 100000);
  CHECK(in_a_child([&] {
          auto* const more = static_cast<char*>(pool.allocate({100000}));
          std::memset(more, 'c', 100000);
          std::memset(block, 'c', 100000);
          pool.check();
        }) == 0);
  auto* const more = static_cast<char*>(pool.allocate({100000}));
  CHECK(block[0] == 'p' && more[0] == '\0');
  pool.deallocate(block, 100000);
  pool.deallocate(more, 100000);
}

TEST(children_share_a_file_where_that_was_asked_for) {
  const Folder folder;
  FileOptions options = passing(folder / "f", 1000);
  options.shared = true;
  FileResource file(options);
  auto* const block = static_cast<char*>(file.allocate({500}));
  CHECK(in_a_child([&] {
          std::memset(block, 'c', 500);
          CHECK_THROWS(std::runtime_error, file.allocate({10}));
          file.flush();
          CHECK(file.drop(0, 1000) > 0 && block[499] == 'c');
          file.abandon();
        }) == 0);
  CHECK(block[0] == 'c' && std::filesystem::exists(folder / "f"));
  file.deallocate(block, 500);
}

TEST(a_lock_goes_with_its_owner_though_children_live) {
  const Folder folder;
  const std::string path = folder / "f";
  for (const bool shared : {false, true}) {
    FileOptions options = at(path, 1000);
    options.shared = shared;
    std::optional<FileResource> file(options);
    const Sleeper child;
    CHECK(!is_free(path));
    file.reset();
    CHECK(is_free(path));
  }
  // Killed, it can unlock nothing.
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t owner = fork();
  if (owner == 0) {
    FileOptions options = at(path, 1000);
    options.shared = true;
    const FileResource file(options);
    if (fork() == 0) {
      const pid_t orphan = getpid();
      if (write(ends[1], &orphan, sizeof orphan) < 0) _exit(1);
    }
    for (;;) pause();
  }
  pid_t orphan = 0;
  CHECK(::read(ends[0], &orphan, sizeof orphan) == ssize_t{sizeof orphan});
  CHECK(!is_free(path));
  kill(owner, SIGKILL);
  CHECK(waitpid(owner, nullptr, 0) == owner);
  const bool free = is_free(path);
  kill(orphan, SIGKILL);
  close(ends[0]);
  close(ends[1]);
  CHECK(free);
}

// As when another thread starts a program: for a moment there is a copy that knows of
// nothing, with all descriptors.
TEST(a_lock_goes_though_a_copy_of_the_process_has_it) {
  const Folder folder;
  FileResource file(at(folder / "f", 1000));
  const auto copy = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  while (copy == 0) pause();
  file.close();
  const bool free = is_free(folder / "f");
  kill(copy, SIGKILL);
  waitpid(copy, nullptr, 0);
  CHECK(free);
}

TEST(the_end_of_a_process_removes_what_passes) {
  const Folder folder;
  CHECK(in_a_child([&] {
          auto* const passes = new FileResource(passing(folder / "a", 1000));
          auto* const stays = new FileResource(at(folder / "b", 1000));
          std::memset(stays->allocate({1000}), 'x', 1000);
          static_cast<void>(passes);
          exit(0);  // without a destructor
        }) == 0);
  CHECK(folder.content().size() == 1 && read(folder / "b") == std::string(1000, 'x'));
}

TEST(a_fork_while_another_thread_flushes) {
  const Folder folder;
  FileResource file(at(folder / "f", 4 * kMiB));
  std::atomic<bool> done{false};
  std::thread flusher([&] {
    while (!done) file.flush();
  });
  int failed = 0;
  for (int round = 0; round < 30; ++round) {
    if (in_a_child([&] {
          file.deallocate(file.allocate({1000}), 1000);
          file.close();
        }) != 0) {
      ++failed;
    }
  }
  done = true;
  flusher.join();
  CHECK(failed == 0);
}

// The system sends SIGXFSZ as well, which a program like Python ignores.
TEST(a_limit_on_the_size_of_files) {
  const Folder folder;
  write(folder / "f", old_bytes(1000));
  CHECK(in_a_child([&] {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{500000, 500000};
          CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
          CHECK(error_of([&] { FileResource(at(folder / "f", 2 * kMiB)); }) == EFBIG);
          CHECK(error_of([&] { FileResource(at(folder / "g", 2 * kMiB)); }) == EFBIG);
          CHECK(error_of([&] { FileResource(replacing(folder / "f", kMiB)); }) ==
                EFBIG);
          CHECK(FileResource(at(folder / "g", 500000)).size() == 500000);
        }) == 0);
  CHECK(folder.content().size() == 2 && read(folder / "f") == old_bytes(1000));
  CHECK(disk_of(folder / "f") <= 4096);
}

TEST(no_more_descriptors) {
  const Folder folder;
  CHECK(in_a_child([&] {
          const rlimit limit{3, 3};
          CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
          CHECK(error_of([&] { FileResource(at(folder / "f", 1000)); }) == EMFILE);
        }) == 0);
  CHECK(folder.content().empty());
}
