#include "defects.h"

namespace farpage::simulation {
namespace {

uint64_t the_defect = 0;

}  // namespace

void plant(uint64_t defect) {
  the_defect = defect;
}

bool planted(uint64_t defect) {
  return the_defect == defect;
}

}  // namespace farpage::simulation
