// A minimal memory node: lends 1 MiB of 0xAB bytes over verbs and answers lines on a
// socket, its standard input or one TCP connection at a time.
//
//   memory_node [--listen PORT] [--mtu BYTES] [--gid INDEX] [--max-peers N] [--check-ms N]
//
//   expose [GROUP]  -> ok ADDRESS RKEY BYTES, for the borrower of that session group
//   withdraw RKEY   -> ok
//   accept ENDPOINT -> ok ENDPOINT | error TEXT
//   peers           -> ok COUNT
//   byte OFFSET     -> ok VALUE
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "base/fd.h"
#include "base/mapping.h"
#include "rdma/verbs/verbs.h"
#include "tests/lab/verbs/wire_text.h"

namespace farpage::lab {
namespace {

constexpr size_t kLentBytes = 1 << 20;

std::string answer(const std::string& line, rdma::MemoryHost& host, std::span<std::byte> memory) {
  std::istringstream words(line);
  std::ostringstream reply;
  std::string verb;
  words >> verb;
  if (verb == "expose") {
    rdma::SessionGroup borrower = 0;
    words >> borrower;
    auto key = host.expose({.bytes = memory, .memfd = -1}, Generation{1}, borrower);
    if (!key) return "error " + key.error().message();
    reply << "ok " << reinterpret_cast<uintptr_t>(memory.data()) << ' ' << key->value << ' '
          << memory.size();
    return reply.str();
  }
  if (verb == "withdraw") {
    uint32_t key = 0;
    words >> key;
    host.withdraw(RemoteKey{key});
    return "ok";
  }
  if (verb == "accept") {
    rdma::QueuePairEndpoint peer;
    if (!read_endpoint(words, peer)) return "error unreadable endpoint";
    auto ours = host.accept(peer);
    return ours ? "ok " + to_text(*ours) : "error " + ours.error().message();
  }
  if (verb == "peers") return "ok " + std::to_string(host.counters().peers);
  if (verb == "byte") {
    size_t offset = 0;
    words >> offset;
    return "ok " + std::to_string(std::to_integer<int>(memory[offset]));
  }
  return "error unknown word " + verb;
}

// Answers until the peer closes.
void serve(int fd, rdma::MemoryHost& host, std::span<std::byte> memory) {
  FILE* stream = fdopen(dup(fd), "r+");
  char line[1024];
  while (stream != nullptr && std::fgets(line, sizeof line, stream) != nullptr) {
    std::fprintf(stream, "%s\n", answer(line, host, memory).c_str());
    std::fflush(stream);
  }
  if (stream != nullptr) std::fclose(stream);
}

int serve_tcp(uint16_t port, rdma::MemoryHost& host, std::span<std::byte> memory) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), 4) != 0) {
    std::perror("memory_node: listen");
    return 1;
  }
  std::printf("listening\n");
  std::fflush(stdout);
  while (true) {
    const Fd connection(accept(listener.get(), nullptr, nullptr));
    if (connection.valid()) serve(connection.get(), host, memory);
  }
}

int run(int argc, char** argv) {
  rdma::VerbsHostOptions options;
  uint16_t listen_port = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    const auto value = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (name == "--listen") listen_port = static_cast<uint16_t>(value);
    if (name == "--mtu") options.mtu_bytes = value;
    if (name == "--gid") options.gid_index = static_cast<int>(value);
    if (name == "--max-peers") options.max_peers = value;
    if (name == "--check-ms") options.peer_check_interval = Milliseconds(value);
  }
  auto memory = Mapping::anonymous(kLentBytes, /*prefault=*/true);
  auto host = rdma::make_verbs_memory_host(options);
  if (!memory || !host) {
    std::fprintf(stderr, "memory_node: %s\n",
                 (memory ? host.error() : memory.error()).message().c_str());
    return 1;
  }
  std::memset(memory->data(), 0xAB, memory->size());
  if (listen_port != 0) return serve_tcp(listen_port, **host, memory->bytes());
  serve(STDIN_FILENO, **host, memory->bytes());
  return 0;
}

}  // namespace
}  // namespace farpage::lab

int main(int argc, char** argv) {
  return farpage::lab::run(argc, argv);
}
