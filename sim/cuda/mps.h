// SPDX-License-Identifier: Apache-2.0
// MPS: how a process becomes a client, and the knowledge of clients and control daemon about a server.
//
// A control daemon listens at the socket `control` of its pipe directory, and answers each message with one message:
//
//   client MACHINE   this process wants to be a client: `server IDENTITY`, `error CODE`, or `none` (another machine)
//   anything else    a command of nvidia-cuda-mps-control: what it prints
//
// A client keeps the connection until its slot names the server. From then on the machine's state says all: the slots
// that name a server are its clients.
//
// A fault breaks the contexts of all clients on a GPU, and on each GPU that one of these clients uses, too. Until the
// clients that had contexts there have exited, the server accepts no client.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cuda/abi.h"
#include "os/file_descriptor.h"
#include "sim/cuda/machine.h"

namespace gpumux::sim {

// CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY, or what the real driver takes without them.
std::string mps_pipe_directory();
std::string mps_log_directory();
std::string mps_socket(const std::string& pipe_directory);
// CUDA_MPS_ACTIVE_THREAD_PERCENTAGE: the part of a GPU's speed that all kernels of a client may have together. 1, all
// of it, if the variable is not set or is no percentage.
double mps_speed_limit();

// The longest message: the list of as many clients as a machine has processes.
inline constexpr std::size_t kMaxMpsMessage = 16 << 10;

base::Status send_mps(int socket, std::string_view message);
// Waits for a message, at most `patience` (negative: for ever). Empty: the other side has closed, or is too late.
std::string receive_mps(int socket, base::Duration patience);

// Makes this process, which has joined the machine, a client of the control daemon that serves its pipe directory. Does
// nothing if there is none. The error that cuInit returns.
cuda::CUresult join_mps(Machine& machine);

// The error of this process's contexts on a GPU that is its server's doing: a fault of any client, or the server's
// death.
cuda::CUresult mps_error(Machine& machine, std::uint32_t gpu);
// This process, a client, had a fault on the GPU. A client that sees it there sees it on all other GPUs, too.
void spread_fault(Machine& machine, std::uint32_t gpu, cuda::CUresult error);
// Does the server wait until clients have exited? If all have, its fault is over.
bool is_in_fault(Machine& machine, std::uint64_t server);

}  // namespace gpumux::sim
