// SPDX-License-Identifier: Apache-2.0
// A file system layer for SQLite that notes every write, sync, cut and removal. So a test can make the files as they
// may be after a power cut at any of these moments. The layer can also be full, or fail to sync.
//
// A file has after a power cut (write_survivors()) everything that its last sync covered. Of later writes it has any
// part, in any order, the last piece maybe torn. Removing and making files is taken to be durable at once.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace gpumux::jobs::store {

struct FileOperation {
  enum class Kind { kWrite, kTruncate, kSync, kDelete, kAcknowledged } kind = Kind::kWrite;
  std::string file;      // without its folder
  std::uint64_t at = 0;  // kWrite: the place; kTruncate: the new length; kAcknowledged: the test's number
  std::string bytes;
};

class PowerCutVfs {
 public:
  static constexpr const char* kName = "gpumux-power-cut";

  // Registers it, under kName. One at a time.
  PowerCutVfs();
  ~PowerCutVfs();
  PowerCutVfs(const PowerCutVfs&) = delete;
  PowerCutVfs& operator=(const PowerCutVfs&) = delete;

  // The test has been told that `what` is durable.
  void acknowledged(std::uint64_t what);
  const std::vector<FileOperation>& log() const;

  // From now on `bytes` can be written, then the disk is full.
  void set_room(std::uint64_t bytes);
  // From now on no file can become longer, as on a full disk. Writes within its length succeed.
  void set_full(bool is_full);
  // The next `count` syncs fail.
  void set_failing_syncs(int count);

  // Makes the files in `folder` as they may be after a power cut when `count` operations had been done.
  static void write_survivors(const std::vector<FileOperation>& log, std::size_t count, std::mt19937_64& random,
                              const std::string& folder);

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace gpumux::jobs::store
