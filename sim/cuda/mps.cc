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

// A server's word for a GPU.
std::atomic<std::uint64_t>& fault_word(Machine& machine, std::uint64_t server, std::uint32_t gpu) {
  return machine.state().slots[(server & 0xffff) - 1].gpu[gpu].fault;
}

// SlotGpu::fault, taken apart.
struct Fault {
  Fault(std::uint64_t word, std::uint64_t server) {
    if (word >> 48 != generation(server)) return;  // of a process that had the slot before
    number = word >> 32 & 0xffff;
    error = static_cast<std::uint32_t>(word);
  }
  static std::uint64_t generation(std::uint64_t server) { return server >> 16 & 0xffff; }
  std::uint64_t word(std::uint64_t server) const { return generation(server) << 48 | number << 32 | error; }

  std::uint64_t number = 0;
  std::uint32_t error = 0;
};

// The first fault counts.
void set_fault(Machine& machine, std::uint64_t server, std::uint32_t gpu, cuda::CUresult error) {
  auto& place = fault_word(machine, server, gpu);
  std::uint64_t word = place.load();
  for (Fault fault(word, server); fault.error == 0; fault = Fault(word, server)) {
    fault.error = static_cast<std::uint32_t>(error);
    if (place.compare_exchange_strong(word, fault.word(server))) return;
  }
}

// Bit n: the process has a context on GPU n.
std::uint32_t gpus_of(Machine& machine, std::uint32_t slot) {
  std::uint32_t gpus = 0;
  for (std::uint32_t gpu = 0; gpu < kMaxGpus; ++gpu) {
    if (machine.state().slots[slot].gpu[gpu].contexts.load() != 0) gpus |= 1u << gpu;
  }
  return gpus;
}

}  // namespace

std::string mps_pipe_directory() { return variable_or("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"); }
std::string mps_log_directory() { return variable_or("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"); }
std::string mps_socket(const std::string& pipe_directory) { return pipe_directory + "/control"; }

double mps_speed_limit() {
  const std::string text = variable_or("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100");
  char* end = nullptr;
  const double percent = std::strtod(text.c_str(), &end);
  return *end == '\0' && percent > 0 && percent <= 100 ? percent / 100 : 1;
}

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

cuda::CUresult mps_error(Machine& machine, std::uint32_t gpu) {
  const std::uint64_t server = machine.own().server.load();
  if (server == 0) return cuda::CUDA_SUCCESS;
  if (!machine.lives(server)) return cuda::CUDA_ERROR_MPS_RPC_FAILURE;
  return static_cast<cuda::CUresult>(Fault(fault_word(machine, server, gpu).load(), server).error);
}

void spread_fault(Machine& machine, std::uint32_t gpu, cuda::CUresult error) {
  const std::uint64_t server = machine.own().server.load();
  const std::vector<std::uint32_t> clients = machine.clients(server);
  std::uint32_t reached = 1u << gpu;
  for (std::uint32_t before = 0; before != reached;) {
    before = reached;
    for (const std::uint32_t client : clients) {
      const std::uint32_t gpus = gpus_of(machine, client);
      if ((gpus & reached) != 0) reached |= gpus;
    }
  }
  for (std::uint32_t each = 0; each < kMaxGpus; ++each) {
    if (each != gpu && (reached >> each & 1) != 0) set_fault(machine, server, each, error);
  }
  set_fault(machine, server, gpu, error);
}

bool is_in_fault(Machine& machine, std::uint64_t server) {
  std::uint32_t used = 0;
  for (const std::uint32_t client : machine.clients(server)) used |= gpus_of(machine, client);
  bool waits = false;
  for (std::uint32_t gpu = 0; gpu < kMaxGpus; ++gpu) {
    auto& place = fault_word(machine, server, gpu);
    std::uint64_t word = place.load();
    Fault fault(word, server);
    if (fault.error == 0) continue;
    if ((used >> gpu & 1) != 0) {
      waits = true;
      continue;
    }
    fault.error = 0;
    ++fault.number;
    place.compare_exchange_strong(word, fault.word(server));
  }
  return waits;
}

}  // namespace gpumux::sim
