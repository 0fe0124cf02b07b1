/* checkpointed_memory FOLDER: fills memory of many kinds, waits, and checks each byte of it.
 *
 * When all is filled it makes FOLDER/ready; when FOLDER/go is there it checks, and writes
 * "pages N wrong N child STATUS" to FOLDER/result. Its child has memory of its own, and checks it,
 * too. In between both are dumped and restored by criu. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUIRE(condition)                                                         \
  do {                                                                             \
    if (!(condition)) {                                                            \
      fprintf(stderr, "checkpointed_memory: %s, line %d\n", #condition, __LINE__); \
      exit(2);                                                                     \
    }                                                                              \
  } while (0)

enum { kPage = 4096, kMaxParts = 64, kThreads = 3 };

typedef struct {
  char* start;
  size_t pages;
  size_t step; /* of so many pages the first one is filled; the others are zeros */
} Part;

static Part parts[kMaxParts];
static int count;
static uint64_t seed = 1;
static char data_segment[64 * kPage] __attribute__((aligned(kPage))) = {1};
static pthread_barrier_t filled;
static char folder[512];

static uint64_t word_of(const void* place) {
  uint64_t x = (uint64_t)(uintptr_t)place * 0x9e3779b97f4a7c15U + seed;
  x ^= x >> 31;
  return x * 0xff51afd7ed558ccdU;
}

static void fill(Part part) {
  for (size_t page = 0; page < part.pages; page += part.step)
    for (char* at = part.start + page * kPage; at < part.start + (page + 1) * kPage; at += 8) {
      const uint64_t word = word_of(at);
      memcpy(at, &word, sizeof word);
    }
}

static size_t wrong_pages(Part part) {
  size_t wrong = 0;
  for (size_t i = 0; i < part.pages; ++i) {
    /* The even ones forwards, the odd ones backwards. */
    const size_t last_odd = part.pages - 1 - part.pages % 2;
    const size_t page = i % 2 == 0 ? i : last_odd - (i - 1);
    int is_wrong = 0;
    for (char* at = part.start + page * kPage; at < part.start + (page + 1) * kPage; at += 8) {
      const uint64_t right = page % part.step == 0 ? word_of(at) : 0;
      is_wrong |= memcmp(at, &right, sizeof right) != 0;
    }
    wrong += (size_t)is_wrong;
  }
  return wrong;
}

static void add(void* start, size_t pages, size_t step) {
  REQUIRE(start != MAP_FAILED && start != NULL && count < kMaxParts);
  parts[count++] = (Part){start, pages, step};
}

static void* mapped(size_t pages, int flags) {
  return mmap(NULL, pages * kPage, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
}

static int exists(const char* name) {
  char path[600];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return access(path, F_OK) == 0;
}

static void write_file(const char* name, const char* text) {
  char path[600];
  char temporary[610];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  snprintf(temporary, sizeof temporary, "%s.new", path);
  FILE* file = fopen(temporary, "w");
  REQUIRE(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
  REQUIRE(rename(temporary, path) == 0);
}

static void wait_for(const char* name) {
  while (!exists(name)) usleep(10000);
}

/* A thread has a part of memory of its own, and a stack with content. */
static void* thread_main(void* argument) {
  const Part own = {mapped(128, MAP_PRIVATE), 128, 1};
  /* No part of it that is aligned: criu 3.17 takes all pages of a process for its stack if the
     stack pointer of one thread is at the start of a page. */
  char on_stack[34 * kPage];
  const Part stack = {on_stack + kPage - (uintptr_t)on_stack % kPage, 32, 1};
  fill(own);
  fill(stack);
  pthread_barrier_wait(&filled);
  wait_for("go");
  *(size_t*)argument = wrong_pages(own) + wrong_pages(stack);
  return NULL;
}

static size_t check(void) {
  size_t wrong = 0;
  for (int i = 0; i < count; ++i) wrong += wrong_pages(parts[i]);
  /* What was restored can be written, and be given back. */
  char* first = parts[0].start;
  memset(first, 0x5a, kPage);
  REQUIRE(first[0] == 0x5a && first[kPage - 1] == 0x5a);
  REQUIRE(madvise(first, kPage, MADV_DONTNEED) == 0 && first[17] == 0);
  return wrong;
}

static int child_main(void) {
  seed = 2;
  for (int i = 0; i < count; i += 2) fill(parts[i]);
  write_file("ready-child", "");
  wait_for("go");
  size_t wrong = 0;
  for (int i = 0; i < count; ++i) {
    seed = i % 2 == 0 ? 2 : 1; /* the others it has from its parent */
    wrong += wrong_pages(parts[i]);
  }
  return wrong == 0 ? 0 : 1;
}

int main(int argc, char** argv) {
  REQUIRE(argc == 2);
  snprintf(folder, sizeof folder, "%s", argv[1]);
  add(mapped(1800, MAP_PRIVATE), 1800, 1);
  add(mapped(900, MAP_PRIVATE), 900, 3);
  add(data_segment, sizeof data_segment / kPage, 1);
  add(aligned_alloc(kPage, 200 * kPage), 200, 1);
  for (int i = 0; i < 12; ++i) add(mapped(37, MAP_PRIVATE), 37, (size_t)(1 + i % 2));
  for (int i = 0; i < count; ++i) fill(parts[i]);
  REQUIRE(mprotect(parts[1].start, 300 * kPage, PROT_READ) == 0);

  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    REQUIRE(mprotect(parts[1].start, 900 * kPage, PROT_READ | PROT_WRITE) == 0);
    _exit(child_main());
  }
  /* Memory that criu restores by itself. */
  add(mapped(64, MAP_SHARED), 64, 1);
  fill(parts[count - 1]);

  REQUIRE(pthread_barrier_init(&filled, NULL, kThreads + 1) == 0);
  pthread_t threads[kThreads];
  size_t wrong_of[kThreads];
  for (int i = 0; i < kThreads; ++i)
    REQUIRE(pthread_create(&threads[i], NULL, thread_main, &wrong_of[i]) == 0);
  pthread_barrier_wait(&filled);
  wait_for("ready-child");
  write_file("ready", "");
  wait_for("go");

  size_t pages = kThreads * (128 + 32);
  for (int i = 0; i < count; ++i) pages += parts[i].pages;
  size_t wrong = check();
  for (int i = 0; i < kThreads; ++i) {
    REQUIRE(pthread_join(threads[i], NULL) == 0);
    wrong += wrong_of[i];
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  char text[100];
  snprintf(text, sizeof text, "pages %zu wrong %zu child %d\n", pages, wrong, status);
  write_file("result", text);
  return wrong == 0 && status == 0 ? 0 : 1;
}
