// SPDX-License-Identifier: Apache-2.0
// Runs a fuzzer's checked-in corpus, and changed copies of it, without libFuzzer: NAME_fuzz CORPUS_FOLDER [SEED]
//
// Goal: what a fuzzer found once stays found, with g++ and under every sanitizer. Method: each input as it is, then
// kChangedCopies of each with a few bytes changed, cut, doubled or cut short, from a seed that is printed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Input = std::vector<std::uint8_t>;

// Enough to take about a second with a corpus of a hundred inputs.
constexpr int kChangedCopies = 500;

Input read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void change(Input& input, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % std::max<std::size_t>(n, 1)); };
  for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
    const std::size_t at = below(input.size());
    switch (below(input.empty() ? 1 : 5)) {
      case 0: input.push_back(static_cast<std::uint8_t>(random())); break;
      case 1: input[at] = static_cast<std::uint8_t>(random()); break;
      case 2: input[at] = random() % 2 == 0 ? 0x00 : 0xff; break;
      case 3: input.resize(at); break;
      default: {
        const Input tail(input.begin() + static_cast<std::ptrdiff_t>(at), input.end());
        input.insert(input.end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(below(tail.size())));
      }
    }
  }
}

// A copy of exactly the input's size on the heap, so that reading one byte too far is seen.
void run(const Input& input) {
  const Input exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CORPUS_FOLDER [SEED]\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1], error)) paths.push_back(entry.path());
  if (paths.empty()) {
    std::fprintf(stderr, "%s: no corpus in %s; an input or two belong there, or this test could not fail\n", argv[0],
                 argv[1]);
    return 1;
  }
  std::sort(paths.begin(), paths.end());
  const std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : std::random_device()();
  std::printf("%zu inputs, seed %llu\n", paths.size(), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  std::mt19937_64 random(seed);
  run({});
  for (const auto& path : paths) {
    const Input input = read(path);
    run(input);
    for (int copy = 0; copy < kChangedCopies; ++copy) {
      Input changed = input;
      change(changed, random);
      run(changed);
    }
  }
  return 0;
}
