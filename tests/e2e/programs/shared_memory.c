// A stand-in for a VMM with shared guest memory and its vhost-user devices: processes that map one
// memfd, register their mappings with userfaultfds, and hand them over (docs/protocol.md, "Shared
// memory of a VMM"). Only the documented protocol is used.
//
//   shared_memory SOCKET PROCESSES PAGES ROUNDS SEED [OPTION...]
//
// Each page has a lock and a version in plain shared memory. Several threads of each process write
// pages as a function of page and version, and check every byte of pages that others have written.
// Options:
//   --threads N    of each process (2)
//   --regions N    pieces in which the memfd is mapped, with gaps (1)
//   --memories N   memfds (1)
//   --prefill      all pages are written before the hand-over
//   --walk         each process reads all pages in order, too
//   --late         process 1.. hand over when the first one has worked already
//   --lifeline     the kernel kills it when the pager closes the connection
//   --exit-early N process N ends after a tenth of its rounds
//   --unmap N      process N unmaps the memory after a tenth of its rounds, and stays
//   --again N      process N maps the memory anew in the middle, and hands it over again
//   --pause        prints "ready" after the hand-over and waits for a line before it works, and
//   prints
//                  "worked" and waits again before the last check
//   --send WHAT    what is wrong with the message (see send_message); prints the answer
// Prints one JSON line: checks, wrong bytes, nanoseconds of a touch. Exit status: 0 if all is
// right.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kPage = 4096, kMaxProcesses = 8, kMaxMemories = 8, kMaxRegions = 64, kMaxThreads = 16 };

#define CHECK(condition, what)                                                       \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, what, strerror(errno)); \
      _exit(3);                                                                      \
    }                                                                                \
  } while (0)

// ---- settings ----

static const char* socket_path;
static int process_count;
static uint64_t page_count;
static uint64_t rounds;
static uint64_t seed;
static int thread_count = 2;
static int region_count = 1;
static int memory_count = 1;
static int prefill, walk, late, pauses, lifeline;
static int exit_early = -1;
static int unmaps = -1;
static int again = -1;
static const char* wrong = "";

// ---- the model: shared by all processes, local ----

struct Page {
  atomic_flag lock;
  uint32_t version;  // 0: zeros
};
struct Model {
  atomic_uint joined, may_work, finished;
  atomic_ullong checks, wrong, touches, touch_ns, most_ns;
  struct Page pages[];
};
static struct Model* model;
static int memories[kMaxMemories];

// Of the process.
struct Region {
  uint8_t* memory;
  uint64_t first;  // page
  uint64_t pages;
};
static struct Region regions[kMaxRegions];
static int own_regions;
static int own_number;
static int userfaultfd = -1;
static int connection = -1;

static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

static uint64_t word_of(uint64_t page, uint32_t version, unsigned word) {
  if (version == 0) return 0;
  if (version % 7 == 0) return word == 5 ? version : 0;  // nearly all zeros
  return mix(page * 1000003 + version * 8191ULL + word);
}

static uint64_t* place_of(uint64_t page) {
  for (int i = 0; i < own_regions; ++i)
    if (page - regions[i].first < regions[i].pages)
      return (uint64_t*)(regions[i].memory + (page - regions[i].first) * kPage);
  CHECK(0, "no region");
  return NULL;
}

