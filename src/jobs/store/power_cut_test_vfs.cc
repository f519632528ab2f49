// SPDX-License-Identifier: Apache-2.0
#include "jobs/store/power_cut_test_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>

namespace gpumux::jobs::store {

struct PowerCutVfs::State {
  sqlite3_vfs vfs{};
  sqlite3_vfs* real = nullptr;
  std::mutex mutex;
  std::vector<FileOperation> log;
  std::uint64_t room = std::numeric_limits<std::uint64_t>::max();
  int failing_syncs = 0;
  bool is_full = false;
};

namespace {

using State = PowerCutVfs::State;
using Kind = FileOperation::Kind;

constexpr std::size_t kSector = 512;  // the unit that a disk writes whole

struct File {
  sqlite3_file base;
  State* state;
  std::string* name;
  sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

File& file(sqlite3_file* f) { return *reinterpret_cast<File*>(f); }
sqlite3_file* real(sqlite3_file* f) { return file(f).real(); }

void note(State& state, FileOperation operation) {
  const std::lock_guard lock(state.mutex);
  state.log.push_back(std::move(operation));
}

std::string last_part(const char* path) {
  const std::string text = path == nullptr ? "" : path;
  return text.substr(text.rfind('/') + 1);
}

int do_close(sqlite3_file* f) {
  const int result = real(f)->pMethods->xClose(real(f));
  delete file(f).name;
  return result;
}
int do_read(sqlite3_file* f, void* to, int amount, sqlite3_int64 at) {
  return real(f)->pMethods->xRead(real(f), to, amount, at);
}
int do_write(sqlite3_file* f, const void* from, int amount, sqlite3_int64 at) {
  State& state = *file(f).state;
  const auto bytes = static_cast<std::size_t>(amount);
  {
    const std::lock_guard lock(state.mutex);
    if (state.room < bytes) return SQLITE_FULL;
    sqlite3_int64 size = 0;
    if (state.is_full && (real(f)->pMethods->xFileSize(real(f), &size) != SQLITE_OK || at + amount > size))
      return SQLITE_FULL;
    state.room -= bytes;
  }
  const int result = real(f)->pMethods->xWrite(real(f), from, amount, at);
  if (result == SQLITE_OK)
    note(state, {Kind::kWrite, *file(f).name, static_cast<std::uint64_t>(at),
                 std::string(static_cast<const char*>(from), bytes)});
  return result;
}
int do_truncate(sqlite3_file* f, sqlite3_int64 size) {
  const int result = real(f)->pMethods->xTruncate(real(f), size);
  if (result == SQLITE_OK) note(*file(f).state, {Kind::kTruncate, *file(f).name, static_cast<std::uint64_t>(size), {}});
  return result;
}
int do_sync(sqlite3_file* f, int) {
  // Not really: nothing here has to survive the machine, and the log says when it was asked for.
  State& state = *file(f).state;
  {
    const std::lock_guard lock(state.mutex);
    if (state.failing_syncs > 0 && state.failing_syncs-- > 0) return SQLITE_IOERR_FSYNC;
  }
  note(state, {Kind::kSync, *file(f).name, 0, {}});
  return SQLITE_OK;
}
int do_size(sqlite3_file* f, sqlite3_int64* size) { return real(f)->pMethods->xFileSize(real(f), size); }
int do_lock(sqlite3_file* f, int level) { return real(f)->pMethods->xLock(real(f), level); }
int do_unlock(sqlite3_file* f, int level) { return real(f)->pMethods->xUnlock(real(f), level); }
int do_reserved(sqlite3_file* f, int* out) { return real(f)->pMethods->xCheckReservedLock(real(f), out); }
int do_control(sqlite3_file* f, int op, void* argument) {
  return real(f)->pMethods->xFileControl(real(f), op, argument);
}
int do_sector(sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); }
int do_characteristics(sqlite3_file* f) { return real(f)->pMethods->xDeviceCharacteristics(real(f)); }
int do_shm_map(sqlite3_file* f, int page, int size, int extend, void volatile** out) {
  return real(f)->pMethods->xShmMap(real(f), page, size, extend, out);
}
int do_shm_lock(sqlite3_file* f, int at, int n, int flags) {
  return real(f)->pMethods->xShmLock(real(f), at, n, flags);
}
void do_shm_barrier(sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); }
int do_shm_unmap(sqlite3_file* f, int remove) { return real(f)->pMethods->xShmUnmap(real(f), remove); }

const sqlite3_io_methods kMethods = {2,
                                     do_close,
                                     do_read,
                                     do_write,
                                     do_truncate,
                                     do_sync,
                                     do_size,
                                     do_lock,
                                     do_unlock,
                                     do_reserved,
                                     do_control,
                                     do_sector,
                                     do_characteristics,
                                     do_shm_map,
                                     do_shm_lock,
                                     do_shm_barrier,
                                     do_shm_unmap,
                                     nullptr,
                                     nullptr};

State& state_of(sqlite3_vfs* vfs) { return *static_cast<State*>(vfs->pAppData); }

int do_open(sqlite3_vfs* vfs, const char* name, sqlite3_file* f, int flags, int* out_flags) {
  State& state = state_of(vfs);
  File& mine = file(f);
  mine.base.pMethods = nullptr;
  mine.state = &state;
  const int result = state.real->xOpen(state.real, name, mine.real(), flags, out_flags);
  if (result != SQLITE_OK) return result;
  mine.name = new std::string(last_part(name));
  mine.base.pMethods = &kMethods;
  return SQLITE_OK;
}
int do_delete(sqlite3_vfs* vfs, const char* name, int sync) {
  State& state = state_of(vfs);
  const int result = state.real->xDelete(state.real, name, sync);
  if (result == SQLITE_OK) note(state, {Kind::kDelete, last_part(name), 0, {}});
  return result;
}
int do_access(sqlite3_vfs* vfs, const char* name, int flags, int* out) {
  return state_of(vfs).real->xAccess(state_of(vfs).real, name, flags, out);
}
int do_full_path(sqlite3_vfs* vfs, const char* name, int size, char* out) {
  return state_of(vfs).real->xFullPathname(state_of(vfs).real, name, size, out);
}
int do_randomness(sqlite3_vfs* vfs, int size, char* out) {
  return state_of(vfs).real->xRandomness(state_of(vfs).real, size, out);
}
int do_sleep(sqlite3_vfs* vfs, int microseconds) {
  return state_of(vfs).real->xSleep(state_of(vfs).real, microseconds);
}
int do_time(sqlite3_vfs* vfs, double* out) { return state_of(vfs).real->xCurrentTime(state_of(vfs).real, out); }
int do_last_error(sqlite3_vfs* vfs, int size, char* out) {
  return state_of(vfs).real->xGetLastError(state_of(vfs).real, size, out);
}

struct Image {
  std::string synced;                         // certain bytes
  std::vector<const FileOperation*> pending;  // bytes that may be there
};

void carry_out(std::string& bytes, const FileOperation& operation, std::size_t length) {
  if (operation.kind == Kind::kTruncate) {
    bytes.resize(operation.at);
    return;
  }
  if (bytes.size() < operation.at + length) bytes.resize(operation.at + length);
  bytes.replace(operation.at, length, operation.bytes, 0, length);
}

}  // namespace

