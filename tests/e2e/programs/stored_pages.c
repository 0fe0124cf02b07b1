// Pages whose contents say what they are, so that a test can find them in a node's memory:
// stored_pages PAGES, then commands on standard input, each answered by a line:
//   read       touches all pages: "right N wrong N bus N"
//   child      the same in a forked child
//   write N    gives all pages their contents of version N: "written"
// The first two words of a page are kMagic and its number, the others follow from number and
// version.
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kPageBytes = 4096, kWords = kPageBytes / sizeof(uint64_t) };
static const uint64_t kMagic = 0x7365676170726166;  // "farpages"

static sigjmp_buf escape;
static uint64_t* memory;
static uint64_t pages;
static uint64_t version;

static void on_bus_error(int number) {
  (void)number;
  siglongjmp(escape, 1);
}

static uint64_t word_of(uint64_t page, uint64_t word) {
  if (word == 0) return kMagic;
  if (word == 1) return page;
  return (page * kWords + word + version) * 0x9E3779B97F4A7C15;
}

static void write_all(void) {
  for (uint64_t page = 0; page < pages; ++page)
    for (uint64_t word = 0; word < kWords; ++word)
      memory[page * kWords + word] = word_of(page, word);
}

static void read_all(void) {
  uint64_t right = 0;
  volatile uint64_t wrong = 0;
  volatile uint64_t bus = 0;
  for (volatile uint64_t page = 0; page < pages; ++page) {
    if (sigsetjmp(escape, 1) != 0) {
      ++bus;
      continue;
    }
    int is_wrong = 0;
    for (uint64_t word = 0; word < kWords; ++word)
      is_wrong |= memory[page * kWords + word] != word_of(page, word);
    wrong += (uint64_t)is_wrong;
  }
  right = pages - wrong - bus;
  printf("right %llu wrong %llu bus %llu\n", (unsigned long long)right, (unsigned long long)wrong,
         (unsigned long long)bus);
  fflush(stdout);
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  pages = strtoull(arguments[1], NULL, 10);
  memory =
      mmap(NULL, pages * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, NULL);
  write_all();
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    if (strcmp(line, "read\n") == 0) {
      read_all();
    } else if (strcmp(line, "child\n") == 0) {
      const pid_t child = fork();
      if (child < 0) return 2;
      if (child == 0) {
        read_all();
        _exit(0);
      }
      waitpid(child, NULL, 0);
    } else if (strncmp(line, "write ", 6) == 0) {
      version = strtoull(line + 6, NULL, 10);
      write_all();
      puts("written");
      fflush(stdout);
    } else {
      return 2;
    }
  }
  return 0;
}
