// kvm_guest PAGES PASSES [SOCKET]: a virtual machine monitor in small. The memory of its guest is
// one private anonymous mapping, as that of most monitors, and becomes far under `farpage run`. The
// one CPU of the guest, in 64-bit mode, writes a word to each of PAGES of its memory, and in each
// pass checks it and writes another one: a KVM without hardware for guests executes some 700,000
// instructions a second. Then the monitor checks the last ones by its own mapping.
//
// With SOCKET, the memory is a memfd that another process maps, too, as the device of a monitor
// does: both hand it over to `farpage share`. The device checks the last words, too.
//
// Prints the number of wrong words that the guest and the monitor have found.
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/require.h"

// What the guest executes. rdi: the first word, rbx: bytes from word to word, rsi: the number of
// words, rcx: the number of passes. Word i is (i + 1) * rdx, and rdx grows by two from pass to
// pass. At the end r9 has the number of wrong words.
asm(R"(
  .pushsection .rodata
guest_code:
  xorl %r9d, %r9d
  xorl %r8d, %r8d
  movq %rdi, %r10
1:
  leaq 1(%r8), %rax
  imulq %rdx, %rax
  movq %rax, (%r10)
  addq %rbx, %r10
  incq %r8
  cmpq %rsi, %r8
  jb 1b
2:
  xorl %r8d, %r8d
  movq %rdi, %r10
3:
  leaq 1(%r8), %rax
  imulq %rdx, %rax
  cmpq %rax, (%r10)
  je 4f
  incq %r9
4:
  leaq 2(%rax,%r8,2), %rax
  movq %rax, (%r10)
  addq %rbx, %r10
  incq %r8
  cmpq %rsi, %r8
  jb 3b
  addq $2, %rdx
  decq %rcx
  jnz 2b
  hlt
guest_code_end:
  .popsection
)");

extern "C" {
extern const unsigned char guest_code[];
extern const unsigned char guest_code_end[];
}

namespace {

// The map of the guest's memory: page tables, the code, and from kWordsAt on the words.
constexpr uint64_t kTablesAt = 0x1000;
constexpr uint64_t kCodeAt = 0x10000;
constexpr uint64_t kWordsAt = uint64_t{2} << 20;
constexpr uint64_t kLargePageBytes = uint64_t{2} << 20;
constexpr uint64_t kMostBytes = uint64_t{1} << 30;        // one page directory
constexpr uint64_t kStepBytes = 4096 + sizeof(uint64_t);  // to another place in the next page
constexpr uint64_t kFirstFactor = 0x9e3779b97f4a7c15U;

// Maps the first GiB of the guest to itself.
void make_page_tables(unsigned char* memory) {
  constexpr uint64_t kPresentWritable = 3;
  constexpr uint64_t kLarge = 1 << 7;
  auto* tables = reinterpret_cast<uint64_t*>(memory + kTablesAt);
  constexpr uint64_t kEntries = 512;
  tables[0] = (kTablesAt + 0x1000) | kPresentWritable;
  tables[kEntries] = (kTablesAt + 0x2000) | kPresentWritable;
  for (uint64_t i = 0; i < kEntries; ++i)
    tables[2 * kEntries + i] = (i * kLargePageBytes) | kPresentWritable | kLarge;
}

void enter_64_bit_mode(int cpu) {
  kvm_sregs special{};
  REQUIRE(::ioctl(cpu, KVM_GET_SREGS, &special) == 0);
  kvm_segment code{};
  code.limit = 0xffffffff;
  code.selector = 8;
  code.type = 11;  // execute, read, accessed
  code.present = 1;
  code.s = 1;
  code.l = 1;
  code.g = 1;
  kvm_segment data = code;
  data.selector = 16;
  data.type = 3;  // read, write, accessed
  data.l = 0;
  data.db = 1;
  special.cs = code;
  special.ds = special.es = special.fs = special.gs = special.ss = data;
  special.cr3 = kTablesAt;
  special.cr4 = 1 << 5;                   // PAE
  special.cr0 = 0x80000000 | 0x10 | 0x1;  // paging, ET, protection
  special.efer = 0x400 | 0x100;           // LMA, LME
  REQUIRE(::ioctl(cpu, KVM_SET_SREGS, &special) == 0);
}

kvm_regs run(int cpu, const kvm_run& shared, kvm_regs registers) {
  REQUIRE(::ioctl(cpu, KVM_SET_REGS, &registers) == 0);
  while (::ioctl(cpu, KVM_RUN, 0) != 0) REQUIRE(errno == EINTR || errno == EAGAIN);
  REQUIRE(shared.exit_reason == KVM_EXIT_HLT);
  REQUIRE(::ioctl(cpu, KVM_GET_REGS, &registers) == 0);
  return registers;
}

uint64_t wrong_words(const unsigned char* memory, uint64_t pages, uint64_t passes) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, memory + kWordsAt + i * kStepBytes, sizeof word);
    if (word != (i + 1) * (kFirstFactor + 2 * passes)) ++wrong;
  }
  return wrong;
}

