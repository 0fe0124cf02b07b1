// Prints the frequency of this CPU's time-stamp counter in kHz.
//
// The emulated CPU passes the host's counter through, but the small machine type has no timer to
// calibrate it against, and a calibration on a busy host is wrong: so the guest is given the value.
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

enum { kTries = 200 };

struct reading {
  uint64_t ticks;
  int64_t nanoseconds;
};

// The clock read between two counter reads: of many attempts the one with the least time between
// them, so that an interrupt in between does not count.
static struct reading read_both(void) {
  struct reading best = {0, 0};
  uint64_t narrowest = UINT64_MAX;
  for (int i = 0; i < kTries; i++) {
    unsigned cpu;
    struct timespec now;
    uint64_t before = __rdtscp(&cpu);
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    uint64_t after = __rdtscp(&cpu);
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    best.ticks = before + narrowest / 2;
    best.nanoseconds = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
  }
  return best;
}

int main(void) {
  struct reading first = read_both();
  struct timespec pause = {.tv_sec = 0, .tv_nsec = 200000000};
  nanosleep(&pause, NULL);
  struct reading last = read_both();
  double khz =
      (double)(last.ticks - first.ticks) * 1e6 / (double)(last.nanoseconds - first.nanoseconds);
  printf("%.0f\n", khz);
  return 0;
}
