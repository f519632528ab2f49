// SPDX-License-Identifier: Apache-2.0
// Several threads that do work (pool_work.h), or as many of them as can be made, but at least one.
//
// boost::asio::thread_pool waits for ever in its constructor if it can make one thread and not the next: it joins the
// first, which nothing has told to end.
//
// Throws boost::system::system_error if not even one thread can be made.
#pragma once

#include <boost/asio/thread_pool.hpp>
#include <cstddef>
#include <system_error>
#include <thread>
#include <vector>

#include "server/loop/log.h"

namespace gpumux::server {

class WorkerPool : public boost::asio::thread_pool {
 public:
  explicit WorkerPool(std::size_t threads) : thread_pool(1) {
    more_.reserve(threads);
    try {
      while (size() < threads) more_.emplace_back([this] { attach(); });
    } catch (const std::system_error& e) {
      log_warning("there are fewer threads than wanted",
                  {{"threads", size()}, {"wanted", threads}, {"why", e.code().message()}});
    }
  }
  ~WorkerPool() {
    stop();
    join();
  }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  std::size_t size() const { return 1 + more_.size(); }

  // Returns when the work has been done, or, after stop(), when the threads have ended.
  void join() {
    thread_pool::join();
    for (std::thread& thread : more_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  std::vector<std::thread> more_;
};

}  // namespace gpumux::server
