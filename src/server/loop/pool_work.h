// SPDX-License-Identifier: Apache-2.0
// Work that takes too long for the loop's thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace gpumux::server {

// A guess: lack of memory may be over by then.
inline constexpr std::chrono::milliseconds kWorkAgainAfter = std::chrono::seconds(1);

template <class Executor, class Work, class Then>
class PoolWork : public std::enable_shared_from_this<PoolWork<Executor, Work, Then>> {
 public:
  PoolWork(Executor executor, boost::asio::io_context& loop, Work work, Then then,
           std::chrono::milliseconds again_after)
      : executor_(std::move(executor)),
        loop_(loop),
        again_(loop),
        again_after_(again_after),
        work_(std::move(work)),
        then_(std::move(then)) {}

  void start() {
    boost::asio::post(executor_, [self = this->shared_from_this()] {
      try {
        boost::asio::post(self->loop_, [self, result = self->work_()]() mutable { self->then_(std::move(result)); });
      } catch (...) {
        boost::asio::post(self->loop_, [self, thrown = std::current_exception()] {
          self->start_again();
          std::rethrow_exception(thrown);
        });
      }
    });
  }

 private:
  void start_again() {
    again_.expires_after(again_after_);
    again_.async_wait([self = this->shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->start();
    });
  }

  Executor executor_;
  boost::asio::io_context& loop_;
  boost::asio::steady_timer again_;
  const std::chrono::milliseconds again_after_;
  Work work_;
  Then then_;
};

// Calls `work` by `executor`, on another thread; then `then` with its result on the loop's. An exception of `work` (no
// memory) is thrown again on the loop's thread, which reports it and goes on. The work is done again after a while,
// until there is a result for `then`.
template <class Executor, class Work, class Then>
void work_then(const Executor& executor, boost::asio::io_context& loop, Work work, Then then,
               std::chrono::milliseconds again_after = kWorkAgainAfter) {
  std::make_shared<PoolWork<Executor, Work, Then>>(executor, loop, std::move(work), std::move(then), again_after)
      ->start();
}
template <class Work, class Then>
void work_then(boost::asio::thread_pool& pool, boost::asio::io_context& loop, Work work, Then then,
               std::chrono::milliseconds again_after = kWorkAgainAfter) {
  work_then(pool.get_executor(), loop, std::move(work), std::move(then), again_after);
}

}  // namespace gpumux::server
