// SPDX-License-Identifier: Apache-2.0
// Every limit on a count or a size, with its reason.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumux::base {

// GPUs and MIG instances that one process can use: 8 GPUs of 7 instances each are 56.
inline constexpr std::size_t kMaxSeatsPerTenant = 64;

// GPUs and MIG instances of one machine that one daemon serves: 16 GPUs of 7 instances each are 112.
inline constexpr std::size_t kMaxGpus = 128;

// Connected tenants: every core of a large node forking data loaders that touch CUDA. Each costs the daemon about 10
// KiB.
inline constexpr std::size_t kMaxTenants = 8192;

// Tenants of one account (server/peers/account.h): one user's runaway script does not lock out the others.
inline constexpr std::size_t kMaxTenantsPerAccount = 4096;

// Of kMaxTenants, those that root on the host, the daemon's owner and administrators alone can have.
inline constexpr std::size_t kReservedTenants = 64;

// One message between tenant and daemon. The largest is a note of kMaxNoteBytes and its header.
inline constexpr std::size_t kMaxMessageBytes = 1024;
inline constexpr std::size_t kMaxNoteBytes = 512;

// Names in messages (program names, gang keys), with their terminating zero.
inline constexpr std::size_t kMaxNameBytes = 64;

}  // namespace gpumux::base
