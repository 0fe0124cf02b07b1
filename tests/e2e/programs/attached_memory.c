/* A threaded program that uses memory in all the ways that an attached pager has to follow, and
   checks every byte that it reads. C, so that it is built with glibc and with musl, also static.

     attached_memory MIB JOB...      runs until its standard input ends

   Jobs, a thread each: touch (random pages of MIB MiB are checked and rewritten), discard
   (MADV_DONTNEED, then zeros), free (MADV_FREE: zeros or what was written), map (mmap, munmap),
   move, move2 (mremap: moves, grows, shrinks, also parts), grow, grow2, grow3 (blocks that the
   kernel moves to where one of another thread has been), stay (mremap that leaves the source
   mapped), heap (brk), lock (mlock, munlock), collapse (MADV_COLLAPSE), protect (mprotect), fork
   (children check a part, and change it), direct (O_DIRECT reads of a file in the working
   directory). Prints "ready", at the end one line "JOB rounds wrong" for each. Exit status 1:
   something was wrong. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

enum { kPage = 4096, kWords = kPage / 8 };

static atomic_bool over;
static size_t mebibytes;
static unsigned char* touched; /* of the job touch; children of fork look at it */
static atomic_uint* stamps;    /* what each of its pages holds */

struct job {
  const char* name;
  void (*round)(struct job*);
  uint64_t rounds, wrong, random;
  pthread_t thread;
};

static uint64_t next(struct job* job) {
  job->random = job->random * 6364136223846793005u + 1442695040888963407u;
  return job->random >> 33;
}

static uint64_t word(uint64_t page, uint64_t stamp, unsigned i) {
  return (page * 0x9E3779B97F4A7C15u) ^ (stamp << 20) ^ (i * 0xD1B54A32D192ED03u);
}

static void fill(void* at, uint64_t page, uint64_t stamp) {
  uint64_t* words = at;
  for (unsigned i = 0; i < kWords; ++i) words[i] = word(page, stamp, i);
}

static int differs(const void* at, uint64_t page, uint64_t stamp) {
  const uint64_t* words = at;
  for (unsigned i = 0; i < kWords; ++i)
    if (words[i] != word(page, stamp, i)) return 1;
  return 0;
}

static int is_zero(const void* at) {
  const uint64_t* words = at;
  for (unsigned i = 0; i < kWords; ++i)
    if (words[i] != 0) return 0;
  return 1;
}

/* Held while a job has a hole in its memory, and by who gets an address that the kernel chooses:
   else that could be in the hole. */
static pthread_mutex_t addresses = PTHREAD_MUTEX_INITIALIZER;

static unsigned char* map(size_t bytes) {
  pthread_mutex_lock(&addresses);
  void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_mutex_unlock(&addresses);
  if (at == MAP_FAILED) {
    perror("mmap");
    _exit(2);
  }
  return at;
}

/* ---- jobs ---- */

static void touch(struct job* job) {
  const size_t pages = mebibytes << 8;
  if (touched == NULL) {
    stamps = calloc(pages, sizeof *stamps);
    unsigned char* memory = map(pages * kPage);
    for (size_t p = 0; p < pages; ++p) fill(memory + p * kPage, p, 0);
    touched = memory;
    return;
  }
  for (int i = 0; i < 64; ++i) {
    const size_t p = next(job) % pages;
    const unsigned stamp = atomic_load(&stamps[p]);
    job->wrong += differs(touched + p * kPage, p, stamp);
    if (next(job) % 2 == 0) {
      fill(touched + p * kPage, p, stamp + 1);
      atomic_store(&stamps[p], stamp + 1);
    }
  }
}

