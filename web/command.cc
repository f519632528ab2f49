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
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "api_client/client.h"
#include "base/units.h"
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"
#include "cli/jobs/job_calls.h"
#include "os/durable_file.h"
#include "os/file_descriptor.h"
#include "os/runtime_dir.h"
#include "web/server.h"

namespace gpumux::cli {
namespace {

namespace asio = boost::asio;
using web::Server;

constexpr char kWebName[] = "web";

std::string host_name() {
  char name[256]{};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "HOST";
}

// A file with a link, which goes with the command. A command line may name it: every process sees the arguments of a
// browser.
class LinkFile {
 public:
  LinkFile() = default;
  LinkFile(const LinkFile&) = delete;
  LinkFile& operator=(const LinkFile&) = delete;
  ~LinkFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  base::Status write(const std::filesystem::path& path, const std::string& content, mode_t mode) {
    const auto folder = os::open_directory(path.has_parent_path() ? path.parent_path().string() : ".");
    if (!folder) return tl::unexpected(folder.error());
    path_ = path.string();
    return os::replace_file_at(folder->get(), path.filename().c_str(), content, mode);
  }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Sends a browser on to a link. Only its owner can read it.
base::Status write_page(LinkFile& file, const std::string& link, std::uint16_t port) {
  const auto dir = os::make_user_runtime_dir();
  if (!dir) return tl::unexpected(dir.error());
  return file.write(std::filesystem::path(*dir) / ("web-" + std::to_string(port) + ".html"),
                    "<!doctype html><meta charset=utf-8><title>gpumux</title>"
                    "<meta http-equiv=refresh content=\"0;url=" +
                        link + "\">\n",
                    0600);
}

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

// A port that a person names.
CLI::Validator port_number() {
  return {[](const std::string& value) {
            if (base::parse_integer(value, 1, UINT16_MAX)) return std::string();
            return "'" + value + "' is not a port: name one from 1 to 65535";
          },
          ""};
}

// The view begins without a daemon, too: it asks again every second.
void say_if_there_is_no_daemon(const std::string& runtime_dir) {
  const auto client = api_client::Client::connect({runtime_dir});
  if (client) return;
  say_error(kWebName, client.error().message());
  std::cerr << "The page goes on by itself when a daemon answers." << std::endl;
}

enum class LinkGoes { kToTerminal, kToBrowser, kToFile };

class View {
 public:
  View(LinkGoes way, std::string link_file) : way_(way), link_file_(std::move(link_file)) {}

  int serve(web::Settings settings) {
    settings.user = own_user_name();
    settings.host = host_name();
    // The file always has a link that works.
    if (way_ == LinkGoes::kToFile) settings.on_session = [this] { hand_out_link_or_say(); };
    const std::string host = settings.host;
    say_if_there_is_no_daemon(settings.runtime_dir);
    auto server = Server::open(io_, std::move(settings));
    if (!server) return report_error(kWebName, server.error());
    server_ = std::move(*server);
    const std::string port = std::to_string(server_->port());
    if (way_ == LinkGoes::kToTerminal) std::cout << "Open this link in a browser. It works once.\n\n";
    if (const base::Status handed_out = hand_out_link(); !handed_out) return report_error(kWebName, handed_out.error());
    if (way_ == LinkGoes::kToBrowser) std::cout << "A browser opens " << printable(file_.path()) << ".\n";
    if (way_ == LinkGoes::kToFile)
      std::cout << "The link is in " << printable(file_.path())
                << ". It works once, and the next one takes its place.\n";
    const bool has_keys = way_ != LinkGoes::kToFile;
    std::cout << (has_keys ? "\nEnter prints another link. Ctrl+C ends the view.\n" : "")
              << "From another machine, first: ssh -N -L " << port << ":127.0.0.1:" << port << " " << printable(host)
              << "\n"
              << std::endl;
    asio::signal_set signals(io_, SIGINT, SIGTERM);
    signals.async_wait([this](boost::system::error_code, int) { io_.stop(); });
    // In the background a read of the terminal fails instead of stopping the process.
    std::signal(SIGTTIN, SIG_IGN);
    std::optional<Lines> lines;
    if (has_keys) {
      lines.emplace(io_, [this] {
        way_ = LinkGoes::kToTerminal;
        hand_out_link_or_say();
      });
    }
    io_.run();
    return kExitOk;
  }

 private:
  base::Status hand_out_link() {
    const auto link = server_->new_link();
    if (!link) return tl::unexpected(link.error());
    switch (way_) {
      case LinkGoes::kToTerminal: std::cout << "  " << *link << std::endl; return {};
      case LinkGoes::kToFile: return file_.write(link_file_, *link + "\n", 0640);
      case LinkGoes::kToBrowser: break;
    }
    GPUMUX_TRY(write_page(file_, *link, server_->port()));
    return open_in_browser(file_.path());
  }

  void hand_out_link_or_say() {
    if (const base::Status handed_out = hand_out_link(); !handed_out) report_error(kWebName, handed_out.error());
  }

  asio::io_context io_{1};
  LinkGoes way_;
  const std::string link_file_;
  LinkFile file_;
  std::unique_ptr<Server> server_;
};

}  // namespace

int web_command(const std::vector<char*>& arguments) {
  web::Settings settings;
  bool open = false;
  std::string link_file;
  CLI::App app("Shows GPUs, programs, memory, jobs and accounting in a browser on this machine.", "gpumux web");
  app.add_option("--port", settings.port, "Listen on this port of 127.0.0.1 and [::1]; any that is free if not given")
      ->type_name("N")
      ->check(port_number());
  app.add_flag("--read-only", settings.read_only, "Show only: refuse to cancel, hold, suspend or reorder jobs");
  auto* const to_browser =
      app.add_flag("--open", open, "Open the page in the desktop's browser, instead of printing a link");
  app.add_option("--link-file", link_file,
                 "Write the link to FILE, which its owner and group may read, instead of printing it; after its use "
                 "the next one")
      ->type_name("FILE")
      ->excludes(to_browser);
  add_runtime_dir(app, settings.runtime_dir);
  app.footer(R"(The command prints a link and serves the page until Ctrl+C. A link works once, in one browser; Enter
prints another one. The page has your rights: it shows what `gpumux status` and `gpumux queue` show you, and changes
your jobs. Nothing listens beyond 127.0.0.1. docs/web.md says how to see it from another machine, by ssh.

Examples:
  gpumux web
  gpumux web --open
  gpumux web --port 9841 --read-only

Exit status: 0 ended by Ctrl+C or SIGTERM, 1 failed (for example, the port is taken), 2 wrong usage.)");
  if (const auto exit_status = parse_command_line(app, arguments)) return *exit_status;
  const LinkGoes way = open ? LinkGoes::kToBrowser : link_file.empty() ? LinkGoes::kToTerminal : LinkGoes::kToFile;
  return View(way, std::move(link_file)).serve(std::move(settings));
}

}  // namespace gpumux::cli
