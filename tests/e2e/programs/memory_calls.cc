// The target of memory_calls_test.py: `memory_calls NAME` runs one scenario; status 0 when all
// bytes were right.
#include <cstring>

#include "far_memory.h"

int main(int count, char** arguments) {
  using namespace farpage::test;
  const char* name = count > 1 ? arguments[1] : "";
  for (const auto* scenarios :
       {&kExtentScenarios, &kMappingScenarios, &kAdviceScenarios, &kKernelScenarios}) {
    for (const Scenario& scenario : *scenarios) {
      if (strcmp(scenario.name, name) != 0) continue;
      scenario.run();
      return 0;
    }
  }
  fprintf(stderr, "no scenario '%s'\n", name);
  return 2;
}
