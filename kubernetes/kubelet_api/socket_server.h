// SPDX-License-Identifier: Apache-2.0
// Servers and clients of gRPC on sockets in the kubelet's folders.
//
// The kubelet and its plugins find each other by these files. Each of them may remove or replace a file at any time. So
// both must know whether a file is still the one that they mean.
//
// Any thread.
#pragma once

#include <grpcpp/grpcpp.h>
#include <sys/types.h>

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpumux::kubernetes {

// Which file has a name. The number of an inode is used again, so the time of its making counts, too.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  time_t seconds = 0;
  long nanoseconds = 0;

  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

// None: nothing has this name. Follows no link.
std::optional<FileIdentity> identity_of(const std::string& path);

// A server behind one socket. Its end removes the socket.
class SocketServer {
 public:
  // Takes the place of a socket that a killed process has left. `services` outlive it.
  static base::Result<std::unique_ptr<SocketServer>> begin(const std::string& path,
                                                           const std::vector<grpc::Service*>& services);
  // Calls that are under way have kShutdownLimit. Streams must have been told to end.
  ~SocketServer();
  SocketServer(const SocketServer&) = delete;
  SocketServer& operator=(const SocketServer&) = delete;

  // Whether the socket still has its name.
  bool is_there() const { return identity_of(path_) == identity_; }

 private:
  SocketServer(std::string path, std::unique_ptr<grpc::Server> server);

  const std::string path_;
  const std::unique_ptr<grpc::Server> server_;
  const std::optional<FileIdentity> identity_;
};

// A channel with a connection of its own. Channels usually share connections, and with them the pause after a failure:
// the last server's is not this one's.
std::shared_ptr<grpc::Channel> channel_to(const std::string& path);

}  // namespace gpumux::kubernetes
