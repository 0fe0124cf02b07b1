/* Reads a file past the page cache (O_DIRECT) into private memory, and checks every byte: the
   device writes to frames past the page tables.

     direct_reads FILE READS [drop]

   For each line of its standard input, READS reads with up to 16 pages each, by two threads; then a
   line "direct reads bad". It reads meanwhile, too, and ends with its standard input.

   drop: the control. It evicts its memory itself, as must not be done: pages are protected, copied
   and given up with MADV_DONTNEED, which does not look at pins; a write before that keeps the page
   (userfaultfd). */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kPage = 4096, kWords = kPage / 8, kPages = 4096, kFile = 1024, kThreads = 2, kRun = 16 };

static unsigned char* memory;
static int file;
static atomic_long reads, bad;
static atomic_bool over;

static uint64_t word(uint64_t page, unsigned i) {
  return (page * 0x9E3779B97F4A7C15u) ^ (i * 0xD1B54A32D192ED03u);
}

static uint64_t some(uint64_t* random) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return *random >> 33;
}

static void stop(const char* what) {
  perror(what);
  exit(2);
}

/* Each thread has a part of the memory. */
static void* read_and_check(void* argument) {
  const uint64_t number = (uint64_t)(uintptr_t)argument;
  const uint64_t own = kPages / kThreads;
  uint64_t random = number + 1;
  while (!atomic_load(&over)) {
    const uint64_t pages = 1 + some(&random) % kRun;
    const uint64_t to = number * own + some(&random) % (own - pages);
    const uint64_t from = some(&random) % (kFile - pages);
    const size_t bytes = pages * kPage;
    if (pread(file, memory + to * kPage, bytes, (off_t)(from * kPage)) != (ssize_t)bytes)
      stop("pread");
    const uint64_t* words = (const uint64_t*)(memory + to * kPage);
    int wrong = 0;
    for (uint64_t page = 0; page < pages; ++page)
      for (unsigned i = 0; i < kWords; ++i)
        wrong |= words[page * kWords + i] != word(from + page, i);
    atomic_fetch_add(&bad, wrong);
    atomic_fetch_add(&reads, 1);
  }
  return NULL;
}

/* ---- the control ---- */

static int faults;
static unsigned char* copies;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static enum { kPresent, kProtected, kAway } state[kPages];

static void protect(uint64_t page, uint64_t mode) {
  struct uffdio_writeprotect range = {{(uintptr_t)(memory + page * kPage), kPage}, mode};
  if (ioctl(faults, UFFDIO_WRITEPROTECT, &range) != 0) stop("UFFDIO_WRITEPROTECT");
}

static void* answer_faults(void* nothing) {
  struct uffd_msg message;
  while (read(faults, &message, sizeof message) == sizeof message) {
    const uint64_t page = (message.arg.pagefault.address - (uintptr_t)memory) / kPage;
    struct uffdio_range range = {(uintptr_t)(memory + page * kPage), kPage};
    pthread_mutex_lock(&lock);
    if (state[page] == kAway) {
      struct uffdio_copy copy = {range.start, (uintptr_t)(copies + page * kPage), kPage, 0, 0};
      if (ioctl(faults, UFFDIO_COPY, &copy) != 0) stop("UFFDIO_COPY");
    } else if (state[page] == kProtected) {
      protect(page, 0);
    } else if (ioctl(faults, UFFDIO_WAKE, &range) != 0) {
      stop("UFFDIO_WAKE");
    }
    state[page] = kPresent;
    pthread_mutex_unlock(&lock);
  }
  return nothing;
}

static void* evict(void* nothing) {
  uint64_t random = 99;
  while (!atomic_load(&over)) {
    const uint64_t page = some(&random) % kPages;
    pthread_mutex_lock(&lock);
    const int chosen = state[page] == kPresent;
    if (chosen) {
      protect(page, UFFDIO_WRITEPROTECT_MODE_WP);
      state[page] = kProtected;
      memcpy(copies + page * kPage, memory + page * kPage, kPage);
    }
    pthread_mutex_unlock(&lock);
    sched_yield(); /* in place of the write to a node */
    pthread_mutex_lock(&lock);
    if (chosen && state[page] == kProtected) {
      if (madvise(memory + page * kPage, kPage, MADV_DONTNEED) != 0) stop("madvise");
      state[page] = kAway;
    }
    pthread_mutex_unlock(&lock);
  }
  return nothing;
}

static void evict_by_drop(void) {
  pthread_t thread;
  faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
  struct uffdio_api api = {UFFD_API, UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0};
  struct uffdio_register range = {{(uintptr_t)memory, (uint64_t)kPages * kPage},
                                  UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP,
                                  0};
  copies = malloc((size_t)kPages * kPage);
  if (faults < 0 || copies == NULL || ioctl(faults, UFFDIO_API, &api) != 0 ||
      ioctl(faults, UFFDIO_REGISTER, &range) != 0)
    stop("userfaultfd");
  if (pthread_create(&thread, NULL, answer_faults, NULL) != 0 ||
      pthread_create(&thread, NULL, evict, NULL) != 0)
    stop("pthread_create");
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  const long wanted = strtol(arguments[2], NULL, 10);
  const size_t bytes = (size_t)kPages * kPage;
  memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) stop("mmap");
  for (uint64_t page = 0; page < kPages; ++page)
    for (unsigned i = 0; i < kWords; ++i) ((uint64_t*)memory)[page * kWords + i] = word(page, i);
  file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || write(file, memory, (size_t)kFile * kPage) != (ssize_t)kFile * kPage ||
      fsync(file) != 0 || close(file) != 0)
    stop(arguments[1]);
  file = open(arguments[1], O_RDONLY | O_DIRECT);
  if (file < 0) stop("O_DIRECT");
  if (count > 3) evict_by_drop();
  pthread_t threads[kThreads];
  for (uint64_t i = 0; i < kThreads; ++i)
    if (pthread_create(&threads[i], NULL, read_and_check, (void*)(uintptr_t)i) != 0)
      stop("pthread_create");
  puts("ready");
  fflush(stdout);
  for (int byte = getchar(); byte != EOF; byte = getchar()) {
    if (byte != '\n') continue;
    const long first = atomic_load(&reads);
    while (atomic_load(&reads) < first + wanted) usleep(1000);
    printf("direct %ld %ld\n", atomic_load(&reads), atomic_load(&bad));
    fflush(stdout);
  }
  atomic_store(&over, 1);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  return 0;
}
