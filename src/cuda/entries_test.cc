// SPDX-License-Identifier: Apache-2.0
// Goal: for any name, through any door, the table names the entry that a real driver would give. Method: compare with
// the readings of a real driver (tests/data). They are its exports, its answers to every name, version and stream flag
// at which they change, and a PyTorch program's requests.
#include "cuda/entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/abi_enums.h"

namespace gpumux::cuda {
namespace {

constexpr unsigned kPerThreadFlag = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

constexpr char kSteps[] = "\ndocs/entries.md, \"Adding an entry\", has the steps.";

std::vector<std::string> lines_of(const std::string& name) {
  std::ifstream file(std::string(GPUMUX_TEST_DATA) + "/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::set<std::string> exports() {
  const auto lines = lines_of("libcuda-580.159.04-exports.txt");
  return {lines.begin(), lines.end()};
}

std::string symbol_or_dash(std::optional<Entry> entry) { return entry ? info_of(*entry).symbol : "-"; }

TEST(Entries, AreWhatARealDriverExports) {
  const auto exported = exports();
  ASSERT_EQ(exported.size(), 707u) << "The list has another number of names: correct it here." << kSteps;
  EXPECT_EQ(kEntryCount, exported.size());
  for (const std::string& symbol : exported) {
    const auto entry = find_symbol(symbol);
    ASSERT_TRUE(entry) << symbol;
    EXPECT_EQ(info_of(*entry).symbol, symbol);
  }
}

TEST(Entries, AreFoundByTheirWholeSymbolOnly) {
  for (const char* symbol : {"", "cu", "cuMem", "cuMemAlloc_v", "cuMemAlloc_v22", "cuMemcpyZ", "zz", "\xff", "aaa"}) {
    EXPECT_FALSE(find_symbol(symbol)) << symbol;
  }
}

TEST(Versions, AreAnsweredAsARealDriverAnswers) {
  const auto lines = lines_of("libcuda-580.159.04-versions.txt");
  ASSERT_GT(lines.size(), 2000u);
  // Each line holds from its version to the next line of the same name and flags, so both ends of each stretch are
  // asked for.
  std::map<std::pair<std::string, unsigned>, std::vector<std::pair<unsigned, std::string>>> answers;
  for (const std::string& line : lines) {
    std::istringstream fields(line);
    std::string name, symbol;
    unsigned flags = 0, version = 0;
    ASSERT_TRUE(fields >> name >> flags >> version >> symbol) << line;
    answers[{name, flags}].emplace_back(version, symbol);
  }
  for (const auto& [key, stretches] : answers) {
    for (std::size_t i = 0; i < stretches.size(); ++i) {
      const unsigned last = i + 1 < stretches.size() ? stretches[i + 1].first - 1 : GPUMUX_CUDA_VERSION;
      for (const unsigned version : {stretches[i].first, last}) {
        EXPECT_EQ(symbol_or_dash(find_versioned(key.first, version, key.second == kPerThreadFlag)), stretches[i].second)
            << key.first << " version " << version << " flags " << key.second;
      }
    }
  }
  // And no name of ours is unknown to the driver.
  for (const EntryInfo& info : kEntries) {
    if (*info.api_name != '\0') {
      EXPECT_TRUE(answers.contains({info.api_name, 0})) << "no version of it is listed: " << info.api_name << kSteps;
    }
  }
}

TEST(Versions, OfNamesThatAreNoneAreNotFound) {
  for (const char* name : {"", "cu", "cuMemAlloc_v2", "cuMemcpy_ptds", "cuMemGetAttribute", "cudbgMain", "zz"}) {
    EXPECT_FALSE(find_versioned(name, GPUMUX_CUDA_VERSION, false)) << name;
    EXPECT_FALSE(find_versioned(name, GPUMUX_CUDA_VERSION, true)) << name;
  }
}

// Every entry that a program of today asks for is found, in the variant for the stream it asked about.
TEST(Versions, CoverWhatPyTorchAsksFor) {
  const auto exported = exports();
  int by_version = 0, by_symbol = 0, per_thread = 0;
  for (const std::string& line : lines_of("pytorch-2.11-cu130-lookups.txt")) {
    std::istringstream fields(line);
    std::string door, name, version, flags;
    fields >> door >> name >> version >> flags;
    if (door == "dlsym") {
      EXPECT_TRUE(find_symbol(name)) << line;
      ++by_symbol;
    } else if (door == "cuGetProcAddress_v2" && version.starts_with("v") && flags.starts_with("fl")) {
      const bool wants_per_thread = std::stoul(flags.substr(2)) == kPerThreadFlag;
      const auto entry = find_versioned(name, static_cast<unsigned>(std::stoul(version.substr(1))), wants_per_thread);
      ASSERT_TRUE(entry) << line;
      EXPECT_TRUE(exported.contains(info_of(*entry).symbol)) << line;
      const StreamVariant variant = info_of(*entry).variant;
      EXPECT_EQ(variant == StreamVariant::kPtds || variant == StreamVariant::kPtsz, wants_per_thread) << line;
      ++by_version;
      per_thread += wants_per_thread ? 1 : 0;
    }
  }
  // The file is read to the end, not skipped by a change of its form.
  EXPECT_GT(by_version, 400);
  EXPECT_GT(by_symbol, 80);
  EXPECT_GT(per_thread, 70);
}

TEST(Versions, GrowWithTheSymbolsNumber) {
  for (const EntryInfo& info : kEntries) {
    if (*info.api_name == '\0') continue;
    EXPECT_GE(info.since, 2000u) << info.symbol;
    EXPECT_LE(info.since, GPUMUX_CUDA_VERSION) << info.symbol << kSteps;
    EXPECT_TRUE(std::string_view(info.symbol).starts_with(info.api_name)) << info.symbol;
  }
  EXPECT_TRUE(std::is_sorted(kEntries.begin(), kEntries.end(), [](const EntryInfo& a, const EntryInfo& b) {
    return std::string_view(a.symbol) < b.symbol;
  }));
}

// The families that make the GPU work, named here once more by hand: the table's author and this test's would both have
// to forget one.
TEST(Actions, GateEverySubmission) {
  const std::vector<std::string> families = {
      "cuLaunch",
      "cuGraphLaunch",
      "cuGraphUpload",
      "cuMemcpy",
      "cuMemset",
      "cuMemPrefetch",
      "cuMemDiscard",
      "cuMemBatchDecompress",
      "cuMemMapArray",
      "cuStreamWaitValue",
      "cuStreamWriteValue",
      "cuStreamBatchMemOp",
      "cuSignalExternal",
      "cuWaitExternal",
      "cuStreamAddCallback",
      "cuGraphicsMapRes",
      "cuGraphicsUnmapRes",
      "cuStreamAttachMemAsync",
      "cuGLMapBufferObject",
      "cuGLUnmapBufferObject",
      "cuEGLStreamConsumerRelease",
      "cuEGLStreamProducerPresent",
      "cuEGLStreamProducerReturn",
  };
  for (const EntryInfo& info : kEntries) {
    const std::string_view symbol = info.symbol;
    const bool submits =
        std::any_of(families.begin(), families.end(), [&](const auto& f) { return symbol.starts_with(f); });
    if (symbol == "cuLaunchCooperativeKernelMultiDevice") {
      EXPECT_EQ(info.action, Action::kHook);
    } else if (submits) {
      EXPECT_EQ(info.action, Action::kGate) << symbol;
      EXPECT_NE(info.variant, StreamVariant::kNone) << symbol;
    } else if (symbol.starts_with("cuGraphInstantiateWithParams")) {
      EXPECT_EQ(info.action, Action::kGate) << symbol;  // it can upload as well
    } else {
      EXPECT_NE(info.action, Action::kGate) << symbol << " is gated: name its family above";
    }
    if (symbol.find("Synchronize") != std::string_view::npos) {
      EXPECT_EQ(info.action, Action::kSync) << symbol;
    }
  }
}

}  // namespace
}  // namespace gpumux::cuda
