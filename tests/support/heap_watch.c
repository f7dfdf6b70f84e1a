// Records every large request to the heap or for pages while it is switched on.
// Loaded with LD_PRELOAD; needs glibc, whose __libc_* names do the real work.
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LARGE (64 * 1024)  // bytes; larger requests are recorded
#define ROOM 64            // records kept; all are counted

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

struct record {
  size_t nbytes;
  void* caller;
};

static atomic_int watching;
static atomic_size_t found;
static struct record records[ROOM];

static void note(size_t nbytes, void* caller) {
  if (nbytes <= LARGE || !atomic_load(&watching)) return;
  size_t index = atomic_fetch_add(&found, 1);
  if (index < ROOM) records[index] = (struct record){nbytes, caller};
}

void heap_watch(int on) { atomic_store(&watching, on); }
size_t heap_watch_count(void) { return atomic_load(&found); }
size_t heap_watch_size(size_t index) { return records[index].nbytes; }
void* heap_watch_caller(size_t index) { return records[index].caller; }

void* malloc(size_t nbytes) {
  note(nbytes, __builtin_return_address(0));
  return __libc_malloc(nbytes);
}

void* calloc(size_t count, size_t size) {
  size_t nbytes;
  if (__builtin_mul_overflow(count, size, &nbytes)) nbytes = ~(size_t)0;
  note(nbytes, __builtin_return_address(0));
  return __libc_calloc(count, size);
}

void* realloc(void* block, size_t nbytes) {
  note(nbytes, __builtin_return_address(0));
  return __libc_realloc(block, nbytes);
}

void* memalign(size_t alignment, size_t nbytes) {
  note(nbytes, __builtin_return_address(0));
  return __libc_memalign(alignment, nbytes);
}

void* aligned_alloc(size_t alignment, size_t nbytes) {
  note(nbytes, __builtin_return_address(0));
  return __libc_memalign(alignment, nbytes);
}

int posix_memalign(void** block, size_t alignment, size_t nbytes) {
  note(nbytes, __builtin_return_address(0));
  void* taken = __libc_memalign(alignment, nbytes);
  if (taken == NULL) return ENOMEM;
  *block = taken;
  return 0;
}

void* mmap(void* at, size_t nbytes, int protection, int flags, int file, off_t offset) {
  note(nbytes, __builtin_return_address(0));
  return (void*)syscall(SYS_mmap, at, nbytes, protection, flags, file, offset);
}

void* mmap64(void* at, size_t nbytes, int protection, int flags, int file, off_t offset)
    __attribute__((alias("mmap")));
