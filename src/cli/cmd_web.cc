// SPDX-License-Identifier: Apache-2.0
// gpumux web: GPUs, programs and jobs in a browser.
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/streambuf.hpp>
#include <csignal>
#include <cstdint>
#include <functional>
#include <iostream>
#include <optional>
#include <string>

#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "jobs/commands/job_calls.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/runtime_dir.h"
#include "view/web/server.h"

namespace gpumux::cli {
namespace {

namespace asio = boost::asio;
using view::web::Server;

constexpr char kName[] = "web";

std::string host_name() {
  char name[256]{};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "HOST";
}

// A file that sends its reader on to a link. Only its owner can read it, and a command line names the file alone:
// everybody sees the arguments of a browser.
class LinkFile {
 public:
  LinkFile() = default;
  LinkFile(const LinkFile&) = delete;
  LinkFile& operator=(const LinkFile&) = delete;
  ~LinkFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  base::Status write(const std::string& link, std::uint16_t port) {
    const auto dir = os::make_user_runtime_dir();
    if (!dir) return tl::unexpected(dir.error());
    const auto folder = os::open_directory(*dir);
    if (!folder) return tl::unexpected(folder.error());
    const std::string name = "web-" + std::to_string(port) + ".html";
    path_ = *dir + "/" + name;
    const std::string page =
        "<!doctype html><meta charset=utf-8><title>gpumux</title>"
        "<meta http-equiv=refresh content=\"0;url=" +
        link + "\">\n";
    return os::replace_file_at(folder->get(), name.c_str(), page, 0600);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The desktop's own choice of a browser.
base::Status open_in_browser(const std::string& path) {
  std::string program = "xdg-open";
  std::string file = path;
  char* const arguments[] = {program.data(), file.data(), nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments, environ);
  if (failed != 0) return base::fail_errno(failed, "cannot start xdg-open");
  return {};
}

// Calls back for each line of the standard input, until it ends. A terminal of another user's cannot be read so.
class Lines {
 public:
  Lines(asio::io_context& io, std::function<void()> on_line) : input_(io), on_line_(std::move(on_line)) {
    // Opened anew: that a read does not block is then not also so for the shell, which goes on with this terminal.
    const int fd = ::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    boost::system::error_code error;
    if (fd >= 0) input_.assign(fd, error);
    if (fd >= 0 && !error) read();
  }

 private:
  void read() {
    asio::async_read_until(input_, buffer_, '\n', [this](boost::system::error_code error, std::size_t size) {
      if (error) return;
      buffer_.consume(size);
      on_line_();
      read();
    });
  }

  asio::posix::stream_descriptor input_;
  asio::streambuf buffer_{4096};
  std::function<void()> on_line_;
};

int serve(view::web::Settings settings, bool open) {
  asio::io_context io(1);
  settings.user = own_user_name();
  settings.host = host_name();
  const std::string host = settings.host;
  auto server = Server::open(io, std::move(settings));
  if (!server) return report_error(kName, server.error());
  const std::uint16_t port = (*server)->port();
  const auto print_link = [&]() -> std::optional<int> {
    const auto link = (*server)->new_link();
    if (!link) return report_error(kName, link.error());
    std::cout << "  " << *link << std::endl;
    return {};
  };
  LinkFile file;
  if (open) {
    const auto link = (*server)->new_link();
    base::Status opened = link ? file.write(*link, port) : base::Status(tl::unexpected(link.error()));
    if (opened) opened = open_in_browser(file.path());
    if (!opened) return report_error(kName, opened.error());
    std::cout << "A browser opens " << printable(file.path()) << ".\n";
  } else {
    std::cout << "Open this link in a browser. It works once.\n\n";
    if (const auto failed = print_link()) return *failed;
  }
  std::cout << "\nEnter prints another link. Ctrl+C ends the view.\n"
               "From another machine, first: ssh -N -L "
            << port << ":127.0.0.1:" << port << " " << printable(host) << "\n"
            << std::endl;
  asio::signal_set signals(io, SIGINT, SIGTERM);
  signals.async_wait([&](boost::system::error_code, int) { io.stop(); });
  // In the background a read of the terminal fails instead of stopping the process.
  std::signal(SIGTTIN, SIG_IGN);
  const Lines lines(io, [&] { print_link(); });
  io.run();
  return kExitOk;
}

}  // namespace

int web_command(const std::vector<char*>& arguments) {
  view::web::Settings settings;
  std::uint64_t port = 0;
  bool open = false;
  CLI::App app("Shows GPUs, programs, memory, jobs and accounting in a browser on this machine.", "gpumux web");
  app.add_option("--port", port, "Listen on this port of 127.0.0.1; any that is free if not given")
      ->type_name("N")
      ->check(whole_number(0));
  app.add_flag("--read-only", settings.read_only, "Show only: refuse to cancel, hold, suspend or reorder jobs");
  app.add_flag("--open", open, "Open the page in the desktop's browser, instead of printing a link");
  app.add_option("--runtime-dir", settings.runtime_dir, "Ask the daemon whose sockets are in DIR")->type_name("DIR");
  app.footer(R"(The command prints a link and serves the page until Ctrl+C. A link works once, in one browser; Enter
prints another one. The page has your rights: it shows what `gpumux status` and `gpumux queue` show you, and changes
your jobs. Nothing listens beyond 127.0.0.1. docs/web.md says how to see it from another machine, by ssh.

Examples:
  gpumux web
  gpumux web --open
  gpumux web --port 9841 --read-only

Exit status: 0 ended by Ctrl+C or SIGTERM, 1 failed (for example, the port is taken), 2 wrong usage.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  if (port > UINT16_MAX) {
    say_error(kName, "--port: '" + std::to_string(port) + "' is not a port: name one from 1 to 65535");
    return kExitUsage;
  }
  settings.port = static_cast<std::uint16_t>(port);
  return serve(std::move(settings), open);
}

}  // namespace gpumux::cli
