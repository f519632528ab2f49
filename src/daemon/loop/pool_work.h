// SPDX-License-Identifier: Apache-2.0
// Work that takes too long for the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <utility>

namespace gpumux::daemon {

// Calls `work` by `executor`, on another thread; then `then` with its result on the loop's. An exception of `work` (no
// memory) is thrown again on the loop's thread, which reports it and goes on; `then` is not called.
template <class Executor, class Work, class Then>
void work_then(Executor&& executor, boost::asio::io_context& loop, Work work, Then then) {
  boost::asio::post(executor, [&loop, work = std::move(work), then = std::move(then)]() mutable {
    try {
      boost::asio::post(loop, [then = std::move(then), result = work()]() mutable { then(std::move(result)); });
    } catch (...) {
      boost::asio::post(loop, [thrown = std::current_exception()] { std::rethrow_exception(thrown); });
    }
  });
}

}  // namespace gpumux::daemon