static void lock_page(uint64_t page) {
  while (atomic_flag_test_and_set_explicit(&model->pages[page].lock, memory_order_acquire))
    sched_yield();
}
static void unlock_page(uint64_t page) {
  atomic_flag_clear_explicit(&model->pages[page].lock, memory_order_release);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void check_page(uint64_t page) {
  const uint32_t version = model->pages[page].version;
  const uint64_t begin = now_ns();
  const uint64_t* words = place_of(page);
  uint64_t bad = 0;
  (void)*(const volatile uint64_t*)words;
  const uint64_t took = now_ns() - begin;
  for (unsigned word = 0; word < kPage / 8; ++word)
    if (words[word] != word_of(page, version, word)) ++bad;
  atomic_fetch_add(&model->checks, 1);
  atomic_fetch_add(&model->touch_ns, took);
  unsigned long long most = atomic_load(&model->most_ns);
  while (took > most && !atomic_compare_exchange_weak(&model->most_ns, &most, took)) {
  }
  if (bad == 0) return;
  if (atomic_fetch_add(&model->wrong, bad) == 0)
    fprintf(stderr, "process %d: page %llu version %u has %llu wrong words: %llx\n", own_number,
            (unsigned long long)page, version, (unsigned long long)bad,
            (unsigned long long)words[0]);
}

static void write_page(uint64_t page) {
  const uint32_t version = ++model->pages[page].version;
  uint64_t* words = place_of(page);
  for (unsigned word = 0; word < kPage / 8; ++word) words[word] = word_of(page, version, word);
}

// ---- the hand-over ----

static uint64_t first_of_memory(int memory) {
  return page_count * (uint64_t)memory / (uint64_t)memory_count;
}

static void map_memory(void) {
  const int of_each = (region_count + memory_count - 1) / memory_count;
  for (int m = 0; m < memory_count; ++m) {
    const uint64_t begin = first_of_memory(m);
    const uint64_t pages = first_of_memory(m + 1) - begin;
    for (int r = 0; r < of_each; ++r) {
      struct Region* region = &regions[own_regions++];
      region->first = begin + pages * (uint64_t)r / (uint64_t)of_each;
      region->pages = begin + pages * (uint64_t)(r + 1) / (uint64_t)of_each - region->first;
      // A page of no access before each, so that they do not become one mapping.
      uint8_t* place =
          mmap(NULL, (region->pages + 2) * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      CHECK(place != MAP_FAILED, "reserving");
      region->memory =
          mmap(place + kPage, region->pages * kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
               memories[m], (off_t)((region->first - begin) * kPage));
      CHECK(region->memory != MAP_FAILED, "mapping the memfd");
      if (strcmp(wrong, "dofork") != 0)
        CHECK(madvise(region->memory, region->pages * kPage, MADV_DONTFORK) == 0, "DONTFORK");
    }
  }
}

static void open_userfaultfd(void) {
  userfaultfd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
  CHECK(userfaultfd >= 0, "userfaultfd");
  struct uffdio_api api = {.api = UFFD_API,
                           .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM |
                                       UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM |
                                       UFFD_FEATURE_THREAD_ID};
  if (strcmp(wrong, "events") == 0) api.features |= UFFD_FEATURE_EVENT_REMOVE;
  if (strcmp(wrong, "features") == 0) api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  if (strcmp(wrong, "api") != 0) CHECK(ioctl(userfaultfd, UFFDIO_API, &api) == 0, "UFFDIO_API");
}

static void register_memory(void) {
  if (strcmp(wrong, "unregistered") == 0 || strcmp(wrong, "api") == 0) return;
  for (int i = 0; i < own_regions; ++i) {
    struct uffdio_register request = {
        .range = {.start = (uint64_t)regions[i].memory, .len = regions[i].pages * kPage},
        .mode =
            UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP};
    if (strcmp(wrong, "modes") == 0) request.mode = UFFDIO_REGISTER_MODE_MISSING;
    CHECK(ioctl(userfaultfd, UFFDIO_REGISTER, &request) == 0, "UFFDIO_REGISTER");
  }
}

static size_t message_of(char* text, size_t size) {
  size_t length = 0;
  length += (size_t)snprintf(text, size, "[");
  for (int i = 0; i < own_regions; ++i) {
    int memory = 0;
    while (regions[i].first >= first_of_memory(memory + 1)) ++memory;
    length += (size_t)snprintf(
        text + length, size - length,
        "%s{\"base_host_virt_addr\": %llu, \"size\": %llu, \"offset\": %llu, \"memory\": %d, "
        "\"page_size\": 4096}",
        i > 0 ? ", " : "", (unsigned long long)regions[i].memory,
        (unsigned long long)(regions[i].pages * kPage),
        (unsigned long long)((regions[i].first - first_of_memory(memory)) * kPage), memory);
  }
  length += (size_t)snprintf(text + length, size - length, "]\n");
  return length;
}

static void send_with(const void* bytes, size_t length, const int* descriptors, size_t count) {
  struct iovec vector = {.iov_base = (void*)bytes, .iov_len = length};
  union {
    char bytes[CMSG_SPACE(sizeof(int) * 16)];
    struct cmsghdr align;
  } control;
  memset(&control, 0, sizeof control);
  struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
  if (count > 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    struct cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(header), descriptors, sizeof(int) * count);
  }
  CHECK(sendmsg(connection, &message, MSG_NOSIGNAL) == (ssize_t)length, "sendmsg");
}

static void send_message(void) {
  static char text[65536 + 4096];
  size_t length = message_of(text, sizeof text);
  int descriptors[16] = {userfaultfd};
  size_t count = 1;
  for (int m = 0; m < memory_count; ++m) descriptors[count++] = memories[m];
  if (strcmp(wrong, "no-descriptors") == 0) count = 0;
  if (strcmp(wrong, "no-memfd") == 0) count = 1;
  if (strcmp(wrong, "no-userfaultfd") == 0) descriptors[0] = memories[0];
  if (strcmp(wrong, "many-descriptors") == 0)
    while (count < 12) descriptors[count++] = memories[0];
  if (strcmp(wrong, "twice") == 0) descriptors[count++] = memories[0];
  if (strcmp(wrong, "read-only") == 0) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memories[0]);
    CHECK((descriptors[1] = open(path, O_RDONLY | O_CLOEXEC)) >= 0, "opening the memfd again");
  }
  if (strcmp(wrong, "other-file") == 0)
    CHECK((descriptors[1] = open("/dev/null", O_RDWR | O_CLOEXEC)) >= 0, "/dev/null");
  if (strcmp(wrong, "sealed") == 0) {
    descriptors[1] = memfd_create("sealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(descriptors[1], kPage) == 0, "ftruncate");
    CHECK(fcntl(descriptors[1], F_ADD_SEALS, F_SEAL_WRITE) == 0, "F_SEAL_WRITE");
  }
  if (strncmp(wrong, "text:", 5) == 0)
    length = (size_t)snprintf(text, sizeof text, "%s\n", wrong + 5);
  if (strcmp(wrong, "long") == 0) {
    memset(text, ' ', sizeof text);
    length = sizeof text;
  }
  if (strcmp(wrong, "trailing") == 0)
    length += (size_t)snprintf(text + length, sizeof text - length, "[]\n");
  if (strcmp(wrong, "second-mapping") == 0)
    CHECK(mmap(NULL, kPage, PROT_READ, MAP_SHARED, memories[0], 0) != MAP_FAILED, "mmap");
  if (strcmp(wrong, "slow") == 0) {  // in parts, with the descriptors one by one
    for (size_t i = 0; i < length; ++i) {
      send_with(text + i, 1, i < count ? &descriptors[i] : NULL, i < count ? 1 : 0);
      if (i % 16 == 0) sched_yield();
    }
    return;
  }
  if (strcmp(wrong, "torn") == 0) {
    send_with(text, length / 2, descriptors, count);
    CHECK(shutdown(connection, SHUT_WR) == 0, "shutdown");
    return;
  }
  send_with(text, length, descriptors, count);
}

