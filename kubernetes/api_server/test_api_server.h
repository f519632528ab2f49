// SPDX-License-Identifier: Apache-2.0
// An API server for tests, with real TLS: it keeps objects by their paths, as far as slices and claims need it. Its
// certificate is made when it starts.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>
#include <cstdint>
#include <fstream>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kubernetes/api_server/client.h"

namespace gpumux::kubernetes {

// A certificate that vouches for itself, and its key, as files.
inline void make_certificate(const std::string& certificate_file, const std::string& key_file,
                             const char* for_names = "IP:127.0.0.1") {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> made(X509_new(), X509_free);
  X509_set_version(made.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(made.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(made.get()), 3600);
  X509_set_pubkey(made.get(), key.get());
  X509_NAME* name = X509_get_subject_name(made.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(made.get(), name);
  X509_EXTENSION* names = X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, for_names);
  X509_add_ext(made.get(), names, -1);
  X509_EXTENSION_free(names);
  X509_sign(made.get(), key.get(), EVP_sha256());
  FILE* file = std::fopen(certificate_file.c_str(), "w");
  PEM_write_X509(file, made.get());
  std::fclose(file);
  file = std::fopen(key_file.c_str(), "w");
  PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
}

class TestApiServer {
 public:
  using Json = nlohmann::json;

  // `folder`: for its certificate and the token.
  explicit TestApiServer(const std::string& folder, const char* for_names = "IP:127.0.0.1") : folder_(folder) {
    make_certificate(folder + "/ca.crt", folder + "/key", for_names);
    set_token("secret");
    accept_token("secret");
    tls_.use_certificate_chain_file(folder + "/ca.crt");
    tls_.use_private_key_file(folder + "/key", boost::asio::ssl::context::pem);
    acceptor_ = Tcp::acceptor(events_, {boost::asio::ip::make_address("127.0.0.1"), 0});
    port_ = acceptor_.local_endpoint().port();
    thread_ = std::thread([this] { accept(); });
  }
  ~TestApiServer() {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    // Wakes the thread that accepts.
    boost::asio::io_context events;
    Tcp::socket waker(events);
    boost::system::error_code ignored;
    waker.connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    close_connections();
    for (std::thread& thread : threads_) thread.join();
  }
  TestApiServer(const TestApiServer&) = delete;
  TestApiServer& operator=(const TestApiServer&) = delete;

  ApiServerSettings settings() const {
    ApiServerSettings made;
    made.address = "127.0.0.1";
    made.port = std::to_string(port_);
    made.token_file = folder_ + "/token";
    made.authorities_file = folder_ + "/ca.crt";
    return made;
  }

  // The client's; and the one that is accepted.
  void set_token(const std::string& token) { std::ofstream(folder_ + "/token") << token << "\n"; }
  void accept_token(const std::string& token) {
    const std::lock_guard lock(mutex_);
    token_ = token;
  }
  // Versions of resource.k8s.io.
  void serve_versions(std::vector<std::string> versions) {
    const std::lock_guard lock(mutex_);
    versions_ = std::move(versions);
  }
  // Calls get no answer until the server ends.
  void fall_silent(bool silent) {
    const std::lock_guard lock(mutex_);
    is_silent_ = silent;
  }
  void refuse(bool refuses) {
    const std::lock_guard lock(mutex_);
    refuses_ = refuses;
  }

  void close_connections() {
    const std::lock_guard lock(mutex_);
    for (Tcp::socket* socket : sockets_) {
      boost::system::error_code ignored;
      socket->shutdown(Tcp::socket::shutdown_both, ignored);
    }
  }

  // An object by its path, for example "/apis/resource.k8s.io/v1/resourceslices/a".
  void put(const std::string& path, Json object) {
    const std::lock_guard lock(mutex_);
    store(path, std::move(object));
  }
  void erase(const std::string& path) {
    const std::lock_guard lock(mutex_);
    objects_.erase(path);
  }
  Json object(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(path);
    return found == objects_.end() ? Json() : found->second;
  }
  std::size_t size() {
    const std::lock_guard lock(mutex_);
    return objects_.size();
  }
  // "GET /apis/...", in their order.
  std::vector<std::string> calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  std::size_t connections() {
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  using Tcp = boost::asio::ip::tcp;
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  using Response = boost::beast::http::response<boost::beast::http::string_body>;

  void accept() {
    while (true) {
      boost::system::error_code error;
      auto socket = std::make_unique<Tcp::socket>(events_);
      acceptor_.accept(*socket, error);
      const std::lock_guard lock(mutex_);
      if (is_stopped_ || error) return;
      threads_.emplace_back([this, moved = std::move(socket)] { serve(*moved); });
    }
  }

  void serve(Tcp::socket& socket) {
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return;
      sockets_.insert(&socket);
    }
    boost::system::error_code error;
    boost::asio::ssl::stream<Tcp::socket&> stream(socket, tls_);
    stream.handshake(boost::asio::ssl::stream_base::server, error);
    boost::beast::flat_buffer buffer;
    while (!error) {
      Request request;
      boost::beast::http::read(stream, buffer, request, error);
      if (error) break;
      const auto response = answer(request);
      if (!response) continue;
      boost::beast::http::write(stream, *response, error);
    }
    const std::lock_guard lock(mutex_);
    sockets_.erase(&socket);
  }

  std::unique_ptr<Response> answer(const Request& request) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::string(request.method_string()) + " " + std::string(request.target()));
    if (is_silent_) return nullptr;
    auto [status, body] = result(request);
    auto response = std::make_unique<Response>(static_cast<boost::beast::http::status>(status), 11);
    response->body() = body.dump();
    response->keep_alive(true);
    response->prepare_payload();
    return response;
  }

