// SPDX-License-Identifier: Apache-2.0
#include "sim/cuda/mps.h"

#include <poll.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>

#include "base/units.h"
#include "os/unix_socket.h"

namespace gpumux::sim {
namespace {

// A control daemon that does not answer is stopped; a busy machine delays it by less.
constexpr base::Duration kPatience{20'000'000'000};

std::string variable_or(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && value[0] != '\0' ? value : otherwise;
}

// The number after `word` and a space.
std::optional<std::uint64_t> number_after(std::string_view message, std::string_view word) {
  if (message.substr(0, word.size()) != word) return std::nullopt;
  message.remove_prefix(word.size());
  const auto number = base::parse_integer(message, 0, UINT64_MAX);
  return number ? std::optional(*number) : std::nullopt;
}

}  // namespace

std::string mps_pipe_directory() { return variable_or("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"); }
std::string mps_log_directory() { return variable_or("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"); }
std::string mps_socket(const std::string& pipe_directory) { return pipe_directory + "/control"; }

base::Status send_mps(int socket, std::string_view message) {
  return os::send_message(socket, std::as_bytes(std::span(message)));
}

std::string receive_mps(int socket, base::Duration patience) {
  pollfd ready{socket, POLLIN, 0};
  const int timeout = patience.count() < 0 ? -1 : static_cast<int>(patience.count() / 1'000'000);
  int found = 0;
  do {
    found = ::poll(&ready, 1, timeout);
  } while (found < 0 && errno == EINTR);
  if (found <= 0) return {};
  std::array<char, kMaxMpsMessage> buffer;
  const auto received = os::receive_message(socket, std::as_writable_bytes(std::span(buffer)));
  return received ? std::string(buffer.data(), received->bytes) : std::string();
}

cuda::CUresult join_mps(Machine& machine) {
  const auto connection = os::connect_seqpacket(mps_socket(mps_pipe_directory()));
  if (!connection) {
    // A full queue has a daemon behind it. Everything else is a directory that no daemon serves for us.
    return connection.error().system_errno == EAGAIN ? cuda::CUDA_ERROR_MPS_CONNECTION_FAILED : cuda::CUDA_SUCCESS;
  }
  if (!send_mps(connection->get(), "client " + std::to_string(machine.id())))
    return cuda::CUDA_ERROR_MPS_CONNECTION_FAILED;
  const std::string answer = receive_mps(connection->get(), kPatience);
  if (answer == "none") return cuda::CUDA_SUCCESS;
  if (const auto error = number_after(answer, "error ")) return static_cast<cuda::CUresult>(*error);
  const auto server = number_after(answer, "server ");
  if (!server) return cuda::CUDA_ERROR_MPS_CONNECTION_FAILED;
  machine.become_client(*server);
  return cuda::CUDA_SUCCESS;
}

}  // namespace gpumux::sim
