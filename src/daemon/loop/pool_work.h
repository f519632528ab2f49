// SPDX-License-Identifier: Apache-2.0
// Work that takes too long for the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace gpumux::daemon {

// Calls `work` by `executor`, on another thread; then `then` with its result on the loop's.
template <class Executor, class Work, class Then>
void work_then(Executor&& executor, boost::asio::io_context& loop, Work work, Then then) {
  boost::asio::post(executor, [&loop, work = std::move(work), then = std::move(then)]() mutable {
    boost::asio::post(loop, [then = std::move(then), result = work()]() mutable { then(std::move(result)); });
  });
}

}  // namespace gpumux::daemon
