// SPDX-License-Identifier: Apache-2.0
// Calls of Kubernetes' API server, over TLS, as a pod's service account.
//
// The kubelet writes the files of the token and of the authorities' certificates anew. So the client reads the token
// for each call, and the certificates for each connection. It keeps a connection for the next call. If a call finds it
// closed, the client makes the call once more, on a new connection.
//
// Any thread; one call at a time.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "base/result.h"

namespace gpumux::kubernetes {

struct ApiServerSettings {
  std::string address;  // numeric: a static program has no resolver. "10.96.0.1", "fd00::1"
  std::string port = "443";
  std::string token_file = "/var/run/secrets/kubernetes.io/serviceaccount/token";
  std::string authorities_file = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
  // The limit of one call, the connection included. A server answers within milliseconds; one that starts takes longer.
  std::chrono::milliseconds limit = std::chrono::seconds(10);
};

// The largest answer that is read. A node's slice and a claim have some KiB.
inline constexpr std::size_t kMaxAnswerBytes = 16 << 20;

class ApiServer {
 public:
  explicit ApiServer(ApiServerSettings settings);
  ~ApiServer();
  ApiServer(const ApiServer&) = delete;
  ApiServer& operator=(const ApiServer&) = delete;

  // The body of an answer that is no error. `path` begins with "/" and may have a query. An error of the server's has
  // the server's own words. Its code is kDenied (401, 403), kNotFound (404), kExists (409: it is there, or has been
  // changed) or kInvalid (400, 422). Other errors: kTimeout, kUnavailable (all the rest).
  base::Result<std::string> get(const std::string& path);
  base::Result<std::string> create(const std::string& path, const std::string& object);
  base::Result<std::string> replace(const std::string& path, const std::string& object);
  base::Status remove(const std::string& path);

 private:
  class Connection;
  struct Answer;

  base::Result<std::string> call(const std::string& method, const std::string& path, const std::string& body);
  base::Result<Answer> exchange(const std::string& method, const std::string& path, const std::string& body);

  const ApiServerSettings settings_;
  std::mutex mutex_;
  std::unique_ptr<Connection> connection_;  // guarded by mutex_; none: to be made
};

}  // namespace gpumux::kubernetes
