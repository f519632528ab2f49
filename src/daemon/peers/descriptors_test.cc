// SPDX-License-Identifier: Apache-2.0
// Goal: no stranger's descriptor stops the daemon's loop, whatever closing it costs, and none takes the daemon's
// descriptors.
// Method: a file of a FUSE file system whose server never answers FLUSH is never closed, not even by SIGKILL. And a TCP
// socket with unsent data lingers for an hour: the drop of its last reference sleeps. They are handed to the daemon in
// every way there is. Then the daemon must serve a good tenant, and close every socket long before the hour is over. A
// killed daemon must leave nothing that keeps the next one from starting.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "daemon/peers/doorkeeper_process.h"
#include "daemon/test_support.h"
#include "os/runtime_dir.h"
#include "os/unix_socket.h"
#include "server/loop/log.h"
#include "server/peers/process_info.h"
#include "tests/unit/never_flushed.h"
#include "tests/unit/send_with.h"
#include "wire/lease_page.h"

namespace gpumux::daemon {
namespace {

using namespace testing;

constexpr uid_t kNobody = 65534;

pid_t parent_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  pid_t parent = 0;
  char state = 0;
  const std::size_t name_end = line.rfind(')');
  if (name_end != std::string::npos) std::sscanf(line.c_str() + name_end + 1, " %c %d", &state, &parent);
  return parent;
}

// Kills all of this process's doorkeepers, their guards and their starter; returns how many.
int end_doorkeepers() {
  int ended = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto process = static_cast<pid_t>(std::atoi(entry.path().filename().c_str()));
    const auto info = process > 0 ? server::process_info(process) : std::nullopt;
    if (!info || info->name != doorkeepers::kName || info->state == 'Z') continue;
    pid_t parent = parent_of(process);
    for (int i = 0; i < 2 && parent > 1 && parent != ::getpid(); ++i) parent = parent_of(parent);
    if (parent == ::getpid() && ::kill(process, SIGKILL) == 0) ++ended;
  }
  return ended;
}

// Ends the lingering when it is destroyed. A thread that sleeps in close() wakes then, so that a failing test ends,
// too.
class Lingering {
 public:
  Lingering(const Lingering&) = delete;
  Lingering& operator=(const Lingering&) = delete;
  Lingering() {
    const os::FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 1) != 0 ||
        ::getsockname(listener.get(), generic, &length) != 0)
      std::abort();
    near_ = os::FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(near_.get(), generic, length) != 0) std::abort();
    far_ = os::FileDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger hour{1, 3600};
    if (!far_ || ::setsockopt(near_.get(), SOL_SOCKET, SO_LINGER, &hour, sizeof hour) != 0) std::abort();
    static const std::array<char, 65536> kData{};
    while (::send(near_.get(), kData.data(), kData.size(), MSG_DONTWAIT) > 0) {
    }
  }
  int get() const { return near_.get(); }
  ~Lingering() {
    far_.reset();
    if (closing_.joinable()) closing_.join();
  }
  // Leaves the last reference to the daemon, unless that has closed its own already: this one then sleeps.
  void let_go() {
    closing_ = std::thread([near = std::move(near_)]() mutable { near.reset(); });
  }

 private:
  os::FileDescriptor near_;
  os::FileDescriptor far_;  // its end ends the lingering
  std::thread closing_;
};

os::FileDescriptor connect_stream(const std::string& path) {
  os::FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) socket.reset();
  return socket;
}

class Descriptors : public ::testing::Test {
 protected:
  virtual DaemonOptions options() { return TestDaemon::options_in(dir_.path()); }

  void SetUp() override {
    daemon_.emplace(options(), fake_inventory(2));
    good_.emplace(dir_.path(), "good");
    ASSERT_TRUE(good_->join() && good_->open_seat(0, test_uuid(0)));
    before_ = open_descriptors();
  }

