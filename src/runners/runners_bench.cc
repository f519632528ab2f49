// SPDX-License-Identifier: Apache-2.0
// How long it takes from the daemon's decision to the job's first instruction, and to its durable end.
//
//   runners_bench [--jobs N] [--dir FOLDER]     FOLDER: where the jobs' directories are; its disk's syncs count
//
// Each job is prepared, started and waited for, one after the other, with nothing kept warm between them. It reports
// itself when its first instructions ran. Figures are for a machine with a free core; ctest only sees that it runs.
#include <poll.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runners/runners.h"

namespace {

using namespace gpumux;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "runners_bench: %s\n", what.c_str());
  std::exit(1);
}

void wait_for_end(int connection) {
  for (;;) {
    pollfd polled{connection, POLLIN, 0};
    if (::poll(&polled, 1, 20'000) != 1) fail("no message of a runner in 20 s");
    const auto message = runners::receive_from_runner(connection);
    if (!message) fail(message.error().message());
    if (const auto* refused = std::get_if<wire::RunnerRefused>(&*message)) fail(refused->text);
    if (const auto* ended = std::get_if<wire::RunnerEnded>(&*message)) {
      if (ended->how != wire::EndHow::kExited || ended->code != 0) fail(std::string("a job failed: ") + ended->text);
      return;
    }
  }
}

void print(const char* what, std::vector<double>& milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto at = [&](double part) {
    return milliseconds[static_cast<std::size_t>(part * static_cast<double>(milliseconds.size() - 1))];
  };
  std::printf("%-40s median %6.2f ms   p90 %6.2f ms   p99 %6.2f ms   worst %6.2f ms\n", what, at(0.5), at(0.9),
              at(0.99), at(1));
}

}  // namespace

int main(int argc, char** argv) {
  int jobs = 200;
  std::string folder = "/var/tmp";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--jobs") == 0) jobs = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--dir") == 0) folder = argv[i + 1];
  }
  folder += "/gpumux-runners-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) fail("cannot make " + folder);
  const runners::RunnerPlaces places{folder + "/jobs", GPUMUX_RUNNER, ""};
  if (::mkdir(places.jobs_dir.c_str(), 0700) != 0) fail("cannot make " + places.jobs_dir);
  std::vector<double> first;
  std::vector<double> whole;
  for (int job = 1; job <= jobs; ++job) {
    wire::RunnerSpec spec;
    spec.job = static_cast<std::uint64_t>(job);
    spec.attempt = 1;
    spec.uid = ::geteuid();
    spec.gid = ::getegid();
    spec.directory = folder;
    spec.arguments = {GPUMUX_TEST_JOB, "now"};
    spec.environment = {"PATH=/usr/bin:/bin"};
    spec.log_path = folder + "/" + std::to_string(job) + ".log";
    const std::int64_t began = now_ns();
    if (const auto prepared = runners::prepare_runner(places, spec); !prepared) fail(prepared.error().message());
    const auto connection = runners::start_runner(places, runners::runner_directory(places, spec.job, 1));
    if (!connection) fail(connection.error().message());
    wait_for_end(connection->get());
    const std::int64_t ended = now_ns();
    std::int64_t ran = 0;
    std::ifstream(spec.log_path) >> ran;
    first.push_back(static_cast<double>(ran - began) / 1e6);
    whole.push_back(static_cast<double>(ended - began) / 1e6);
    static_cast<void>(runners::forget_runner(runners::runner_directory(places, spec.job, 1)));
  }
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  std::printf("%d jobs, directories on %s\n", jobs, folder.c_str());
  print("to the job's first instruction", first);
  print("to its end, durable and told", whole);
  return 0;
}
