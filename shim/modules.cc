// dlopen and dlmopen without RTLD_DEEPBIND.
//
// A module opened with that flag looks up a symbol in its own libraries before the program's. It
// then calls libc's malloc while the program calls the preloaded one, and a block allocated by one
// and freed by the other aborts the process. The shim removes the flag in every process that loads
// it, also without FARPAGE_HANDOVER and in forked children: the preloaded malloc is there too.
//
// The dynamic linker identifies the caller by the return address: RUNPATH, $ORIGIN and the
// namespace of the new module are the caller's. A wrapper in C++ would itself be the caller, unless
// the compiler makes a sibling call. So both functions jump to the real one with the stack and the
// other arguments unchanged. x86-64 only, like `farpage run`.
#if defined(__x86_64__)

#include <dlfcn.h>

#include "shim/next.h"

namespace farpage::shim {
namespace {

using Open = void*(const char*, int);
using OpenInNamespace = void*(Lmid_t, const char*, int);

constinit Next<Open> next_dlopen("dlopen");
constinit Next<OpenInNamespace> next_dlmopen("dlmopen");

static_assert(RTLD_DEEPBIND == 8, "the assembly below clears this bit");

}  // namespace

// For the assembly below only.
extern "C" __attribute__((visibility("hidden"), used)) void* farpage_real_dlopen() {
  return reinterpret_cast<void*>(next_dlopen.get());
}
extern "C" __attribute__((visibility("hidden"), used)) void* farpage_real_dlmopen() {
  return reinterpret_cast<void*>(next_dlmopen.get());
}

}  // namespace farpage::shim

// The lookup preserves all three argument registers. The mode is the second argument of dlopen and
// the third of dlmopen.
#define FARPAGE_JUMP_WITHOUT_DEEPBIND(name, real, mode) \
  asm(".text\n"                                         \
      ".globl " name                                    \
      "\n"                                              \
      ".type " name                                     \
      ", @function\n"                                   \
      ".p2align 4\n" name                               \
      ":\n"                                             \
      ".cfi_startproc\n"                                \
      "  endbr64\n"                                     \
      "  pushq %rdi\n"                                  \
      ".cfi_adjust_cfa_offset 8\n"                      \
      "  pushq %rsi\n"                                  \
      ".cfi_adjust_cfa_offset 8\n"                      \
      "  pushq %rdx\n" /* aligned to 16 bytes now */    \
      ".cfi_adjust_cfa_offset 8\n"                      \
      "  call " real                                    \
      "\n"                                              \
      "  popq %rdx\n"                                   \
      ".cfi_adjust_cfa_offset -8\n"                     \
      "  popq %rsi\n"                                   \
      ".cfi_adjust_cfa_offset -8\n"                     \
      "  popq %rdi\n"                                   \
      ".cfi_adjust_cfa_offset -8\n"                     \
      "  andl $~8, " mode                               \
      "\n"                                              \
      "  jmp *%rax\n"                                   \
      ".cfi_endproc\n"                                  \
      ".size " name ", . - " name "\n")

FARPAGE_JUMP_WITHOUT_DEEPBIND("dlopen", "farpage_real_dlopen", "%esi");
FARPAGE_JUMP_WITHOUT_DEEPBIND("dlmopen", "farpage_real_dlmopen", "%edx");

#endif