PowerCutVfs::PowerCutVfs() : state_(std::make_unique<State>()) {
  State& state = *state_;
  state.real = sqlite3_vfs_find(nullptr);
  state.vfs.iVersion = 1;
  state.vfs.szOsFile = static_cast<int>(sizeof(File)) + state.real->szOsFile;
  state.vfs.mxPathname = state.real->mxPathname;
  state.vfs.zName = kName;
  state.vfs.pAppData = &state;
  state.vfs.xOpen = do_open;
  state.vfs.xDelete = do_delete;
  state.vfs.xAccess = do_access;
  state.vfs.xFullPathname = do_full_path;
  state.vfs.xRandomness = do_randomness;
  state.vfs.xSleep = do_sleep;
  state.vfs.xCurrentTime = do_time;
  state.vfs.xGetLastError = do_last_error;
  sqlite3_vfs_register(&state.vfs, 0);
}

PowerCutVfs::~PowerCutVfs() { sqlite3_vfs_unregister(&state_->vfs); }

void PowerCutVfs::acknowledged(std::uint64_t what) { note(*state_, {Kind::kAcknowledged, {}, what, {}}); }

const std::vector<FileOperation>& PowerCutVfs::log() const { return state_->log; }

void PowerCutVfs::set_room(std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->room = bytes;
}

void PowerCutVfs::set_full(bool is_full) {
  const std::lock_guard lock(state_->mutex);
  state_->is_full = is_full;
}

void PowerCutVfs::set_failing_syncs(int count) {
  const std::lock_guard lock(state_->mutex);
  state_->failing_syncs = count;
}

void PowerCutVfs::write_survivors(const std::vector<FileOperation>& log, std::size_t count, std::mt19937_64& random,
                                  const std::string& folder) {
  std::map<std::string, Image> files;
  for (std::size_t i = 0; i < count; ++i) {
    const FileOperation& operation = log[i];
    switch (operation.kind) {
      case Kind::kAcknowledged: break;
      case Kind::kDelete: files.erase(operation.file); break;
      case Kind::kWrite:
      case Kind::kTruncate: files[operation.file].pending.push_back(&operation); break;
      case Kind::kSync: {
        Image& image = files[operation.file];
        for (const FileOperation* one : image.pending) carry_out(image.synced, *one, one->bytes.size());
        image.pending.clear();
        break;
      }
    }
  }
  for (auto& [name, image] : files) {
    // All, none, a part of what was on its way.
    const std::uint64_t luck = random() % 4;
    for (std::size_t i = 0; i < image.pending.size(); ++i) {
      const FileOperation& one = *image.pending[i];
      if (luck == 0 || (luck > 1 && random() % 2 == 0)) continue;
      std::size_t length = one.bytes.size();
      if (luck == 3 && i + 1 == image.pending.size()) length = random() % (length / kSector + 1) * kSector;
      carry_out(image.synced, one, std::min(length, one.bytes.size()));
    }
    std::ofstream out(folder + "/" + name, std::ios::binary);
    out << image.synced;
  }
}

}  // namespace gpumux::jobs::store
