#include "inject/target_checks.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/size.h"
#include "inject/pidfd_thread.h"
#include "uffd/handover.h"

namespace farpage::inject {
namespace {

namespace handover = uffd::handover;

std::string thread_status(pid_t thread) {
  return fmt::format("task/{}/status", thread);
}

Status check_state(const ProcessFiles& process) {
  const std::string state = process.status_field("status", "State").value_or("X");
  switch (state[0]) {
    case 'Z':
      return fail(ErrorCode::kConflict,
                  process.described() + ": its main thread has ended, choose another process");
    case 'X':
      return fail(ErrorCode::kNotFound, fmt::format("process {} has ended", process.pid()));
    case 'T':
      return fail(ErrorCode::kConflict, fmt::format("{} is stopped: continue it (kill -CONT {})",
                                                    process.described(), process.pid()));
    default:
      return {};
  }
}

Status check_access(const ProcessFiles& process) {
  const Result<Fd> memory = process.open_file("mem", O_RDWR);
  if (memory) return {};
  if (memory.error().code != ErrorCode::kDenied) return tl::unexpected(memory.error());
  return fail(ErrorCode::kDenied,
              fmt::format("{} belongs to another user, or may not be traced: run as root",
                          process.described()));
}

Status check_program(const ProcessFiles& process) {
  FARPAGE_TRY(program, process.open_file("exe", O_RDONLY));
  std::array<unsigned char, EI_NIDENT> identity{};
  if (::pread(program.get(), identity.data(), identity.size(), 0) !=
          static_cast<ssize_t>(identity.size()) ||
      identity[EI_CLASS] != ELFCLASS64)
    return fail(ErrorCode::kInvalid,
                process.described() + " is no 64-bit program: only those can have far memory");
  return {};
}

Status check_far_memory(const ProcessFiles& process) {
  FARPAGE_TRY(threads, process.threads());
  for (const pid_t thread : threads) {
    const Result<std::string> name = process.read(fmt::format("task/{}/comm", thread));
    // One of an attachment before, that has ended and is not gone yet.
    const char state = process.status_field(thread_status(thread), "State").value_or("X")[0];
    if (state == 'X' || state == 'Z') continue;
    if (name && *name == std::string(handover::kAgentName) + "\n")
      return fail(ErrorCode::kConflict,
                  fmt::format("{} has far memory already (thread {} is {}): end that one first",
                              process.described(), thread, handover::kAgentName));
  }
  FARPAGE_TRY(environment, process.read("environ"));
  environment.insert(0, 1, '\0');
  const std::string variable = std::string(1, '\0') + handover::kSocketVariable + "=";
  if (environment.find(variable) != std::string::npos)
    return fail(ErrorCode::kConflict,
                fmt::format("{} was started by farpage run, and has far memory already",
                            process.described()));
  return {};
}

}  // namespace

Status check_kernel() {
  const Fd thread(
      static_cast<int>(::syscall(SYS_pidfd_open, ::gettid(), static_cast<int>(kPidfdThread))));
  if (thread.valid()) return {};
  utsname kernel{};
  ::uname(&kernel);
  return fail(ErrorCode::kUnsupported,
              fmt::format("Linux {} cannot hold a thread by a descriptor (PIDFD_THREAD): run Linux "
                          "6.9 or newer",
                          static_cast<const char*>(kernel.release)));
}

Status check_target(const ProcessFiles& process, bool allow_seccomp) {
  if (process.pid() == ::getpid())
    return fail(ErrorCode::kInvalid,
                "this is the process of the injector itself: name another one");
  FARPAGE_TRY_VOID(check_state(process));
  // The kernel's own threads have no program.
  std::array<char, 1> link{};
  FARPAGE_TRY(directory, process.open_file(".", O_PATH));
  const bool has_program = ::readlinkat(directory.get(), "exe", link.data(), link.size()) >= 0;
  const int sys_errno = errno;
  if (!has_program && sys_errno == ENOENT)
    return process.alive()
               ? fail(ErrorCode::kInvalid,
                      fmt::format("{} is a thread of the kernel: name a program's process",
                                  process.described()))
               : fail(ErrorCode::kNotFound, fmt::format("process {} has ended", process.pid()));
  FARPAGE_TRY_VOID(check_tracer(process, process.pid()));
  FARPAGE_TRY_VOID(check_access(process));
  FARPAGE_TRY_VOID(check_program(process));
  FARPAGE_TRY_VOID(check_far_memory(process));
  if (!allow_seccomp && has_seccomp(process))
    return fail(ErrorCode::kConflict,
                fmt::format("{} restricts its system calls (seccomp), and the death of the pager "
                            "may kill it: allow that with --allow-seccomp, or leave it alone",
                            process.described()));
  return {};
}

Status check_locked_memory(const ProcessFiles& process, uint64_t most_bytes) {
  uint64_t locked_bytes = 0;
  for (const char* field : {"VmLck", "VmPin"}) {  // "12 kB"
    const std::string kibibytes = process.status_field("status", field).value_or("0");
    locked_bytes += uint64_t{std::strtoull(kibibytes.c_str(), nullptr, 10)} << 10;
  }
  if (locked_bytes <= most_bytes) return {};
  return fail(
      ErrorCode::kConflict,
      fmt::format("{} has locked {} of its memory (mlock), which stays local: at most {} may "
                  "be with this --local, so raise it, or have the program unlock memory",
                  process.described(), format_size(locked_bytes), format_size(most_bytes)));
}

Status check_tracer(const ProcessFiles& process, pid_t thread) {
  const std::string tracer = process.status_field(thread_status(thread), "TracerPid").value_or("0");
  const auto pid = static_cast<pid_t>(std::strtol(tracer.c_str(), nullptr, 10));
  if (pid == 0) return {};
  return fail(ErrorCode::kConflict,
              fmt::format("{} is traced by process {} ({}): detach that one first",
                          process.described(), pid, process_name(pid)));
}

bool has_seccomp(const ProcessFiles& process) {
  const Result<std::vector<pid_t>> threads = process.threads();
  return threads && std::ranges::any_of(*threads, [&](pid_t thread) {
           return process.status_field(thread_status(thread), "Seccomp").value_or("0") != "0";
         });
}

}  // namespace farpage::inject
