/* Threads write and read words at random, and record each operation: histories.py checks afterwards
   that the words have behaved like memory.

     recorded_words MIB THREADS SECONDS SEED FOLDER      until SECONDS have passed, or SIGUSR1

   Each page has two words that all threads use; the others have known bytes, of which each
   operation checks one word. Half of the operations are in a few pages, others each second, where
   threads meet. FOLDER/thread-N has the records of thread N (struct record), the last of these
   files those of the main thread, which reads every word at the end. Word i is i + 1 at first; no
   value is written twice. Prints "filled", at the end "operations N wrong_words N" and "longest_ms
   N". Exit status 1: a word of known bytes was wrong. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
  kPageBytes = 4096,
  kWordsOfPage = kPageBytes / 8,
  kHalf = kWordsOfPage / 2, /* the words at 0 and here are those that all use */
  kHotPages = 24,
  kPauseNs = 250000,
  kMostPerSecond = 4000, /* of one thread, with that pause */
  kMostThreads = 64
};

enum kind { kRead, kWrite, kExchange };

struct record {
  uint64_t begin, end; /* CLOCK_MONOTONIC, ns */
  uint64_t read;       /* what was there; of a write: 0 */
  uint64_t written;    /* of a read: 0 */
  uint32_t word, kind;
};

struct thread {
  pthread_t id;
  unsigned number;
  uint64_t random, operations, wrong, longest;
  struct record* records;
  size_t capacity, used;
  int file;
};

static _Atomic uint64_t* words;
static size_t pages;
static uint64_t seed;
static volatile sig_atomic_t enough;
static atomic_bool over;

static void say_enough(int number) {
  (void)number;
  enough = 1;
}

static void give_up(const char* what) {
  perror(what);
  exit(2);
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t next(struct thread* thread) {
  thread->random = thread->random * 6364136223846793005u + 1442695040888963407u;
  return thread->random >> 33;
}

static uint64_t known(size_t word) {
  return (seed + word) * 0x9E3779B97F4A7C15u;
}

/* Of word i of those that all use: its place. */
static size_t place(size_t i) {
  return i / 2 * kWordsOfPage + i % 2 * kHalf;
}

static void open_records(struct thread* thread, const char* folder, size_t capacity) {
  char path[4096];
  snprintf(path, sizeof path, "%s/thread-%u", folder, thread->number);
  thread->file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  thread->capacity = capacity;
  const size_t bytes = capacity * sizeof(struct record);
  if (thread->file < 0 || ftruncate(thread->file, (off_t)bytes) != 0) give_up(path);
  thread->records = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, thread->file, 0);
  if (thread->records == MAP_FAILED) give_up(path);
}

static void close_records(struct thread* thread) {
  munmap(thread->records, thread->capacity * sizeof(struct record));
  if (ftruncate(thread->file, (off_t)(thread->used * sizeof(struct record))) != 0)
    give_up("recorded_words: ftruncate");
  close(thread->file);
}

/* The fences keep the access between the two times: no CPU reorders around them. */
static void operate(struct thread* thread, uint32_t word, enum kind kind) {
  struct record record = {0, 0, 0, 0, word, kind};
  if (kind != kRead) record.written = (uint64_t)(thread->number + 1) << 48 | thread->used;
  _Atomic uint64_t* at = words + place(word);
  record.begin = now();
  atomic_thread_fence(memory_order_seq_cst);
  if (kind == kRead) record.read = atomic_load(at);
  if (kind == kWrite) atomic_store(at, record.written);
  if (kind == kExchange) record.read = atomic_exchange(at, record.written);
  atomic_thread_fence(memory_order_seq_cst);
  record.end = now();
  thread->records[thread->used++] = record;
  ++thread->operations;
  if (record.end - record.begin > thread->longest) thread->longest = record.end - record.begin;
}

static void check_known(struct thread* thread, size_t page) {
  const size_t word = page * kWordsOfPage + 1 + next(thread) % (kHalf - 1);
  thread->wrong += atomic_load_explicit(words + word, memory_order_relaxed) != known(word);
}

static void* run(void* argument) {
  struct thread* thread = argument;
  while (!atomic_load(&over) && thread->used < thread->capacity) {
    const size_t hot = now() / 1000000000u * 7919 + next(thread) % kHotPages;
    const size_t page = (next(thread) % 2 == 0 ? hot : next(thread)) % pages;
    const uint64_t chance = next(thread) % 10;
    operate(thread, (uint32_t)(2 * page + next(thread) % 2),
            chance < 5   ? kRead
            : chance < 8 ? kWrite
                         : kExchange);
    check_known(thread, page);
    const struct timespec pause = {0, kPauseNs};
    nanosleep(&pause, NULL);
  }
  return NULL;
}

int main(int count, char** arguments) {
  if (count != 6) {
    fprintf(stderr, "usage: recorded_words MIB THREADS SECONDS SEED FOLDER\n");
    return 2;
  }
  pages = strtoul(arguments[1], NULL, 10) << 8;
  const unsigned threads = (unsigned)strtoul(arguments[2], NULL, 10);
  const uint64_t seconds = strtoull(arguments[3], NULL, 10);
  seed = strtoull(arguments[4], NULL, 10);
  if (pages == 0 || threads == 0 || threads >= kMostThreads || seconds == 0) {
    fprintf(stderr, "recorded_words: 1 to %d threads, some MiB, some seconds\n", kMostThreads - 1);
    return 2;
  }
  signal(SIGUSR1, say_enough);
  static struct thread all[kMostThreads];
  for (unsigned i = 0; i <= threads; ++i) {
    all[i].number = i;
    all[i].random = seed + i;
    open_records(&all[i], arguments[5], i < threads ? seconds * kMostPerSecond : 2 * pages);
  }
  words =
      mmap(NULL, pages * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (words == MAP_FAILED) give_up("recorded_words: mmap");
  for (size_t i = 0; i < pages * kWordsOfPage; ++i) atomic_init(words + i, known(i));
  for (size_t i = 0; i < 2 * pages; ++i) atomic_init(words + place(i), i + 1);
  puts("filled");
  fflush(stdout);
  for (unsigned i = 0; i < threads; ++i)
    if (pthread_create(&all[i].id, NULL, run, &all[i]) != 0) give_up("recorded_words: thread");
  const uint64_t end = now() + seconds * 1000000000u;
  while (!enough && now() < end) usleep(10000);
  atomic_store(&over, 1);
  for (unsigned i = 0; i < threads; ++i) pthread_join(all[i].id, NULL);
  for (uint32_t i = 0; i < 2 * pages; ++i) operate(&all[threads], i, kRead);
  struct thread sum = {0};
  for (size_t i = 0; i < pages * kWordsOfPage; ++i)
    if (i % kHalf != 0) sum.wrong += atomic_load(words + i) != known(i);
  for (unsigned i = 0; i <= threads; ++i) {
    close_records(&all[i]);
    sum.operations += all[i].operations;
    sum.wrong += all[i].wrong;
    if (all[i].longest > sum.longest) sum.longest = all[i].longest;
  }
  printf("operations %llu wrong_words %llu\n", (unsigned long long)sum.operations,
         (unsigned long long)sum.wrong);
  printf("longest_ms %llu\n", (unsigned long long)(sum.longest / 1000000u));
  return sum.wrong == 0 ? 0 : 1;
}