  void TearDown() override {
    good_goes_on();
    // A closed connection's place is the kernel's for a moment, and a lingering one's until a signal has ended it.
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= before_ + 2 * lingering_.size(); }))
        << before_ << " before, " << open_descriptors() << " after";
  }

  void good_goes_on() {
    ASSERT_TRUE(good_->request());
    ASSERT_TRUE(good_->wait_granted()) << "the daemon's loop stands still";
    ASSERT_TRUE(good_->release());
    EXPECT_EQ(http(dir_.path(), "GET", "/v1/daemon").status, 200);
  }

  Lingering& lingering() { return lingering_.emplace_back(); }

  // With a whole request, with a part of one, and unread in a connection that is closed. How many the kernel sent.
  int send_to_the_api() {
    const std::string text = "GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n";
    const auto bytes = std::as_bytes(std::span(text));
    int sent = 0;
    for (const std::size_t length : {bytes.size(), std::size_t{5}, std::size_t{0}}) {
      const os::FileDescriptor client = connect_stream(dir_.path() + "/" + os::kApiSocket);
      const std::string bad = "\x01\x02 /\r\n\r\n";  // the daemon closes after this
      if (length == 0 && ::send(client.get(), bad.data(), bad.size(), MSG_NOSIGNAL) <= 0) return -1;
      Lingering& socket = lingering();
      if (send_with(client.get(), length == 0 ? bytes : bytes.first(length), {socket.get()})) {
        ++sent;
        socket.let_go();
      } else {
        EXPECT_TRUE(errno == EPERM || errno == EPIPE);
      }
      good_goes_on();
    }
    return sent;
  }

  TemporaryDirectory dir_;
  std::optional<TestDaemon> daemon_;
  std::optional<TestTenant> good_;
  std::size_t before_ = 0;
  std::deque<Lingering> lingering_;  // is destroyed first
};

TEST_F(Descriptors, WithAMessageThatHasNone) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  Lingering& socket = lingering();
  ASSERT_TRUE(bad.send(wire::Request{.slot = 0}, socket.get()));
  socket.let_go();
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Descriptors, InsteadOfALeasePage) {
  TestTenant bad(dir_.path());
  Lingering& socket = lingering();
  ASSERT_TRUE(bad.send(wire::Hello{.protocol = wire::kProtocolVersion, .oldest_protocol = 1}, socket.get()));
  socket.let_go();
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Descriptors, InsteadOfAFrame) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join() && bad.open_seat(0, test_uuid(0)));
  Lingering& socket = lingering();
  ASSERT_TRUE(bad.send(wire::FrameGiven{.slot = 0, .bytes = 2 << 20}, socket.get()));
  socket.let_go();
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Descriptors, AsManyAsTravelWithOneMessage) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  Lingering& socket = lingering();
  std::vector<int> fds(253, 0);
  fds.back() = socket.get();
  ASSERT_TRUE(send_with(bad.socket(), wire::encode(wire::Request{.slot = 0}).bytes(), fds));
  socket.let_go();
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Descriptors, BehindAMessageThatEndsTheConnection) {
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  Lingering& socket = lingering();
  // Both are there when the daemon reads the first one, most times; the second is never read.
  ASSERT_TRUE(bad.send(wire::Request{.slot = UINT32_MAX}) || !bad.connected());
  if (bad.send(wire::Request{.slot = 0}, socket.get())) socket.let_go();
  EXPECT_TRUE(bad.is_dropped());
}

TEST_F(Descriptors, WhereNoneBelongsAreNotReceived) {
  const NeverFlushed file;
  if (!file.exists()) GTEST_SKIP() << "needs root and /dev/fuse";
  for (int i = 0; i < 3; ++i) {
    TestTenant bad(dir_.path());
    ASSERT_TRUE(bad.join() && bad.send(wire::Request{.slot = 0}, file.get()));
    EXPECT_TRUE(bad.is_dropped());
    TestTenant early(dir_.path());
    ASSERT_TRUE(early.send(wire::FrameGiven{.slot = 0, .bytes = 2 << 20}, file.get()));
    EXPECT_TRUE(early.is_dropped());
  }
  EXPECT_EQ(file.elsewhere(), 0u);
}