// 1: accepted.
static int hand_over(char* answer, size_t size) {
  connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
  CHECK(connect(connection, (struct sockaddr*)&address, sizeof address) == 0, "connect");
  send_message();
  size_t length = 0;
  while (length + 1 < size) {
    const ssize_t got = recv(connection, answer + length, 1, 0);
    if (got <= 0 || answer[length] == '\n') break;
    ++length;
  }
  answer[length] = 0;
  if (strstr(answer, "\"accepted\"") == NULL) return 0;
  // When the pager ends, nobody serves this memory: the kernel kills this process.
  if (!lifeline) return 1;
  CHECK(fcntl(connection, F_SETOWN, getpid()) == 0 && fcntl(connection, F_SETSIG, SIGKILL) == 0 &&
            fcntl(connection, F_SETFL, O_ASYNC) == 0,
        "SIGKILL at the end of the connection");
  return 1;
}

// ---- the work ----

static void* work(void* argument) {
  uint64_t random = mix(seed * 77 + (uint64_t)own_number * 1000 + (uint64_t)(uintptr_t)argument);
  uint64_t mine = rounds;
  if (own_number == exit_early || own_number == unmaps) mine = rounds / 10;
  if (own_number == again) mine = rounds / 2;
  for (uint64_t round = 0; round < mine; ++round) {
    random = mix(random + 0x9e3779b97f4a7c15ULL);
    // Half of the touches go to an eighth of the pages, so that processes meet.
    const uint64_t page =
        random % 2 == 0 ? (random >> 8) % page_count : (random >> 8) % (page_count / 8 + 1);
    lock_page(page);
    check_page(page);
    if ((random >> 4) % 3 == 0) write_page(page);
    unlock_page(page);
  }
  if (walk)
    for (uint64_t page = 0; page < page_count; ++page) {
      lock_page(page);
      check_page(page);
      unlock_page(page);
    }
  return NULL;
}

static void wait_for_line(const char* say) {
  char line[64];
  printf("%s\n", say);
  fflush(stdout);
  if (fgets(line, sizeof line, stdin) == NULL) _exit(4);
}

static void run_threads(void) {
  pthread_t threads[kMaxThreads];
  for (int i = 0; i < thread_count; ++i)
    CHECK(pthread_create(&threads[i], NULL, work, (void*)(uintptr_t)i) == 0, "pthread_create");
  for (int i = 0; i < thread_count; ++i) pthread_join(threads[i], NULL);
}

static void await(atomic_uint* counter, unsigned value) {
  while (atomic_load(counter) < value) usleep(1000);
}