  static std::pair<int, Json> failure(int status, const std::string& message) {
    return {status, {{"kind", "Status"}, {"message", message}}};
  }

  std::pair<int, Json> result(const Request& request) {
    if (refuses_) return failure(503, "not now");
    if (request[boost::beast::http::field::authorization] != "Bearer " + token_) return failure(401, "Unauthorized");
    const std::string target(request.target());
    const std::string path = target.substr(0, target.find('?'));
    const std::string method(request.method_string());
    if (path == "/apis/resource.k8s.io") {
      Json versions = Json::array();
      for (const std::string& version : versions_) versions.push_back({{"version", version}});
      return {200, {{"versions", versions}}};
    }
    if (method == "POST") {
      Json object = Json::parse(request.body());
      const std::string made = path + "/" + object["metadata"]["name"].get<std::string>();
      if (objects_.count(made) != 0) return failure(409, "already exists");
      return {201, store(made, std::move(object))};
    }
    const auto found = objects_.find(path);
    if (method == "GET" && path.ends_with("/resourceslices")) return {200, list(path)};
    if (found == objects_.end()) return failure(404, path + " not found");
    if (method == "GET") return {200, found->second};
    if (method == "DELETE") {
      objects_.erase(found);
      return {200, {{"kind", "Status"}}};
    }
    Json object = Json::parse(request.body());
    if (object["metadata"].value("resourceVersion", "") != found->second["metadata"]["resourceVersion"])
      return failure(409, "the object has been modified");
    return {200, store(path, std::move(object))};
  }

  // All, whatever the query: the client's own check is tried, too.
  Json list(const std::string& path) {
    Json items = Json::array();
    for (const auto& [name, object] : objects_) {
      if (name.starts_with(path + "/")) items.push_back(object);
    }
    return {{"items", items}};
  }

  const Json& store(const std::string& path, Json object) {
    object["metadata"]["resourceVersion"] = std::to_string(++version_);
    return objects_[path] = std::move(object);
  }

  const std::string folder_;
  boost::asio::io_context events_;
  boost::asio::ssl::context tls_{boost::asio::ssl::context::tls_server};
  Tcp::acceptor acceptor_{events_};
  unsigned short port_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  // From here on guarded by mutex_.
  bool is_stopped_ = false;
  bool is_silent_ = false;
  bool refuses_ = false;
  std::string token_;
  std::vector<std::string> versions_{"v1"};
  std::map<std::string, Json> objects_;
  std::vector<std::string> calls_;
  std::uint64_t version_ = 0;
  std::set<Tcp::socket*> sockets_;
  std::list<std::thread> threads_;
};

}  // namespace gpumux::kubernetes