TEST_F(Descriptors, ThatAreNeverClosedStayOutside) {
  const NeverFlushed file;
  if (!file.exists()) GTEST_SKIP() << "needs root and /dev/fuse";
  const auto hello = wire::encode(wire::Hello{.protocol = wire::kProtocolVersion, .oldest_protocol = 1});
  std::deque<TestTenant> bad;
  // One message is received, and the others wait for its descriptors' end.
  for (const std::size_t count : {100u, 100u, 1u, 1u}) {
    const std::vector<int> fds(count, file.get());
    ASSERT_TRUE(send_with(bad.emplace_back(dir_.path()).socket(), hello.bytes(), fds));
    EXPECT_TRUE(eventually([&] { return file.flushes() == 1; }));
    EXPECT_TRUE(bad.size() > 1 || bad.front().is_dropped());
  }
  good_goes_on();
  // Connections of the same account, with and without something unread, are closed all the same.
  const std::array<std::byte, 1> byte{};
  for (int i = 0; i < 500; ++i) {
    const TestTenant one(dir_.path());
    const auto other = connect_stream(dir_.path() + "/" + os::kApiSocket);
    const TestTenant third(dir_.path());
    ASSERT_TRUE(one.connected() && other && third.connected());
    send_with(third.socket(), byte, {file.get()});
  }
  good_goes_on();
  EXPECT_EQ(file.elsewhere(), 0u);
  EXPECT_EQ(file.flushes(), 1);
  // Of both sides of those that still wait: socket, page and process.
  const std::size_t waiting = bad.size() * 5;
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before_ + waiting + 4; })) << open_descriptors();
}

// Of all that it is sent, the daemon receives memory files of the kernel's and NVIDIA's devices.
TEST(Harmless, IsWhatAsksNoFileSystem) {
  const os::FileDescriptor ours(::memfd_create("ours", MFD_CLOEXEC));
  const auto is = [&](int fd) {
    const os::FileDescriptor owned(fd);
    EXPECT_TRUE(owned) << errno;
    return doorkeepers::is_harmless(owned.get(), ours.get());
  };
  EXPECT_TRUE(is(make_page(wire::kLeasePageBytes, true).release()));
  EXPECT_TRUE(is(::memfd_create("unsealed", MFD_CLOEXEC)));
  EXPECT_FALSE(is(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  EXPECT_FALSE(is(::open("/proc/self/status", O_RDONLY | O_CLOEXEC)));
  EXPECT_FALSE(is(::open("/tmp", O_PATH | O_CLOEXEC)));
  EXPECT_FALSE(is(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  EXPECT_FALSE(is(::eventfd(0, EFD_CLOEXEC)));
  EXPECT_FALSE(is(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)));
}

// The daemon that closed such a descriptor itself left a process that SIGKILL did not end, with its locks.
TEST(DescriptorsOfAKilledDaemon, KeepNothingOfIt) {
  const TemporaryDirectory dir;
  ASSERT_EQ(::chmod(dir.path().c_str(), 0755), 0);
  auto gpus = fake_inventory(1);  // of this process's number: both daemons want its lock
  const base::GpuUuid gpu = gpus->gpus()[0].uuid;
  const auto make = [&] { return Daemon::make(TestDaemon::options_in(dir.path()), std::move(gpus)); };
  OtherProcess killed([&] {
    server::set_log_level(server::LogLevel::kError);
    auto daemon = make();
    return daemon ? (*daemon)->run() : daemon.error().exit_code;
  });
  OtherProcess next([&] {
    const auto daemon = make();
    if (!daemon) std::fprintf(stderr, "%s\n", daemon.error().error.message().c_str());
    return daemon ? 0 : 1;
  });
  OtherProcess other_user([&] {
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 2;
    TestTenant tenant(dir.path());
    return tenant.join() && tenant.open_seat(0, gpu) && tenant.request() && tenant.wait_granted() ? 0 : 1;
  });
  const NeverFlushed file;
  if (!file.exists()) GTEST_SKIP() << "needs root and /dev/fuse";
  killed.begin();
  ASSERT_TRUE(eventually([&] { return TestTenant(dir.path()).connected(); }));
  TestTenant bad(dir.path());
  ASSERT_TRUE(bad.send(wire::Hello{.protocol = wire::kProtocolVersion, .oldest_protocol = 1}, file.get()));
  EXPECT_TRUE(bad.is_dropped());
  EXPECT_TRUE(eventually([&] { return file.flushes() == 1; }));
  EXPECT_EQ(other_user.run(), 0);
  ASSERT_EQ(::kill(killed.pid(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] {
    const auto info = server::process_info(killed.pid());
    return !info || info->state == 'Z';
  }));
  EXPECT_EQ(next.run(), 0);
  EXPECT_EQ(file.flushes(), 1);
}

// Attack: a user ends the processes that receive descriptors; or there were too many processes for them.
TEST_F(Descriptors, OfTenantsThatComeWhileDoorkeepersEnd) {
  int ended = 0;
  for (int round = 0; round < 3; ++round) {
    ended += end_doorkeepers();
    TestTenant tenant(dir_.path());
    EXPECT_TRUE(tenant.join()) << "in round " << round;
  }
  // Not in each round: a doorkeeper whose guard is being killed may still serve a tenant. When it is gone, there is
  // none until one is needed.
  EXPECT_GE(ended, 1);
}

// An empty message may bring descriptors as any other.
TEST_F(Descriptors, WithAnEmptyMessage) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const os::FileDescriptor near(ends[0]);
  const os::FileDescriptor far(ends[1]);
  EXPECT_FALSE(os::has_unread(near.get()));
  ASSERT_TRUE(send_with(far.get(), {}, {0}));
  EXPECT_TRUE(os::has_unread(near.get()));
}

// The end of a peer that has not read everything is an error, which comes before what the peer has sent.
TEST_F(Descriptors, BehindAnError) {
  for (const int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends), 0);
    const os::FileDescriptor near(ends[0]);
    os::FileDescriptor far(ends[1]);
    const std::array<std::byte, 1> byte{};
    ASSERT_TRUE(os::send_message(near.get(), byte) && send_with(far.get(), byte, {0}));
    far.reset();
    EXPECT_TRUE(os::has_unread(near.get()));
  }
}

