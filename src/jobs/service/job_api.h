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

#include "daemon/api/api_types.h"
#include "daemon/api/job_routes.h"
#include "daemon/loop/pool_work.h"
#include "daemon/peers/access.h"
#include "jobs/service/job_queue.h"
#include "jobs/service/job_requests.h"
#include "jobs/service/job_view.h"
#include "jobs/service/ledger_keeper.h"

namespace gpumux::daemon {

class JobApi final : public JobRoutes {
 public:
  // All outlive this object, and it outlives whatever they still call back.
  JobApi(boost::asio::io_context& io, JobQueue& queue, LedgerKeeper& ledger, const AccessRules& access);
  // Waits for its work on the queue's pool, which takes no more from here on.
  ~JobApi();
  JobApi(const JobApi&) = delete;
  JobApi& operator=(const JobApi&) = delete;

  ApiAnswer answer(const ApiRequest& request, const RouteMatch& match, std::string_view query) override;
  settings::Privacy privacy() const override { return queue_.config().privacy; }
  QueueFigures figures() const override;

 private:
  struct Found;
  struct Asked;
  ApiAnswer submit(const ApiRequest& request);
  ApiAnswer list(const Peer& peer, std::string_view query);
  ApiAnswer show(const Peer& peer, std::string_view which, bool with_environment);
  ApiAnswer wait(const Peer& peer, std::string_view which, std::string_view query);
  ApiAnswer change(const ApiRequest& request, std::string_view which);

  ApiAnswer report(const Peer& peer, std::string_view query);  // job_api_report.cc

  // The queue itself (job_api_queue.cc).
  ApiAnswer queue(const Peer& peer);
  ApiAnswer change_queue(const ApiRequest& request);
  ApiAnswer change_gpus(const ApiRequest& request, std::string_view which);
  ApiAnswer change_user(const ApiRequest& request, std::string_view which);
  std::function<void(const base::Status&)> answer_queue(const Peer& peer, const ApiReply& reply);

  // No `uid`: the job's user is not known.
  Sight sight(const Peer& peer, std::optional<std::uint32_t> uid) const;
  using Starts = std::map<jobs::JobId, base::TimePoint>;
  JobNow now_of(const Peer& peer, jobs::JobId job, const Starts& starts) const;
  base::Result<std::shared_ptr<const Submission>> prepare(const std::string& body, const Peer& peer,
                                                          bool by_admin) const;
  void list_page(const Peer& peer, store::Page page, ApiReply reply);
  void show_job(const Peer& peer, std::string which, jobs::JobId job, bool with_environment, ApiReply reply);
  void find_job(std::string_view which, std::function<void(base::Result<store::StoredJob>)> found);
  static base::Result<Found> look_up(const store::JobStore& store, const JobName& name);
  void change_found(const Peer& peer, const std::vector<JobName>& names, const std::vector<base::Result<Found>>& jobs,
                    const JobQueue::Change& change, const ApiReply& reply);
  void change_all(std::optional<std::uint32_t> uid, const JobQueue::Change& change, const ApiReply& reply);
  void change_jobs(std::vector<Asked> asked, const JobQueue::Change& change, const ApiReply& reply);

  template <class Work, class Then>
  void on_pool(Work work, Then then) {
    work_then(queue_.pool().get_executor(), io_, std::move(work), std::move(then));
  }

  boost::asio::io_context& io_;
  JobQueue& queue_;
  LedgerKeeper& ledger_;
  const AccessRules& access_;
  // A report may read a whole year. So there is one at a time, and each account has one under way.
  boost::asio::strand<boost::asio::thread_pool::executor_type> reports_;
  std::set<Account> reporting_;
  std::shared_ptr<UserNames> names_ = std::make_shared<UserNames>();
};

}  // namespace gpumux::daemon
