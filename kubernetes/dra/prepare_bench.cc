// SPDX-License-Identifier: Apache-2.0
// Measures how long a claim's pod waits for the plugin on a node with 110 claims. The plugin fetches the claim from an
// API server by TLS, and writes its record and its specification. Folders are below TMPDIR; files of a disk wait for
// the disk.
//
// Baseline: preparing a claim again, for which nothing is fetched and no record is written.
#include <benchmark/benchmark.h>

#include <string>

#include "kubernetes/api_server/client.h"
#include "kubernetes/api_server/test_api_server.h"
#include "kubernetes/dra/claim_fixture.h"
#include "kubernetes/dra/claims.h"
#include "tests/unit/temporary_directory.h"

namespace {

using namespace gpumux;

constexpr int kClaims = 110;

std::string uid_of(int number) { return "5b1f3d3e-0c5a-4b1e-9d7e-" + std::to_string(100'000'000'000 + number); }

kubernetes::ClaimName name_of(int number) { return {"default", "claim-" + uid_of(number), uid_of(number)}; }

class Node {
 public:
  Node() {
    for (int number = 0; number <= kClaims; ++number)
      server_.put(path_of(name_of(number)),
                  kubernetes::a_claim(uid_of(number), {kubernetes::a_share("a", "gpu-a", "1Gi", "10")}));
    auto claims = kubernetes::Claims::open(
        {temporary_.file("claims"), temporary_.file("cdi"), "/hook", "node-1"},
        [this](const kubernetes::ClaimName& claim) { return client_.get(path_of(claim)); },
        [](const kubernetes::Grant& grant) -> base::Result<kubernetes::Claims::Given> {
          auto injection =
              kubernetes::make_injection({"/lib", "1", "/run/gpumux", {}}, kubernetes::variables_of(grant));
          if (!injection) return tl::unexpected(injection.error());
          return kubernetes::Claims::Given{*injection, std::vector<std::vector<std::string>>(grant.shares.size())};
        },
        [](const std::string&) {});
    if (!claims) std::abort();
    claims_ = std::move(*claims);
    for (int number = 0; number < kClaims; ++number) {
      if (!claims_->prepare(name_of(number))) std::abort();
    }
  }

  kubernetes::Claims& claims() { return *claims_; }

 private:
  static std::string path_of(const kubernetes::ClaimName& claim) {
    return "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/" + claim.name;
  }

  TemporaryDirectory temporary_;
  kubernetes::TestApiServer server_{temporary_.path()};
  kubernetes::ApiServer client_{server_.settings()};
  std::unique_ptr<kubernetes::Claims> claims_;
};

void prepare_again(benchmark::State& state) {
  Node node;
  for (auto _ : state) {
    if (!node.claims().prepare(name_of(0))) state.SkipWithError("the claim is not prepared");
  }
}
BENCHMARK(prepare_again)->UseRealTime();

void prepare_and_unprepare(benchmark::State& state) {
  Node node;
  for (auto _ : state) {
    if (!node.claims().prepare(name_of(kClaims))) state.SkipWithError("the claim is not prepared");
    if (!node.claims().unprepare(name_of(kClaims))) state.SkipWithError("the claim is not unprepared");
  }
}
BENCHMARK(prepare_and_unprepare)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
