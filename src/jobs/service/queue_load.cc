// SPDX-License-Identifier: Apache-2.0
// Hands in jobs at a running daemon, as many clients at once, and looks at lists: bench/jobs/run.py reads what it
// prints.
//
//   gpumux_queue_load SOCKET submit CLIENTS JOBS [held]   durable submissions: rate, round trips
//   gpumux_queue_load SOCKET list TIMES TARGET            GET of an address: time for each, bytes
//
// Each client keeps one connection, and asks for the next thing when it has its answer.
#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using Request = http::request<http::string_body>;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "gpumux_queue_load: %s\n", why.c_str());
  std::exit(1);
}

class Connection {
 public:
  explicit Connection(const std::string& path) : socket_(io_) {
    boost::system::error_code error;
    socket_.connect(path, error);
    if (error) fail("cannot connect to " + path + ": " + error.message());
  }

  // The bytes of the answer's body, which is read and not kept.
  std::size_t ask(const Request& request, unsigned expected) {
    boost::system::error_code error;
    http::write(socket_, request, error);
    if (error) fail("cannot ask: " + error.message());
    http::response_parser<http::buffer_body> answer;
    answer.body_limit(boost::none);
    http::read_header(socket_, buffer_, answer, error);
    std::size_t bytes = 0;
    while (!error && !answer.is_done()) {
      answer.get().body().data = piece_.data();
      answer.get().body().size = piece_.size();
      http::read(socket_, buffer_, answer, error);
      if (error == http::error::need_buffer) error = {};
      bytes += piece_.size() - answer.get().body().size;
    }
    if (error) fail("no answer: " + error.message());
    if (answer.get().result_int() != expected)
      fail("the daemon answers " + std::string(piece_.data(), std::min(bytes, std::size_t{300})));
    return bytes;
  }

 private:
  asio::io_context io_;
  asio::local::stream_protocol::socket socket_;
  boost::beast::flat_buffer buffer_;
  std::array<char, 65536> piece_{};
};

Request make_request(http::verb verb, const std::string& target, std::string body = "") {
  Request request(verb, target, 11, std::move(body));
  request.set(http::field::host, "gpumux");
  request.prepare_payload();
  return request;
}

double milliseconds(Clock::duration time) { return std::chrono::duration<double, std::milli>(time).count(); }

void submit(const std::string& socket, int clients, int jobs, bool held) {
  // As large as an ordinary user's environment: 40 variables, 2 KiB.
  std::string environment;
  for (int i = 0; i < 40; ++i) {
    environment += (i == 0 ? "\"" : ", \"") + std::string("SOME_VARIABLE_") + std::to_string(i) +
                   "=a value of some length, as they have\"";
  }
  std::atomic<int> left = jobs;
  std::vector<std::vector<double>> times(static_cast<std::size_t>(clients));
  std::vector<std::thread> threads;
  const auto begin = Clock::now();
  for (int client = 0; client < clients; ++client) {
    threads.emplace_back([&, client] {
      Connection connection(socket);
      for (int i = 0; left.fetch_sub(1) > 0; ++i) {
        const std::string token = std::to_string(::getpid()) + "-" + std::to_string(client) + "-" + std::to_string(i);
        const Request request = make_request(
            http::verb::post, "/v1/jobs",
            "{\"arguments\": [\"true\"], \"directory\": \"/\", \"output\": \"/dev/null\", \"token\": \"" + token +
                "\", \"held\": " + (held ? "true" : "false") + ", \"environment\": [" + environment + "]}");
        const auto asked = Clock::now();
        connection.ask(request, 201);
        times[static_cast<std::size_t>(client)].push_back(milliseconds(Clock::now() - asked));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = milliseconds(Clock::now() - begin) / 1000;
  std::vector<double> all;
  for (const auto& some : times) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  std::printf("jobs=%zu seconds=%.3f per_second=%.0f median_ms=%.3f p99_ms=%.3f\n", all.size(), seconds,
              static_cast<double>(all.size()) / seconds, all[all.size() / 2], all[all.size() * 99 / 100]);
}

void list(const std::string& socket, int times, const std::string& target) {
  Connection connection(socket);
  const Request request = make_request(http::verb::get, target);
  std::vector<double> all;
  std::size_t bytes = 0;
  for (int i = 0; i < times; ++i) {
    const auto asked = Clock::now();
    bytes = connection.ask(request, 200);
    all.push_back(milliseconds(Clock::now() - asked));
  }
  std::sort(all.begin(), all.end());
  std::printf("times=%d median_ms=%.3f least_ms=%.3f bytes=%zu\n", times, all[all.size() / 2], all[0], bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc >= 5 ? argv[2] : "";
  if (what == "submit") {
    submit(argv[1], std::atoi(argv[3]), std::atoi(argv[4]), argc > 5);
  } else if (what == "list") {
    list(argv[1], std::atoi(argv[3]), argv[4]);
  } else {
    std::fprintf(stderr, "usage: gpumux_queue_load SOCKET submit CLIENTS JOBS [held] | SOCKET list TIMES TARGET\n");
    return 2;
  }
}
