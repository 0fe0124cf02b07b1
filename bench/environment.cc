#include "bench/environment.h"

#include <sys/utsname.h>

#include <array>
#include <ctime>
#include <fstream>
#include <iterator>

#include "base/host.h"
#include "bench/touch.h"

namespace farpage::bench {
namespace {

std::string processor_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

std::string load_averages() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  std::string five;
  std::string fifteen;
  file >> one >> five >> fifteen;
  return one + " " + five + " " + fifteen;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text)
    if (c == '\0') c = ' ';
  return text;
}

}  // namespace

Environment observe_environment() {
  Environment environment;
  environment.host = host_name();
  environment.processor = processor_model();
  environment.cpus = usable_cpu_count();
  utsname system{};
  if (::uname(&system) == 0) environment.kernel = system.release;
  environment.load = load_averages();
  environment.date = utc_now();
  environment.command = command_line();
  return environment;
}

}  // namespace farpage::bench
