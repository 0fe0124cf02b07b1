/* A program whose heap grows all the time, and which checks it all the time.

     growing_memory MIB     runs until its standard input ends

   The heap grows by 128 KiB each 2 ms, up to MIB, and then is taken back to half of that, where it
   begins. Some of its pages are checked, and some rewritten, each time. Prints "ready" when half of
   MIB is filled, at its end "grow rounds wrong". */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kWords = kPage / 8, kStep = 32 };

static atomic_bool over;

static uint64_t word(uint64_t page, uint64_t stamp, unsigned i) {
  return (page * 0x9E3779B97F4A7C15u) ^ (stamp << 20) ^ (i * 0xD1B54A32D192ED03u);
}

static void fill(unsigned char* memory, uint64_t page, uint64_t stamp) {
  uint64_t* words = (uint64_t*)(memory + page * kPage);
  for (unsigned i = 0; i < kWords; ++i) words[i] = word(page, stamp, i);
}

static uint64_t differs(const unsigned char* memory, uint64_t page, uint64_t stamp) {
  const uint64_t* words = (const uint64_t*)(memory + page * kPage);
  for (unsigned i = 0; i < kWords; ++i)
    if (words[i] != word(page, stamp, i)) return 1;
  return 0;
}

static void pause_for(long microseconds) {
  const struct timespec time = {0, microseconds * 1000};
  nanosleep(&time, NULL);
}

static uint64_t some(uint64_t* random) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  return *random >> 33;
}

static void* until_the_end_of_input(void* nothing) {
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  atomic_store(&over, 1);
  return nothing;
}

/* Some pages of the first `pages`; each has its own stamp. */
static uint64_t check(unsigned char* memory, unsigned* stamps, uint64_t pages, uint64_t* random) {
  uint64_t wrong = 0;
  for (int i = 0; i < 32; ++i) {
    const uint64_t page = some(random) % pages;
    wrong += differs(memory, page, stamps[page]);
    if (i % 4 == 0) fill(memory, page, ++stamps[page]);
  }
  return wrong;
}

static uint64_t grow(uint64_t most, uint64_t* rounds) {
  uint64_t wrong = 0, random = 1, pages = 0;
  unsigned* stamps =
      mmap(NULL, most * sizeof *stamps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  sbrk((intptr_t)(kPage - (uintptr_t)sbrk(0) % kPage));
  unsigned char* memory = sbrk(0);
  while (!atomic_load(&over)) {
    if (pages + kStep > most) {
      pages = most / 2;
      if (brk(memory + pages * kPage) != 0) exit(2);
    }
    if (sbrk(kStep * kPage) != memory + pages * kPage) exit(2);
    for (uint64_t page = pages; page < pages + kStep; ++page) fill(memory, page, stamps[page]);
    pages += kStep;
    wrong += check(memory, stamps, pages, &random);
    if (pages < most / 2 && *rounds == 0) continue;
    if (++*rounds == 1) {
      puts("ready");
      fflush(stdout);
    }
    pause_for(2000);
  }
  return wrong;
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  pthread_t thread;
  if (pthread_create(&thread, NULL, until_the_end_of_input, NULL) != 0) return 2;
  uint64_t rounds = 0;
  const uint64_t wrong = grow(strtoull(arguments[1], NULL, 10) << 8, &rounds);
  printf("grow %llu %llu\n", (unsigned long long)rounds, (unsigned long long)wrong);
  return wrong == 0 ? 0 : 1;
}