static void discard(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 4096 };
  if (memory == NULL) memory = map((size_t)kPages * kPage);
  const size_t first = next(job) % kPages;
  const size_t pages = 1 + next(job) % (kPages - first < 200 ? kPages - first : 200);
  const uint64_t stamp = job->rounds;
  for (size_t p = first; p < first + pages; ++p) fill(memory + p * kPage, p, stamp);
  const size_t from = first + next(job) % pages;
  if (madvise(memory + from * kPage, (first + pages - from) * kPage, MADV_DONTNEED) != 0)
    ++job->wrong;
  for (size_t p = first; p < first + pages; ++p)
    job->wrong += p < from ? differs(memory + p * kPage, p, stamp) : !is_zero(memory + p * kPage);
}

static void lazy_free(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 2048 };
  if (memory == NULL) memory = map((size_t)kPages * kPage);
  const size_t first = next(job) % (kPages - 100);
  for (size_t p = first; p < first + 100; ++p) fill(memory + p * kPage, p, job->rounds);
  if (madvise(memory + first * kPage, 100 * (size_t)kPage, MADV_FREE) != 0) ++job->wrong;
  for (size_t p = first; p < first + 100; p += 2) fill(memory + p * kPage, p, job->rounds + 1);
  for (size_t p = first; p < first + 100; ++p)
    job->wrong += p % 2 == first % 2
                      ? differs(memory + p * kPage, p, job->rounds + 1)
                      : !is_zero(memory + p * kPage) && differs(memory + p * kPage, p, job->rounds);
}

static void map_and_unmap(struct job* job) {
  enum { kMaps = 16 };
  static unsigned char* maps[kMaps];
  static size_t pages[kMaps];
  static uint64_t stamp[kMaps];
  const size_t i = next(job) % kMaps;
  if (maps[i] == NULL) {
    pages[i] = 32 + next(job) % 1024;
    maps[i] = map(pages[i] * kPage);
    stamp[i] = job->rounds;
    for (size_t p = 0; p < pages[i]; ++p) fill(maps[i] + p * kPage, p, stamp[i]);
    return;
  }
  for (size_t p = 0; p < pages[i]; ++p) job->wrong += differs(maps[i] + p * kPage, p, stamp[i]);
  if (next(job) % 4 == 0) { /* a hole, and something else in its place */
    const size_t hole = next(job) % pages[i];
    pthread_mutex_lock(&addresses);
    munmap(maps[i] + hole * kPage, kPage);
    void* again = mmap(maps[i] + hole * kPage, kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    pthread_mutex_unlock(&addresses);
    job->wrong += again == MAP_FAILED || !is_zero(again);
    fill(maps[i] + hole * kPage, hole, stamp[i]);
    return;
  }
  munmap(maps[i], pages[i] * kPage);
  maps[i] = NULL;
}

/* mremap of a range that has become several mappings moves a part of it, and fails (Linux 6.17 to
   6.18, where one is registered with a userfaultfd). */
static int move_to(struct job* job, void* to, void* from, size_t bytes) {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to) return 1;
  job->wrong += errno != EFAULT;
  return 0;
}

struct mover {
  unsigned char* memory;
  size_t pages;
  uint64_t stamp;
  int refused; /* so often */
};

/* It may lie in two places now. */
static void give_up(struct mover* mover) {
  mover->memory = NULL;
  ++mover->refused;
}