TEST_F(Descriptors, OnTheApisSocket) {
  // Whether the kernel lets it through or not.
  send_to_the_api();
}

class DescriptorsOnAnOlderKernel : public Descriptors {
 protected:
  DaemonOptions options() override {
    auto options = Descriptors::options();
    options.without_pass_rights = true;
    return options;
  }
};

TEST_F(DescriptorsOnAnOlderKernel, OnTheApisSocket) { EXPECT_GE(send_to_the_api(), 2); }

TEST_F(Descriptors, ToTheLockOfAGpu) {
  const os::FileDescriptor visitor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "gpumux-gpu-" + fake_inventory(1)->gpus()[0].uuid_text;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Lingering& socket = lingering();
  ASSERT_EQ(::connect(visitor.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
  const std::array<std::byte, 1> byte{};
  if (send_with(visitor.get(), byte, {socket.get()})) socket.let_go();
  // The answer, or the reset of a connection that was closed with something unread in it.
  char answer[512];
  static_cast<void>(::recv(visitor.get(), answer, sizeof answer, 0));
}

TEST_F(Descriptors, WithTheDaemonsEnd) {
  // Said nothing, and will not be read: in a connection that is open, and in one that the daemon has not accepted yet.
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.join());
  Lingering& socket = lingering();
  auto stopped = std::async(std::launch::async, [&] { daemon_->stop(); });
  if (bad.send(wire::Request{.slot = 0}, socket.get())) socket.let_go();
  EXPECT_EQ(stopped.wait_for(kPatience), std::future_status::ready) << "the daemon cannot stop";
  lingering_.clear();
  stopped.wait();
  daemon_.reset();
  daemon_.emplace(options(), fake_inventory(2));
  good_.emplace(dir_.path(), "good");
  ASSERT_TRUE(good_->join() && good_->open_seat(0, test_uuid(0)));
}

// A lease page of the right size that holds a great deal of memory beyond its end: giving that back takes a while.
TEST_F(Descriptors, APageWithMoreThanItShows) {
  os::FileDescriptor page(::memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(page.get(), static_cast<off_t>(wire::kLeasePageBytes)), 0);
  ASSERT_EQ(::fallocate(page.get(), FALLOC_FL_KEEP_SIZE, 0, 64 << 20), 0);
  ASSERT_EQ(::fcntl(page.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  TestTenant bad(dir_.path());
  ASSERT_TRUE(bad.send(wire::Hello{.protocol = wire::kProtocolVersion, .oldest_protocol = 1}, page.get()));
  const auto refused = bad.receive_a<wire::Refused>();
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason, wire::Reason::kBadPage);
  EXPECT_TRUE(bad.is_dropped());
}

}  // namespace
}  // namespace gpumux::daemon