// Hands the mapping over; returns the connection, which stays open.
int hand_over(const char* path, unsigned char* memory, uint64_t bytes, int memfd) {
  REQUIRE(::madvise(memory, bytes, MADV_DONTFORK) == 0);
  const int faults = static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
  REQUIRE(faults >= 0);
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM |
                 UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
  REQUIRE(::ioctl(faults, UFFDIO_API, &api) == 0);
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(memory), bytes};
  request.mode =
      UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP;
  REQUIRE(::ioctl(faults, UFFDIO_REGISTER, &request) == 0);
  const int connection = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(std::strlen(path) < sizeof address.sun_path);
  std::strcpy(address.sun_path, path);
  REQUIRE(::connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  char text[256];
  const int length = std::snprintf(
      text, sizeof text, "[{\"base_host_virt_addr\": %llu, \"size\": %llu, \"offset\": 0}]\n",
      static_cast<unsigned long long>(request.range.start), static_cast<unsigned long long>(bytes));
  iovec vector{text, static_cast<size_t>(length)};
  const int descriptors[2] = {faults, memfd};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof descriptors);
  std::memcpy(CMSG_DATA(header), descriptors, sizeof descriptors);
  REQUIRE(::sendmsg(connection, &message, 0) == length);
  char answer[512] = {};
  REQUIRE(::recv(connection, answer, sizeof answer - 1, 0) > 0);
  if (std::strstr(answer, "accepted") == nullptr) std::fprintf(stderr, "%s", answer);
  REQUIRE(std::strstr(answer, "accepted") != nullptr);
  return connection;
}

unsigned char* map_shared(int memfd, uint64_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
  REQUIRE(mapped != MAP_FAILED);
  return static_cast<unsigned char*>(mapped);
}

// The other process: waits for the end of the guest, and checks what it has written.
int be_device(const char* path, int memfd, uint64_t bytes, int guest_over, uint64_t pages,
              uint64_t passes) {
  unsigned char* memory = map_shared(memfd, bytes);
  (void)hand_over(path, memory, bytes, memfd);
  char over = 0;
  REQUIRE(::read(guest_over, &over, 1) == 1);
  return wrong_words(memory, pages, passes) == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  REQUIRE(count == 3 || count == 4);
  const uint64_t pages = std::strtoull(arguments[1], nullptr, 10);
  const uint64_t passes = std::strtoull(arguments[2], nullptr, 10);
  const uint64_t bytes = (kWordsAt + pages * kStepBytes + 4095) / 4096 * 4096;
  REQUIRE(pages > 0 && passes > 0 && bytes <= kMostBytes);

  const int kvm = ::open("/dev/kvm", O_RDWR | O_CLOEXEC);
  REQUIRE(kvm >= 0);
  const int machine = ::ioctl(kvm, KVM_CREATE_VM, 0);
  REQUIRE(machine >= 0);
  unsigned char* memory = nullptr;
  int guest_over[2] = {-1, -1};
  pid_t device = 0;
  if (count == 4) {
    const int memfd = ::memfd_create("guest", MFD_CLOEXEC);
    REQUIRE(memfd >= 0 && ::ftruncate(memfd, static_cast<off_t>(bytes)) == 0);
    REQUIRE(::pipe(guest_over) == 0);
    device = ::fork();
    REQUIRE(device >= 0);
    if (device == 0) return be_device(arguments[3], memfd, bytes, guest_over[0], pages, passes);
    memory = map_shared(memfd, bytes);
    (void)hand_over(arguments[3], memory, bytes, memfd);
  } else {
    void* mapped =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(mapped != MAP_FAILED);
    memory = static_cast<unsigned char*>(mapped);
  }
  make_page_tables(memory);
  std::memcpy(memory + kCodeAt, guest_code, static_cast<size_t>(guest_code_end - guest_code));

  kvm_userspace_memory_region region{};
  region.memory_size = bytes;
  region.userspace_addr = reinterpret_cast<uint64_t>(memory);
  REQUIRE(::ioctl(machine, KVM_SET_USER_MEMORY_REGION, &region) == 0);
  const int cpu = ::ioctl(machine, KVM_CREATE_VCPU, 0);
  REQUIRE(cpu >= 0);
  const int shared_bytes = ::ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
  REQUIRE(shared_bytes > 0);
  void* shared = ::mmap(nullptr, static_cast<size_t>(shared_bytes), PROT_READ | PROT_WRITE,
                        MAP_SHARED, cpu, 0);
  REQUIRE(shared != MAP_FAILED);
  enter_64_bit_mode(cpu);

  kvm_regs registers{};
  registers.rip = kCodeAt;
  registers.rflags = 2;
  registers.rdi = kWordsAt;
  registers.rbx = kStepBytes;
  registers.rsi = pages;
  registers.rdx = kFirstFactor;
  registers.rcx = passes;
  registers = run(cpu, *static_cast<const kvm_run*>(shared), registers);

  const uint64_t wrong = wrong_words(memory, pages, passes);
  if (device != 0) {
    REQUIRE(::write(guest_over[1], "", 1) == 1);
    int of_device = -1;
    REQUIRE(::waitpid(device, &of_device, 0) == device && of_device == 0);
  }
  std::printf("kvm_guest: %llu pages, wrong words: guest %llu, monitor %llu\n",
              static_cast<unsigned long long>(pages), static_cast<unsigned long long>(registers.r9),
              static_cast<unsigned long long>(wrong));
  return 0;
}
