// SPDX-License-Identifier: Apache-2.0
// One simulated machine, as one process sees it: its settings, its other processes, and each GPU's free memory.
//
// Thread-safe. Opening maps the shared state; nothing is claimed until `join`. Never destroyed: a record lock says that
// this process is alive, and must last as long as the process. Closing any descriptor of its file would drop it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "os/file_descriptor.h"
#include "sim/cuda/machine_layout.h"

namespace gpumux::sim {

base::TimePoint now();
void sleep_until(base::TimePoint time);

struct MemoryInfo {
  std::uint64_t total = 0;  // that programs can have
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;  // added to it: the driver's own
};

struct ProcessView {
  std::int64_t pid = 0;
  std::uint64_t used = 0;
  bool is_client = false;  // of an MPS server
};

class Machine {
 public:
  // The machine of GPUMUX_SIM_DIR, created if this process is the first. The same object each time; an error is found
  // again each time.
  static base::Result<Machine*> get();

  // The machine in `directory`; for tests, which have several.
  static base::Result<Machine*> open(const std::string& directory);

  const Settings& settings() const { return state_->settings; }
  std::uint64_t id() const { return state_->machine_id; }
  const std::string& directory() const { return directory_; }
  base::GpuUuid uuid(std::uint32_t gpu) const;
  // The file with the shared state. Is it what the descriptor, of this process, has open?
  std::string state_path() const { return directory_ + "/machine.state"; }
  bool is_state_file(int fd) const;

  // Takes a slot for this process; the second time does nothing. kExhausted when all are taken.
  base::Status join();
  bool joined() const { return slot_ != kNoSlot; }

  // Charges memory of a GPU to this process; false: the GPU has not that much left.
  bool reserve(std::uint32_t gpu, std::uint64_t bytes);
  void release(std::uint32_t gpu, std::uint64_t bytes);
  MemoryInfo memory(std::uint32_t gpu);

  // Physical memory that several processes know, by the inode of its file. `share` moves a charge of this process's own
  // to the shared entry. Where `own` is false it adds one. False: no other process holds the memory, and the GPU has
  // not that much left or all entries are taken.
  bool share(std::uint64_t inode, std::uint32_t gpu, std::uint64_t bytes, bool own);
  void unshare(std::uint64_t inode);

  void context_opened(std::uint32_t gpu) { own().gpu[gpu].contexts.fetch_add(1); }
  void context_closed(std::uint32_t gpu) { own().gpu[gpu].contexts.fetch_sub(1); }

  // Processes with a context on the GPU. An MPS server has one where a client has one.
  std::vector<ProcessView> processes(std::uint32_t gpu);

  // Percent of the last 100 ms in which the GPU ran kernels.
  std::uint32_t utilization(std::uint32_t gpu);
  // Adds to it, for this process. The caller serialises calls for one GPU.
  void add_busy(std::uint32_t gpu, base::TimePoint from, base::TimePoint to);

  // For the arbiter and the copy engines.
  MachineState& state() { return *state_; }
  Slot& own() { return state_->slots[slot_]; }
  std::uint32_t own_slot() const { return slot_; }
  std::uint32_t slots_used() const { return state_->slots_used.load(); }
  // A process on the machine: its slot, and the slot's generation, which tells it from later holders of the slot. Never
  // 0.
  std::uint64_t identity(std::uint32_t slot) const { return state_->slots[slot].generation.load() << 16 | (slot + 1); }
  bool lives(std::uint64_t identity);
  // This process is an MPS server, or a client of one: an identity.
  void become_server() { own().server.store(identity(slot_)); }
  void become_client(std::uint64_t server) { own().server.store(server); }
  // The slots of an MPS server's living clients.
  std::vector<std::uint32_t> clients(std::uint64_t server);
  // A process's number, as this process knows it.
  std::int64_t process_of(std::uint32_t slot);
  // Is the process that holds the slot alive, or so recently dead that its memory is not back yet?
  bool counts(std::uint32_t slot);
  bool alive(std::uint32_t slot);

 private:
  static constexpr std::uint32_t kNoSlot = UINT32_MAX;

  Machine() = default;
  std::string directory_;
  base::Status map(const std::string& directory);
  base::Status create_state(const std::string& directory, const std::string& path);
  bool take(std::uint32_t slot);
  bool lock_byte(std::uint32_t slot, bool lock);
  // Used by living processes (and their shares of exported memory); `pending` of others is added to *pending if given.
  std::uint64_t used(std::uint32_t gpu, std::uint64_t* pending);
  bool block_counts(const SharedBlock& block);
  bool referred_to(const SharedBlock& block);
  SharedBlock* find_block(std::uint64_t inode);
  SharedBlock* claim_block();

  MachineState* state_ = nullptr;
  dev_t state_device_ = 0;
  ino_t state_inode_ = 0;
  int liveness_fd_ = -1;
  std::uint32_t slot_ = kNoSlot;
  std::uint64_t image_ = 0;
  std::atomic<bool> death_just_noticed_{false};
  std::map<std::uint64_t, std::uint32_t> shares_;  // by inode: how often this process refers to it
  std::mutex reserve_mutex_;                       // one reservation of this process at a time; guards shares_
};

}  // namespace gpumux::sim
