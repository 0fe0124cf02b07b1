/* A program that forks processes which go on working: each checks and rewrites its copy of the
   memory that it has inherited, and memory of its own, until standard input of the first one ends.

     forked_memory MIB

   A line of standard input is a command:
     fork       a child; its id is printed
     orphan     the same, whose parent has ended by then
     tree       a child that has a child; the id of the grandchild is printed
     end        the first process ends, and orphans go on, for 10 minutes
     exec PATH  the last child executes that with the argument "60"

   At the end of the input each prints "process ROUNDS WRONG". Whoever reads a wrong byte says so at
   once on standard error, too: it may be killed soon. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kPage = 4096, kWords = kPage / 8, kMost = 64, kOwnMebibytes = 4 };

struct process {
  atomic_int pid;
  atomic_bool over, executes;
  atomic_ullong rounds, wrong;
};
struct shared {
  atomic_bool over;
  atomic_uint processes;
  char path[256];
  struct process process[kMost];
};

static struct shared* shared; /* by all processes: it stays local */
static uint64_t* inherited;
static unsigned* stamps; /* of what the first process has there; it stands while another begins */
static size_t pages;

static uint64_t word(uint64_t page, uint64_t stamp, unsigned i) {
  return ((page + 1) * 0x9E3779B97F4A7C15u) ^ (stamp << 20) ^ (i * 0xD1B54A32D192ED03u);
}

static void fill(uint64_t* words, uint64_t page, uint64_t stamp) {
  for (unsigned i = 0; i < kWords; ++i) words[i] = word(page, stamp, i);
}

static int differs(const uint64_t* words, uint64_t page, uint64_t stamp) {
  for (unsigned i = 0; i < kWords; ++i)
    if (words[i] != word(page, stamp, i)) return 1;
  return 0;
}

static void* map(size_t bytes, int flags) {
  void* at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) _exit(2);
  return at;
}

struct memory {
  uint64_t* at;
  size_t pages;
  unsigned* stamps;
};

static void check(struct process* self, struct memory* memory, uint64_t* random) {
  for (int i = 0; i < 64; ++i) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    const size_t page = (*random >> 33) % memory->pages;
    uint64_t* words = memory->at + page * kWords;
    if (differs(words, page, memory->stamps[page])) {
      atomic_fetch_add(&self->wrong, 1);
      static const char text[] = "wrong byte\n";
      if (write(2, text, sizeof text - 1) < 0) _exit(2);
    }
    if (*random % 3 == 0) fill(words, page, ++memory->stamps[page]);
  }
}

/* Until all is over. */
static void work(struct process* self) {
  const size_t own_pages = (size_t)kOwnMebibytes << 8;
  struct memory all[] = {{inherited, pages, map(pages * sizeof(unsigned), MAP_SHARED)},
                         {map(own_pages * kPage, MAP_PRIVATE), own_pages,
                          map(own_pages * sizeof(unsigned), MAP_SHARED)}};
  memcpy(all[0].stamps, stamps, pages * sizeof *stamps);
  for (size_t page = 0; page < own_pages; ++page) fill(all[1].at + page * kWords, page, 0);
  atomic_store(&self->pid, getpid());
  uint64_t random = (uint64_t)getpid();
  alarm(600);
  while (!atomic_load(&shared->over)) {
    check(self, &all[0], &random);
    check(self, &all[1], &random);
    atomic_fetch_add(&self->rounds, 1);
    if (atomic_load(&self->executes)) execl(shared->path, shared->path, "60", NULL);
  }
  atomic_store(&self->over, 1);
  _exit(0);
}

/* Depth: how many processes there are between this one and the one that works. Returns when each
   of them has taken its copy of the stamps. */
static void fork_one(int depth, int works_between) {
  struct process* self = &shared->process[atomic_fetch_add(&shared->processes, 1)];
  struct process* between =
      works_between ? &shared->process[atomic_fetch_add(&shared->processes, 1)] : NULL;
  if (fork() == 0) {
    if (!works_between && depth == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (depth > 0) {
      if (fork() != 0) {
        if (!works_between) _exit(0);
        work(between);
      }
    }
    work(self);
  }
  while (atomic_load(&self->pid) == 0 || (between != NULL && atomic_load(&between->pid) == 0))
    usleep(1000);
  printf("%d\n", atomic_load(&self->pid));
  fflush(stdout);
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  signal(SIGCHLD, SIG_IGN); /* children are reaped by the kernel */
  pages = strtoul(arguments[1], NULL, 10) << 8;
  shared = map(sizeof *shared, MAP_SHARED);
  inherited = map(pages * kPage, MAP_PRIVATE);
  for (size_t page = 0; page < pages; ++page) fill(inherited + page * kWords, page, 0);
  struct process* self = &shared->process[atomic_fetch_add(&shared->processes, 1)];
  stamps = map(pages * sizeof *stamps, MAP_SHARED);
  struct memory memory = {inherited, pages, stamps};
  puts("ready");
  fflush(stdout);
  char line[256];
  while (fgets(line, sizeof line, stdin) != NULL) {
    line[strcspn(line, "\n")] = '\0';
    if (strcmp(line, "fork") == 0) fork_one(0, 0);
    if (strcmp(line, "orphan") == 0) fork_one(1, 0);
    if (strcmp(line, "tree") == 0) fork_one(1, 1);
    if (strncmp(line, "exec ", 5) == 0) {
      strncpy(shared->path, line + 5, sizeof shared->path - 1);
      atomic_store(&shared->process[atomic_load(&shared->processes) - 1].executes, 1);
    }
    if (strcmp(line, "end") == 0) return 0;
    uint64_t random = 1;
    check(self, &memory, &random);
    atomic_fetch_add(&self->rounds, 1);
  }
  /* What it has itself: all of it. */
  for (size_t page = 0; page < pages; ++page)
    if (differs(inherited + page * kWords, page, memory.stamps[page]))
      atomic_fetch_add(&self->wrong, 1);
  atomic_fetch_add(&self->rounds, 1);
  atomic_store(&shared->over, 1);
  uint64_t wrong = 0;
  for (unsigned i = 0; i < atomic_load(&shared->processes); ++i) {
    struct process* process = &shared->process[i];
    while (process != self && !atomic_load(&process->over) && !atomic_load(&process->executes))
      usleep(1000);
    printf("process %llu %llu\n", atomic_load(&process->rounds), atomic_load(&process->wrong));
    wrong += atomic_load(&process->wrong);
  }
  return wrong == 0 ? 0 : 1;
}
