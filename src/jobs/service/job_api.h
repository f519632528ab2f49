// SPDX-License-Identifier: Apache-2.0
// The API's addresses of jobs, their queue and the ledger; docs/api.md is their contract.
//
// On the loop's thread; work that takes time is done on the queue's pool.
#pragma once

#include <boost/asio/strand.hpp>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "jobs/service/job_queue.h"
#include "jobs/service/job_requests.h"
#include "jobs/service/job_routes.h"
#include "jobs/service/job_view.h"
#include "jobs/service/ledger_keeper.h"
#include "server/api/api_types.h"
#include "server/loop/pool_work.h"
#include "server/peers/access.h"

namespace gpumux::jobs {

class JobApi final : public JobRoutes {
 public:
  // All outlive this object, and it outlives whatever they still call back.
  JobApi(boost::asio::io_context& io, JobQueue& queue, LedgerKeeper& ledger, const server::AccessRules& access);
  // Waits for its work on the queue's pool, which takes no more from here on.
  ~JobApi();
  JobApi(const JobApi&) = delete;
  JobApi& operator=(const JobApi&) = delete;

  server::ApiAnswer answer(const server::ApiRequest& request, const server::RouteMatch& match,
                           std::string_view query) override;
  settings::Privacy privacy() const override { return queue_.config().privacy; }
  QueueFigures figures() const override;

 private:
  struct Found;
  struct Asked;
  server::ApiAnswer submit(const server::ApiRequest& request);
  server::ApiAnswer list(const server::Peer& peer, std::string_view query);
  server::ApiAnswer show(const server::Peer& peer, std::string_view which, bool with_environment);
  server::ApiAnswer wait(const server::Peer& peer, std::string_view which, std::string_view query);
  server::ApiAnswer change(const server::ApiRequest& request, std::string_view which);

  server::ApiAnswer report(const server::Peer& peer, std::string_view query);  // job_api_report.cc

  // The queue itself (job_api_queue.cc).
  server::ApiAnswer queue(const server::Peer& peer);
  server::ApiAnswer change_queue(const server::ApiRequest& request);
  server::ApiAnswer change_gpus(const server::ApiRequest& request, std::string_view which);
  server::ApiAnswer change_user(const server::ApiRequest& request, std::string_view which);
  std::function<void(const base::Status&)> answer_queue(const server::Peer& peer, const server::ApiReply& reply);

  // No `uid`: the job's user is not known.
  Sight sight(const server::Peer& peer, std::optional<std::uint32_t> uid) const;
  using Starts = std::map<JobId, base::TimePoint>;
  JobNow now_of(const server::Peer& peer, JobId job, const Starts& starts) const;
  base::Result<std::shared_ptr<const Submission>> prepare(const std::string& body, const server::Peer& peer,
                                                          bool by_admin) const;
  void list_page(const server::Peer& peer, store::Page page, server::ApiReply reply);
  void show_job(const server::Peer& peer, std::string which, JobId job, bool with_environment, server::ApiReply reply);
  void find_job(std::string_view which, std::function<void(base::Result<store::StoredJob>)> found);
  static base::Result<Found> look_up(const store::JobStore& store, const JobName& name);
  void change_found(const server::Peer& peer, const std::vector<JobName>& names,
                    const std::vector<base::Result<Found>>& jobs, const JobQueue::Change& change,
                    const server::ApiReply& reply);
  void change_all(std::optional<std::uint32_t> uid, const JobQueue::Change& change, const server::ApiReply& reply);
  void change_jobs(std::vector<Asked> asked, const JobQueue::Change& change, const server::ApiReply& reply);

  template <class Work, class Then>
  void on_pool(Work work, Then then) {
    server::work_then(queue_.pool().get_executor(), io_, std::move(work), std::move(then));
  }

  boost::asio::io_context& io_;
  JobQueue& queue_;
  LedgerKeeper& ledger_;
  const server::AccessRules& access_;
  // A report may read a whole year. So there is one at a time, and each account has one under way.
  boost::asio::strand<boost::asio::thread_pool::executor_type> reports_;
  std::set<server::Account> reporting_;
  std::shared_ptr<UserNames> names_ = std::make_shared<UserNames>();
};

}  // namespace gpumux::jobs
