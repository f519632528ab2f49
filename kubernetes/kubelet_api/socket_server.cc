// SPDX-License-Identifier: Apache-2.0
#include "kubernetes/kubelet_api/socket_server.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace gpumux::kubernetes {
namespace {

// A guess: calls take milliseconds, and open streams would never end by themselves.
constexpr auto kShutdownLimit = std::chrono::milliseconds(500);

}  // namespace

std::optional<FileIdentity> identity_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino, status.st_ctim.tv_sec, status.st_ctim.tv_nsec};
}

base::Result<std::unique_ptr<SocketServer>> SocketServer::begin(const std::string& path,
                                                                const std::vector<grpc::Service*>& services) {
  // gRPC would write lines of its own about a folder that is not there, at each try.
  const std::string folder = path.substr(0, path.rfind('/'));
  if (::access(folder.c_str(), W_OK) != 0)
    return base::fail_errno(errno, "cannot serve on " + path + " (is the kubelet's folder there?)");
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return base::fail_errno(errno, "cannot remove " + path);
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + path, grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  auto begun = std::unique_ptr<SocketServer>(new SocketServer(path, builder.BuildAndStart()));
  if (!begun->server_ || !begun->identity_)
    return base::fail(base::Code::kUnavailable, "cannot serve on " + path + "; is the kubelet's folder there?");
  return begun;
}

SocketServer::SocketServer(std::string path, std::unique_ptr<grpc::Server> server)
    : path_(std::move(path)), server_(std::move(server)), identity_(identity_of(path_)) {}

SocketServer::~SocketServer() {
  if (server_) server_->Shutdown(std::chrono::system_clock::now() + kShutdownLimit);
}

std::shared_ptr<grpc::Channel> channel_to(const std::string& path) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel("unix:" + path, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace gpumux::kubernetes
