// SPDX-License-Identifier: Apache-2.0
// gpumux-mover: moves the memory of a node's programs between its GPUs and host memory. Started by gpumuxd, with the
// connection to it as standard input; never by people.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/version.h"
#include "cuda/driver.h"
#include "mover/process.h"

namespace {

using namespace gpumux;

void* find(void* library, const char* symbol) { return ::dlsym(library, symbol); }

int move(os::FileDescriptor connection) {
  auto doors = mover::Doors::start();
  if (!doors) {
    std::fprintf(stderr, "gpumux-mover: %s\n", doors.error().message().c_str());
    return 1;
  }
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "gpumux-mover: no driver: %s\n", ::dlerror());
    return 1;
  }
  static cuda::Driver driver;
  cuda::load_driver(driver, find, library);
  if (driver.cuInit == nullptr || driver.cuInit(0) != cuda::CUDA_SUCCESS) {
    std::fprintf(stderr, "gpumux-mover: the driver does not start\n");
    return 1;
  }
  // Without the ends of threads and contexts: the system does that.
  auto* const process = new mover::Process(driver, std::move(connection), std::move(*doors));
  const base::Status done = process->run();
  if (!done) std::fprintf(stderr, "gpumux-mover: %s\n", done.error().message().c_str());
  ::_exit(done ? 0 : 1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("gpumux-mover %s\n", base::version());
    return 0;
  }
  struct stat status {};
  if (argc != 1 || ::fstat(STDIN_FILENO, &status) != 0 || !S_ISSOCK(status.st_mode)) {
    std::fprintf(
        stderr,
        "gpumux-mover: moves memory for gpumuxd. It is started by gpumuxd, with a connection to it as standard "
        "input, and is of no use otherwise.\n");
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  // Each chunk that waits to be saved has a descriptor, and each frame.
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  os::FileDescriptor connection(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const os::FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!connection || !nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0) return 1;
  ::fcntl(connection.get(), F_SETFL, O_NONBLOCK);
  return move(std::move(connection));
}