static void move(struct job* job) {
  static struct mover movers[2]; /* of the jobs move and move2 */
  struct mover* mover = &movers[job->name[4] == '2'];
  enum { kMostRefused = 20 };
  if (mover->refused > kMostRefused) {
    --job->rounds;
    usleep(1000);
    return;
  }
  if (mover->memory == NULL) {
    mover->pages = 2000;
    mover->memory = map(mover->pages * kPage);
    mover->stamp = job->rounds;
    for (size_t p = 0; p < mover->pages; ++p) fill(mover->memory + p * kPage, p, mover->stamp);
  }
  const unsigned what = next(job) % 4;
  if (what == 0) { /* all of it to another place */
    unsigned char* place = map(mover->pages * kPage);
    if (!move_to(job, place, mover->memory, mover->pages * kPage)) return give_up(mover);
    mover->memory = place;
  } else if (what == 1) { /* grow */
    const size_t more = 1 + next(job) % 300;
    pthread_mutex_lock(&addresses);
    unsigned char* to =
        mremap(mover->memory, mover->pages * kPage, (mover->pages + more) * kPage, MREMAP_MAYMOVE);
    pthread_mutex_unlock(&addresses);
    if (to == MAP_FAILED) return;
    mover->memory = to;
    for (size_t p = mover->pages; p < mover->pages + more; ++p) {
      job->wrong += !is_zero(mover->memory + p * kPage);
      fill(mover->memory + p * kPage, p, mover->stamp);
    }
    mover->pages += more;
  } else if (what == 2 && mover->pages > 600) { /* shrink */
    const size_t less = 1 + next(job) % 500;
    if (mremap(mover->memory, mover->pages * kPage, (mover->pages - less) * kPage, 0) ==
        mover->memory)
      mover->pages -= less;
  } else { /* a part away, and back again */
    const size_t first = next(job) % (mover->pages - 100);
    const size_t part = 1 + next(job) % 100;
    unsigned char* place = map(part * kPage);
    pthread_mutex_lock(&addresses);
    int moved = move_to(job, place, mover->memory + first * kPage, part * kPage);
    for (size_t p = 0; p < part && moved; ++p)
      job->wrong += differs(place + p * kPage, first + p, mover->stamp);
    if (moved) moved = move_to(job, mover->memory + first * kPage, place, part * kPage);
    pthread_mutex_unlock(&addresses);
    if (!moved) return give_up(mover);
  }
  for (int i = 0; i < 200; ++i) {
    const size_t p = next(job) % mover->pages;
    job->wrong += differs(mover->memory + p * kPage, p, mover->stamp);
  }
}

/* Not beside move: that leaves a hole for a moment, which the kernel may give to a block here. */
static void grow(struct job* job) {
  enum { kBlocks = 4, kLeast = 64, kMost = 96 };
  static struct mover blocks[3][kBlocks];
  const size_t which = job->name[4] == '\0' ? 0 : (size_t)(job->name[4] - '1');
  struct mover* block = &blocks[which][next(job) % kBlocks];
  if (block->memory == NULL) {
    block->memory = map(kLeast * (size_t)kPage);
    block->pages = kLeast;
    block->stamp = job->rounds * kBlocks * 3 + which;
    for (size_t p = 0; p < kLeast; ++p) fill(block->memory + p * kPage, p, block->stamp);
  }
  const size_t pages = block->pages > kMost ? kLeast : block->pages + 1 + next(job) % 8;
  unsigned char* to = mremap(block->memory, block->pages * kPage, pages * kPage, MREMAP_MAYMOVE);
  if (to ==
      MAP_FAILED) { /* it has grown while it was registered: two mappings until the next look */
    job->wrong += errno != EFAULT;
    --job->rounds;
    usleep(1000);
    return;
  }
  for (size_t p = block->pages; p < pages; ++p) {
    job->wrong += !is_zero(to + p * kPage);
    fill(to + p * kPage, p, block->stamp);
  }
  block->memory = to;
  block->pages = pages;
  for (int i = 0; i < 8; ++i) {
    const size_t p = next(job) % pages;
    job->wrong += differs(to + p * kPage, p, block->stamp);
  }
  usleep(next(job) % 2000);
}

static void check_some(struct job* job, const unsigned char* memory, size_t pages, uint64_t stamp) {
  for (int i = 0; i < 50; ++i) {
    const size_t p = next(job) % pages;
    job->wrong += differs(memory + p * kPage, p, stamp);
  }
}

static unsigned char* filled(size_t pages) {
  unsigned char* memory = map(pages * kPage);
  for (size_t p = 0; p < pages; ++p) fill(memory + p * kPage, p, 0);
  return memory;
}

