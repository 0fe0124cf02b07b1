// dlopen and dlmopen without RTLD_DEEPBIND.
//
// A module that is opened with that flag looks a symbol up in its own libraries before the
// program's. It then calls libc's malloc, while the program calls the preloaded one, and a block
// that goes from one to the other ends the process. The flag is taken away in every process that
// has the shim, also without FARPAGE_HANDOVER and in forked children: the preloaded malloc is there
// too.
//
// The dynamic linker takes the caller from the return address: RUNPATH, $ORIGIN and the namespace
// of the new module are the caller's. A wrapper in C++ would be the caller itself, unless the
// compiler happens to make a sibling call of it. So both functions jump to the real one, with the
// stack and the arguments as they came. On x86-64 only, as `farpage run` is.
#if defined(__x86_64__)

#include <dlfcn.h>

#include "pager/preload/next.h"

namespace farpage::preload {
namespace {

using Open = void*(const char*, int);
using OpenInNamespace = void*(Lmid_t, const char*, int);

constinit Next<Open> next_dlopen("dlopen");
constinit Next<OpenInNamespace> next_dlmopen("dlmopen");

static_assert(RTLD_DEEPBIND == 8, "the assembly below clears this bit");

}  // namespace

// For the assembly below alone.
extern "C" __attribute__((visibility("hidden"), used)) void* farpage_real_dlopen() {
  return reinterpret_cast<void*>(next_dlopen.get());
}
extern "C" __attribute__((visibility("hidden"), used)) void* farpage_real_dlmopen() {
  return reinterpret_cast<void*>(next_dlmopen.get());
}

}  // namespace farpage::preload

// All three argument registers are kept over the look-up. The mode is the second argument of dlopen
// and the third of dlmopen.
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
