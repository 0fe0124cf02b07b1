#include "cli/program.h"

int main(int argument_count, char** arguments) {
  return farpage::cli::run_program(
      {arguments + (argument_count > 0 ? 1 : 0), arguments + argument_count});
}