static void stay(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 1000 };
  const size_t bytes = (size_t)kPages * kPage;
  if (memory == NULL) memory = filled(kPages);
  unsigned char* to = mremap(memory, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
  if (to == MAP_FAILED) {
    job->wrong += errno != EFAULT;
    --job->rounds;
    usleep(1000);
    return;
  }
  for (int i = 0; i < 20; ++i) job->wrong += !is_zero(memory + next(job) % kPages * kPage);
  munmap(memory, bytes);
  memory = to;
  check_some(job, memory, kPages, 0);
}

/* Nothing else of this program calls brk while it works. */
static void heap(struct job* job) {
  static unsigned char* memory;
  static size_t pages;
  if (memory == NULL) {
    const uintptr_t end = (uintptr_t)sbrk(0);
    memory = (unsigned char*)((end + kPage - 1) / kPage * kPage);
    if (brk(memory) != 0) _exit(2);
  }
  const size_t before = pages;
  if (pages < 1500) {
    pages += 1 + next(job) % 300;
  } else {
    pages -= 1 + next(job) % 1000;
  }
  if (brk(memory + pages * kPage) != 0) _exit(2);
  for (size_t p = before; p < pages; ++p) {
    job->wrong += !is_zero(memory + p * kPage);
    fill(memory + p * kPage, p, 3);
  }
  check_some(job, memory, pages, 3);
}

static void lock(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 2000, kPart = 64 };
  if (memory == NULL) memory = filled(kPages);
  unsigned char* part = memory + next(job) % (kPages - kPart) * kPage;
  job->wrong += mlock(part, kPart * (size_t)kPage) != 0;
  check_some(job, memory, kPages, 0);
  job->wrong += munlock(part, kPart * (size_t)kPage) != 0;
  check_some(job, memory, kPages, 0);
}

/* The kernel may refuse it. */
static void collapse(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 3072, kHuge = 512 };
  if (memory == NULL) memory = filled(kPages);
  const uintptr_t huge = (uintptr_t)kHuge * kPage;
  const uintptr_t first = ((uintptr_t)memory + huge - 1) / huge * huge;
  (void)madvise((void*)(first + next(job) % (kPages / kHuge - 1) * huge), huge, MADV_COLLAPSE);
  check_some(job, memory, kPages, 0);
}

static void protect(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 3000 };
  if (memory == NULL) {
    memory = map((size_t)kPages * kPage);
    for (size_t p = 0; p < kPages; ++p) fill(memory + p * kPage, p, 0);
  }
  const size_t first = next(job) % (kPages - 64);
  mprotect(memory + first * kPage, 64 * (size_t)kPage, PROT_READ);
  for (size_t p = first; p < first + 64; ++p) job->wrong += differs(memory + p * kPage, p, 0);
  mprotect(memory + first * kPage, 64 * (size_t)kPage, PROT_NONE);
  usleep(1000);
  mprotect(memory + first * kPage, 64 * (size_t)kPage, PROT_READ | PROT_WRITE);
  for (size_t p = first; p < first + 64; ++p) {
    job->wrong += differs(memory + p * kPage, p, 0);
    fill(memory + p * kPage, p, 0);
  }
}

static void fork_and_check(struct job* job) {
  static unsigned char* memory;
  enum { kPages = 2048 };
  if (memory == NULL) {
    memory = map((size_t)kPages * kPage);
    for (size_t p = 0; p < kPages; ++p) fill(memory + p * kPage, p, 1);
  }
  usleep(50000); /* a fork makes every page shared, which keeps it here until it is written */
  const uint64_t seed = next(job);
  const pid_t child = fork();
  if (child == 0) {
    uint64_t wrong = 0;
    for (size_t i = 0; i < 500; ++i) {
      const size_t p = (seed + i * 37) % kPages;
      wrong += differs(memory + p * kPage, p, 1);
      if (i % 3 == 0) fill(memory + p * kPage, p, 2);
      wrong += differs(memory + p * kPage, p, i % 3 == 0 ? 2 : 1);
      if (i % 3 == 0) fill(memory + p * kPage, p, 1);
    }
    _exit(wrong == 0 ? 0 : 1);
  }
  for (size_t i = 0; i < 300; ++i) {
    const size_t p = (seed + i * 41) % kPages;
    job->wrong += differs(memory + p * kPage, p, 1);
    fill(memory + p * kPage, p, 1);
  }
  int status = -1;
  if (child > 0 && waitpid(child, &status, 0) == child) job->wrong += status != 0;
  if (child < 0) ++job->wrong;
}

