// SPDX-License-Identifier: Apache-2.0
// For the daemon's tests and its benchmark: a machine without GPUs, a daemon in this process, and tenants that do what
// a script says.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "daemon/daemon.h"
#include "daemon/gpus/inventory.h"
#include "jobs/service/job_routes.h"
#include "os/file_descriptor.h"
#include "tests/unit/temporary_directory.h"
#include "wire/messages.h"

namespace gpumux::wire {
struct LeasePage;
}

namespace gpumux::daemon::testing {

using namespace std::chrono_literals;

// Long enough for a loaded machine, short enough to see that something hangs.
inline constexpr auto kPatience = 10s;

// Stands still unless a test moves it.
class ScriptedClock final : public base::Clock {
 public:
  base::TimePoint now() const override { return time; }
  base::TimePoint time = base::TimePoint() + 1h;
};

// A queue that has nothing.
class NoJobs final : public jobs::JobRoutes {
 public:
  jobs::QueueFigures figures() const override { return {}; }
  server::ApiAnswer answer(const server::ApiRequest&, const server::RouteMatch&, std::string_view) override {
    return server::ApiResponse();
  }
  settings::Privacy privacy() const override { return settings::Privacy::kOpen; }
};

// Polls until the condition holds. False: it did not in time.
bool eventually(const std::function<bool()>& condition, std::chrono::nanoseconds patience = kPatience);

// A UUID of this process's own, so that tests that run at once do not take each other's GPU locks.
base::GpuUuid test_uuid(std::uint8_t number);

std::unique_ptr<Inventory> fake_inventory(std::size_t gpus, std::uint8_t first_number = 0);

// A daemon on a thread of its own.
class TestDaemon {
 public:
  static DaemonOptions options_in(const std::string& runtime_dir);
  // Fails the process with the reason if the daemon does not start.
  explicit TestDaemon(DaemonOptions options, std::unique_ptr<Inventory> inventory = fake_inventory(1));
  ~TestDaemon();
  // As SIGTERM and SIGKILL would.
  void stop();
  void crash();
  // Waits for a daemon that ends by itself.
  ExitCode wait();
  Daemon& daemon() { return *daemon_; }

 private:
  std::unique_ptr<Daemon> daemon_;
  std::thread thread_;
  ExitCode exit_code_ = kExitFailed;
};

// A process that begins its work when the test tells it to. It must be born before any thread of the test's. The child
// of a process with threads may find a lock of the allocator's held for ever. It would then hold the daemon's lock of
// its GPUs.
class OtherProcess {
 public:
  // The return value of `body`, at most 255, is the exit status. Fails the test's process if that has threads already.
  explicit OtherProcess(std::function<int()> body);
  ~OtherProcess();  // kills it if it is still there
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  void begin();
  pid_t pid() const { return pid_; }
  // Waits for its end; -1: it did not exit by itself.
  int wait();
  void kill();
  // Begins, waits.
  int run() { return begin(), wait(); }

 private:
  pid_t pid_ = -1;
  os::FileDescriptor start_;
};

// A sealed lease page, or one that is wrong on purpose.
os::FileDescriptor make_page(std::size_t bytes, bool sealed);

class TestTenant {
 public:
  explicit TestTenant(const std::string& runtime_dir, std::string program = "tenant");
  // Uses the page of a tenant that lost its daemon.
  TestTenant(const std::string& runtime_dir, TestTenant&& former);
  ~TestTenant();
  TestTenant(const TestTenant&) = delete;
  TestTenant& operator=(const TestTenant&) = delete;

  bool connected() const { return static_cast<bool>(socket_); }
  int socket() const { return socket_.get(); }
  int page_fd() const { return page_fd_.get(); }
  void disconnect() { socket_.reset(); }

  template <class Message>
  bool send(const Message& message, int fd = -1) {
    return send_bytes(wire::encode(message).bytes(), fd);
  }
  bool send_bytes(std::span<const std::byte> bytes, int fd = -1);
  // The next message; none: the daemon has closed the connection, or said nothing in time.
  std::optional<wire::DaemonMessage> receive(std::chrono::nanoseconds patience = kPatience);
  // The next message of that type, others being left out.
  template <class Message>
  std::optional<Message> receive_a(std::chrono::nanoseconds patience = kPatience) {
    while (auto message = receive(patience)) {
      if (const auto* wanted = std::get_if<Message>(&*message)) return *wanted;
    }
    return std::nullopt;
  }
  // The daemon closes the connection.
  bool is_dropped(std::chrono::nanoseconds patience = kPatience);

  // Hello and Welcome.
  bool join(const std::string& gang = "");
  bool open_seat(std::uint32_t slot, const base::GpuUuid& uuid);
  bool open_seat(const wire::SeatOpen& open);
  bool request(std::uint32_t slot = 0) { return send(wire::Request{.slot = slot}); }
  bool is_granted(std::uint32_t slot = 0) const;
  bool wait_granted(std::uint32_t slot = 0) const;
  std::uint64_t epoch(std::uint32_t slot = 0) const;
  std::uint32_t word(std::uint32_t slot = 0) const;
  // Gives the lease back as the agent does: clears the word, says Drained.
  bool release(std::uint32_t slot = 0);
  // Answers a Revoke as a tenant with nothing queued does. False: none came.
  bool yield(std::chrono::nanoseconds patience = kPatience);
  wire::LeasePage& page() { return *page_; }

 private:
  std::string program_;
  os::FileDescriptor socket_;
  os::FileDescriptor page_fd_;
  wire::LeasePage* page_ = nullptr;
};

struct HttpAnswer {
  int status = 0;
  std::string body;
  std::string head{};
};

// One request on a connection of its own. Chunks are joined.
HttpAnswer http(const std::string& runtime_dir, const std::string& method, const std::string& target,
                const std::string& body = "", const char* socket_name = "api.sock");
// The body, or a discarded value if it is not JSON.
nlohmann::json json_of(const HttpAnswer& answer);
// The answer to a GET. Throws if its status is not 200, or its body not JSON.
nlohmann::json get_json(const std::string& runtime_dir, const std::string& target);

// Of this process.
std::size_t open_descriptors();

}  // namespace gpumux::daemon::testing
