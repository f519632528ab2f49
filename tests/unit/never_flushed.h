// SPDX-License-Identifier: Apache-2.0
// For tests of what a stranger's descriptor can do.
#pragma once

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <thread>

#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"

namespace gpumux {

// A file of a FUSE file system. Its server answers all but FLUSH, so a thread that closes a descriptor of it sleeps
// until this is destroyed.
class NeverFlushed {
 public:
  NeverFlushed() : server_(::open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK)) {
    if (!server_ || !os::FileDescriptor(::open(path_.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600))) return;
    const std::string options = "fd=" + std::to_string(server_.get()) + ",rootmode=100000,user_id=0,group_id=0";
    if (::mount("test", path_.c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) != 0) return;
    serving_ = std::thread([this] { serve(); });
    file_ = os::FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  }
  ~NeverFlushed() {
    ::umount2(path_.c_str(), MNT_DETACH);
    ended_ = true;
    if (serving_.joinable()) serving_.join();
    server_.reset();  // fails every request that waits
  }
  NeverFlushed(const NeverFlushed&) = delete;
  NeverFlushed& operator=(const NeverFlushed&) = delete;

  bool exists() const { return static_cast<bool>(file_); }
  int get() const { return file_.get(); }
  // How many closes wait for an answer.
  int flushes() const { return flushes_; }
  // How many descriptors of it this process has, this one's own not counted.
  std::size_t elsewhere() const {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path(), gone) == path_) ++count;
    }
    return count - 1;
  }

 private:
  void serve() {
    alignas(8) std::array<char, 1 << 16> buffer;
    while (!ended_) {
      pollfd poller{server_.get(), POLLIN, 0};
      if (::poll(&poller, 1, 10) != 1) continue;
      if (::read(server_.get(), buffer.data(), buffer.size()) < static_cast<ssize_t>(sizeof(fuse_in_header))) continue;
      answer(*reinterpret_cast<const fuse_in_header*>(buffer.data()));
    }
  }
  void answer(const fuse_in_header& request) {
    if (request.opcode == FUSE_FLUSH) ++flushes_;
    if (request.opcode == FUSE_FLUSH || request.opcode == FUSE_FORGET) return;
    fuse_init_out init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = FUSE_KERNEL_MINOR_VERSION;
    init.max_write = 4096;
    fuse_open_out open{};
    fuse_attr_out attributes{};
    attributes.attr.ino = 1;
    attributes.attr.mode = S_IFREG | 0600;
    attributes.attr.nlink = 1;
    switch (request.opcode) {
      case FUSE_INIT: return reply(request, 0, &init, sizeof init);
      case FUSE_OPEN: return reply(request, 0, &open, sizeof open);
      case FUSE_GETATTR: return reply(request, 0, &attributes, sizeof attributes);
      case FUSE_RELEASE: return reply(request, 0, nullptr, 0);
      default: return reply(request, -ENOSYS, nullptr, 0);
    }
  }
  void reply(const fuse_in_header& request, int error, void* body, std::size_t bytes) {
    fuse_out_header header{static_cast<std::uint32_t>(sizeof header + bytes), error, request.unique};
    const iovec parts[2] = {{&header, sizeof header}, {body, bytes}};
    static_cast<void>(::writev(server_.get(), parts, bytes > 0 ? 2 : 1));
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.path() + "/file";
  os::FileDescriptor file_;  // is closed last
  os::FileDescriptor server_;
  std::atomic<bool> ended_ = false;
  std::atomic<int> flushes_ = 0;
  std::thread serving_;
};

}  // namespace gpumux
