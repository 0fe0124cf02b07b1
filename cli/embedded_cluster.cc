#include "cli/embedded_cluster.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/node_settings.h"
#include "rdma/shm/seqpacket.h"

namespace farpage::cli {
namespace {

constexpr Milliseconds kReadyPatience{30000};

// Returns the JSON line that a process prints when it is ready.
Result<nlohmann::json> wait_until_ready(Child& child, const std::string& what) {
  Result<std::string> line = child.read_line(kReadyPatience);
  if (!line) return fail_with("starting the embedded " + what, line.error());
  const nlohmann::json ready = nlohmann::json::parse(*line, nullptr, false);
  if (!ready.is_object() || ready.value("event", "") != "ready")
    return fail(ErrorCode::kUnavailable, "the embedded " + what + " said: " + *line);
  return ready;
}

Result<Child> start_self(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "/proc/self/exe");
  return Child::start({.arguments = std::move(arguments),
                       .name = "farpage",
                       .environment = {{"FARPAGE_LOG_LEVEL", "warning"}},
                       .capture_output = true,
                       // The program may survive a Ctrl-C and then still needs its memory.
                       .own_process_group = true});
}

constexpr std::string_view kNodeName = "local-";

std::string node_name(uint32_t number) {
  return fmt::format("{}{}-{}", kNodeName, ::getpid(), number);
}

// Nobody listens there any more.
bool is_deserted(const std::string& path) {
  const Result<Fd> socket = rdma::shm::connect_at(path);
  return !socket && socket.error().sys_errno == ECONNREFUSED;
}

// Of nodes whose `farpage run` was killed together with them. A process of another PID namespace
// looks as if it had ended, and a socket that is being made as if nobody listened.
void remove_sockets_left_behind() {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(node_directory(), error), end;
       !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kNodeName) || !name.ends_with(".sock")) continue;
    pid_t pid = 0;
    const char* digits = name.data() + kNodeName.size();
    const auto parsed = std::from_chars(digits, name.data() + name.size(), pid);
    const bool named_so = parsed.ec == std::errc() && *parsed.ptr == '-' && pid > 0;
    if (!named_so || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    if (is_deserted(entry->path())) (void)::unlink(entry->path().c_str());
  }
}

}  // namespace

Result<EmbeddedCluster> EmbeddedCluster::start(const EmbeddedClusterOptions& options) {
  remove_sockets_left_behind();
  FARPAGE_TRY(coordinator, start_self({"coordinator", "--listen", "127.0.0.1:0", "--store",
                                       "memory", "--output", "json"}));
  FARPAGE_TRY(ready, wait_until_ready(coordinator, "coordinator"));
  EmbeddedCluster cluster(std::move(coordinator), ready.value("url", ""));
  for (uint32_t i = 0; i < options.nodes; ++i) {
    std::vector<std::string> words = {
        "node", "--coordinator", cluster.url_, "--name",
        // Also the name of its shm socket; several clusters may run on one host.
        node_name(i + 1), "--lend", std::to_string(options.lend_bytes), "--slab",
        std::to_string(options.slab_bytes), "--transports", options.transports, "--lazy",
        "--leave-timeout", "1s", "--output", "json"};
    words.insert(words.end(), options.device_words.begin(), options.device_words.end());
    FARPAGE_TRY(node, start_self(std::move(words)));
    cluster.nodes_.push_back(std::move(node));
  }
  for (Child& node : cluster.nodes_) FARPAGE_TRY_VOID(wait_until_ready(node, "memory node"));
  return cluster;
}

}  // namespace farpage::cli