static int be_process(int number) {
  own_number = number;
  char answer[4096];
  map_memory();
  if (prefill && number == 0)
    for (uint64_t page = 0; page < page_count; ++page) write_page(page);
  if (late && number > 0) await(&model->may_work, 1);
  open_userfaultfd();
  register_memory();
  if (!hand_over(answer, sizeof answer)) {
    printf("%s\n", answer);
    fflush(stdout);
    return *wrong != 0 ? 0 : 2;
  }
  atomic_fetch_add(&model->joined, 1);
  if (pauses && number == 0) {
    await(&model->joined, (unsigned)process_count);
    wait_for_line("ready");
  }
  if (number == 0 || late)
    atomic_fetch_add(&model->may_work, 1);
  else
    await(&model->may_work, 1);
  run_threads();
  if (number == again || number == unmaps) {
    for (int i = 0; i < own_regions; ++i)
      CHECK(munmap(regions[i].memory, regions[i].pages * kPage) == 0, "munmap");
    own_regions = 0;
  }
  if (number == again) {
    close(userfaultfd);
    close(connection);
    map_memory();
    open_userfaultfd();
    register_memory();
    CHECK(hand_over(answer, sizeof answer), answer);
    run_threads();
  }
  atomic_fetch_add(&model->finished, 1);
  if (number == unmaps) await(&model->finished, (unsigned)process_count);
  if (number != 0) return 0;
  await(&model->finished, (unsigned)process_count);
  if (pauses) wait_for_line("worked");
  for (uint64_t page = 0; page < page_count; ++page) check_page(page);
  return 0;
}

int main(int argc, char** argv) {
  CHECK(argc >= 6, "usage");
  socket_path = argv[1];
  process_count = atoi(argv[2]);
  page_count = strtoull(argv[3], NULL, 10);
  rounds = strtoull(argv[4], NULL, 10);
  seed = strtoull(argv[5], NULL, 10);
  for (int i = 6; i < argc; ++i) {
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (strcmp(argv[i], "--prefill") == 0)
      prefill = 1;
    else if (strcmp(argv[i], "--walk") == 0)
      walk = 1;
    else if (strcmp(argv[i], "--late") == 0)
      late = 1;
    else if (strcmp(argv[i], "--pause") == 0)
      pauses = 1;
    else if (strcmp(argv[i], "--lifeline") == 0)
      lifeline = 1;
    else if (++i < 0)
      return 1;
    else if (strcmp(argv[i - 1], "--threads") == 0)
      thread_count = atoi(value);
    else if (strcmp(argv[i - 1], "--regions") == 0)
      region_count = atoi(value);
    else if (strcmp(argv[i - 1], "--memories") == 0)
      memory_count = atoi(value);
    else if (strcmp(argv[i - 1], "--exit-early") == 0)
      exit_early = atoi(value);
    else if (strcmp(argv[i - 1], "--unmap") == 0)
      unmaps = atoi(value);
    else if (strcmp(argv[i - 1], "--again") == 0)
      again = atoi(value);
    else if (strcmp(argv[i - 1], "--send") == 0)
      wrong = value;
    else
      CHECK(0, argv[i - 1]);
  }
  CHECK(process_count <= kMaxProcesses && thread_count <= kMaxThreads &&
            memory_count <= kMaxMemories && region_count <= kMaxRegions,
        "too many");
  model = mmap(NULL, sizeof *model + page_count * sizeof(struct Page), PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(model != MAP_FAILED, "the model");
  for (int m = 0; m < memory_count; ++m) {
    memories[m] = memfd_create("guest", MFD_CLOEXEC);
    const uint64_t pages = first_of_memory(m + 1) - first_of_memory(m);
    CHECK(memories[m] >= 0 && ftruncate(memories[m], (off_t)(pages * kPage)) == 0, "memfd");
  }
  pid_t children[kMaxProcesses];
  const pid_t parent = getpid();
  for (int number = 1; number < process_count; ++number) {
    children[number] = fork();
    CHECK(children[number] >= 0, "fork");
    if (children[number] == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(3);
      _exit(be_process(number));
    }
  }
  int status = be_process(0);
  for (int number = 1; number < process_count; ++number) {
    int of_child = 0;
    waitpid(children[number], &of_child, 0);
    if (of_child != 0 && status == 0) status = WIFEXITED(of_child) ? WEXITSTATUS(of_child) : 5;
  }
  if (*wrong != 0 && strcmp(wrong, "slow") != 0) return status;
  if (status != 0) return status;
  printf("{\"checks\": %llu, \"wrong\": %llu, \"mean_touch_ns\": %llu, \"most_ns\": %llu}\n",
         (unsigned long long)model->checks, (unsigned long long)model->wrong,
         (unsigned long long)(model->touch_ns / (model->checks + 1)),
         (unsigned long long)model->most_ns);
  return model->wrong == 0 ? 0 : 1;
}
