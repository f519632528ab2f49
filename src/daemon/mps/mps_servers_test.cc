// SPDX-License-Identifier: Apache-2.0
// Goal: a supervisor that lives on, and does not answer, costs the daemon nothing for ever. Method: a folder that looks
// like one of an earlier daemon's server. Its claim is locked by the test, as a stopped supervisor keeps it.
#include "daemon/mps/mps_servers.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "os/durable_file.h"
#include "os/installation.h"
#include "tests/unit/temporary_directory.h"
#include "wire/runner_records.h"

namespace gpumux::daemon {
namespace {

using namespace std::chrono_literals;

TEST(MpsServers, ASupervisorThatDoesNotEndIsGivenUp) {
  const TemporaryDirectory dir;
  const std::string folder = dir.path() + "/mps";
  const std::string runner = folder + "/runners/60001.1";
  std::filesystem::create_directories(runner);
  ASSERT_EQ(::chmod(runner.c_str(), 0700), 0);
  const auto directory = os::open_directory(runner);
  ASSERT_TRUE(directory);
  wire::RunnerClaim claim;
  claim.runner_pid = static_cast<std::uint32_t>(::getpid());
  claim.boot_id = os::boot_id();
  const auto claimed = os::claim_file_at(directory->get(), wire::kClaimFile, wire::encode_claim(claim));
  ASSERT_TRUE(claimed);
  ASSERT_TRUE(
      os::write_new_file_at(directory->get(), wire::kEndFile, wire::encode_end({.job = 60001, .attempt = 1}), 0600));
  ASSERT_EQ(runners::look_at_runner(runner)->standing, runners::RunnerStanding::kAlive);
  ASSERT_TRUE(runners::look_at_runner(runner)->end);

  boost::asio::io_context io;
  boost::asio::thread_pool pool(1);
  MpsServers servers(io, pool);
  MpsServers::Places places;
  places.folder = folder;
  places.users_folder = folder + "/users";
  places.runners.jobs_dir = folder + "/runners";
  servers.open(std::move(places));
  // Nothing more happens when it has given up.
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  auto quiet_since = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() < deadline && std::chrono::steady_clock::now() - quiet_since < 1s) {
    io.restart();
    if (io.run_for(50ms) > 0) quiet_since = std::chrono::steady_clock::now();
    ::usleep(10'000);
  }
  EXPECT_LT(std::chrono::steady_clock::now(), deadline) << "it still tries";
  pool.join();
}

}  // namespace
}  // namespace gpumux::daemon
