// SPDX-License-Identifier: Apache-2.0
#include "daemon/loop/trace_file.h"

#include <boost/asio/post.hpp>
#include <mutex>
#include <utility>

#include "os/durable_file.h"
#include "os/output_file.h"
#include "server/loop/log.h"

namespace gpumux::daemon {

struct TraceFile::Shared {
  os::FileDescriptor file;
  std::mutex mutex;
  std::string waiting;         // lines that the writer has not taken yet
  bool writer_posted = false;  // the writer will take them
  bool failed = false;

  // The worker's thread: writes all that waits.
  void drain() {
    for (;;) {
      std::string lines;
      {
        const std::lock_guard lock(mutex);
        if (waiting.empty() || failed) {
          writer_posted = false;
          return;
        }
        lines.swap(waiting);
      }
      if (const auto written = os::write_all(file.get(), lines, "the trace file"); !written) {
        server::log_error("cannot write to the trace file any longer", {{"errno", written.error().system_errno}});
        const std::lock_guard lock(mutex);
        failed = true;
      }
    }
  }
};

base::Status TraceFile::open(const std::string& path) {
  auto shared = std::make_shared<Shared>();
  auto opened = os::open_output(path, os::Write::kAtItsEnd, 0644);
  if (!opened) return base::fail(opened.error().code, "cannot open the trace file: " + opened.error().message());
  shared->file = std::move(*opened);
  shared_ = std::move(shared);
  return {};
}

void TraceFile::write(const TraceEntry& entry) {
  if (shared_ == nullptr) return;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->failed || shared_->waiting.size() > kMaxTraceBacklogBytes) return;
    append_json_line(shared_->waiting, entry);
    if (std::exchange(shared_->writer_posted, true)) return;
  }
  boost::asio::post(worker_, [shared = shared_] { shared->drain(); });
}

void TraceFile::flush() {
  if (shared_ != nullptr) boost::asio::post(worker_, [shared = shared_] { shared->drain(); });
}

}  // namespace gpumux::daemon
