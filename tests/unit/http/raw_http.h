// A bare HTTP exchange over a socket, so that tests can send what no client library would.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "base/fd.h"

namespace farpage::coordinator {

inline size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

inline size_t sockets_of_this_process() {
  size_t count = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (std::filesystem::read_symlink(entry, ignored).string().starts_with("socket:")) ++count;
  return count;
}

struct RawAnswer {
  int status = 0;  // 0: no HTTP answer came
  std::string head;
  std::string body;

  bool is_problem() const { return head.find("application/problem+json") != std::string::npos; }
};

// A server that refuses early may close before everything is sent; its answer still counts.
inline void raw_send_more(const Fd& socket, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
}

// Connects to 127.0.0.1:port and sends `bytes`. Invalid: nothing listens there.
inline Fd raw_send(uint16_t port, const std::string& bytes) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    return Fd();
  raw_send_more(socket, bytes);
  return socket;
}

// Reads until the server closes.
inline RawAnswer raw_receive(const Fd& socket) {
  std::string text;
  char buffer[16384];
  while (true) {
    const ssize_t n = ::recv(socket.get(), buffer, sizeof(buffer), 0);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  RawAnswer answer;
  const size_t end = text.find("\r\n\r\n");
  if (text.rfind("HTTP/1.1 ", 0) != 0 || end == std::string::npos) return answer;
  answer.status = std::stoi(text.substr(9, 3));
  answer.head = text.substr(0, end);
  answer.body = text.substr(end + 4);
  return answer;
}

inline RawAnswer raw_exchange(uint16_t port, const std::string& bytes) {
  return raw_receive(raw_send(port, bytes));
}

inline RawAnswer raw_request(uint16_t port, const std::string& method, const std::string& target,
                             const std::string& body = "", const std::string& headers = "") {
  std::string bytes =
      method + " " + target + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n" + headers;
  if (!body.empty() && headers.find("Content-Type") == std::string::npos)
    bytes += "Content-Type: application/json\r\n";
  if (!body.empty() && headers.find("Content-Length") == std::string::npos)
    bytes += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  return raw_exchange(port, bytes + "\r\n" + body);
}

}  // namespace farpage::coordinator