static void direct(struct job* job) {
  static unsigned char* memory;
  static int file = -1;
  enum { kPages = 4096, kFile = 1024 };
  if (memory == NULL) {
    memory = map((size_t)kPages * kPage);
    file = open("direct.bin", O_RDWR | O_CREAT | O_TRUNC, 0600);
    for (size_t p = 0; p < kFile; ++p) {
      unsigned char page[kPage];
      fill(page, p, 7);
      if (write(file, page, kPage) != kPage) _exit(2);
    }
    fsync(file);
    close(file);
    file = open("direct.bin", O_RDONLY | O_DIRECT);
    if (file < 0) _exit(2);
    for (size_t p = 0; p < kPages; ++p) fill(memory + p * kPage, p, 0);
  }
  const size_t pages = 1 + next(job) % 16;
  const size_t to = next(job) % (kPages - pages);
  const size_t from = next(job) % (kFile - pages);
  const ssize_t got = pread(file, memory + to * kPage, pages * kPage, (off_t)(from * kPage));
  job->wrong += got != (ssize_t)(pages * kPage);
  for (size_t p = 0; p < pages; ++p) job->wrong += differs(memory + (to + p) * kPage, from + p, 7);
}

static struct job jobs[] = {
    {"touch", touch, 0, 0, 1, 0},         {"discard", discard, 0, 0, 2, 0},
    {"free", lazy_free, 0, 0, 3, 0},      {"map", map_and_unmap, 0, 0, 4, 0},
    {"move", move, 0, 0, 5, 0},           {"move2", move, 0, 0, 9, 0},
    {"grow", grow, 0, 0, 10, 0},          {"grow2", grow, 0, 0, 11, 0},
    {"grow3", grow, 0, 0, 12, 0},         {"stay", stay, 0, 0, 13, 0},
    {"heap", heap, 0, 0, 14, 0},          {"lock", lock, 0, 0, 15, 0},
    {"collapse", collapse, 0, 0, 16, 0},  {"protect", protect, 0, 0, 6, 0},
    {"fork", fork_and_check, 0, 0, 7, 0}, {"direct", direct, 0, 0, 8, 0}};

static atomic_int begun;

static void* run(void* argument) {
  struct job* job = argument;
  job->round(job); /* sets its memory up */
  atomic_fetch_add(&begun, 1);
  while (!atomic_load(&over)) {
    ++job->rounds;
    job->round(job);
  }
  return NULL;
}

int main(int count, char** arguments) {
  if (count < 3) return 2;
  mebibytes = strtoul(arguments[1], NULL, 10);
  int running = 0;
  for (int a = 2; a < count; ++a) {
    struct job* found = NULL;
    for (size_t j = 0; j < sizeof jobs / sizeof *jobs; ++j)
      if (strcmp(jobs[j].name, arguments[a]) == 0) found = &jobs[j];
    if (found == NULL || pthread_create(&found->thread, NULL, run, found) != 0) return 2;
    ++running;
  }
  while (atomic_load(&begun) < running) usleep(1000);
  puts("ready");
  fflush(stdout);
  char nothing = 0;
  while (read(0, &nothing, 1) > 0) {
  }
  atomic_store(&over, 1);
  uint64_t wrong = 0;
  for (size_t j = 0; j < sizeof jobs / sizeof *jobs; ++j) {
    if (jobs[j].thread == 0) continue;
    pthread_join(jobs[j].thread, NULL);
    printf("%s %llu %llu\n", jobs[j].name, (unsigned long long)jobs[j].rounds,
           (unsigned long long)jobs[j].wrong);
    wrong += jobs[j].wrong;
  }
  return wrong == 0 ? 0 : 1;
}
