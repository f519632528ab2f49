// SPDX-License-Identifier: Apache-2.0
// Goal: the loader's decision is known beforehand, from the file alone, and no file can crash us. Method: real ELF
// files of this build, the same with bytes changed (by seed), and hand-made lists.
#include "cli/run/preload.h"

#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "cli/run/elf_file.h"
#include "cli/run/run_arguments.h"

namespace gpumux::cli {
namespace {

std::vector<std::byte> bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> chars{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::byte> bytes(chars.size());
  std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}

TEST(ElfTest, ReadsALibraryAndAProgram) {
  const auto library = read_elf(OTHER_LIBRARY);
  ASSERT_TRUE(library) << library.error().message();
  EXPECT_TRUE(library->is_64_bit);
  EXPECT_TRUE(library->is_shared_object);
  const auto program = read_elf(PRINT_SELF);
  ASSERT_TRUE(program) << program.error().message();
  EXPECT_EQ(program->machine, library->machine);
  EXPECT_TRUE(program->glibc.starts_with("2.")) << program->glibc;
}

TEST(ElfTest, OtherFilesAreRefusedByName) {
  EXPECT_EQ(read_elf("/no/such/file").error().code, base::Code::kNotFound);
  EXPECT_EQ(read_elf("/etc/passwd").error().code, base::Code::kInvalid);
  EXPECT_EQ(read_elf("/tmp").error().code, base::Code::kInvalid);
  EXPECT_FALSE(parse_elf({}));
}

TEST(ElfTest, DamagedFilesNeverHarm) {
  const std::vector<std::byte> good = bytes_of(PRINT_SELF);
  ASSERT_TRUE(parse_elf(good));
  for (std::size_t length = 0; length < 2048; ++length) {
    static_cast<void>(parse_elf(std::span(good).first(std::min(length, good.size()))));
  }
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bad = good;
    // Mostly in the headers, where the offsets and counts are.
    for (int change = 0; change < 4; ++change)
      bad[random() % (round % 2 == 0 ? 1024 : bad.size())] = std::byte(random());
    refused += parse_elf(bad) ? 0 : 1;
  }
  EXPECT_GT(refused, 0) << "seed " << seed;
}

TEST(ElfTest, VersionsCompareAsNumbers) {
  EXPECT_TRUE(is_older_version("2.9", "2.28"));
  EXPECT_FALSE(is_older_version("2.28", "2.9"));
  EXPECT_FALSE(is_older_version("2.28", "2.28"));
  EXPECT_TRUE(is_older_version("2.2.5", "2.3"));
}

TEST(PreloadableTest, WrongMachineAndWrongKindAreNamed) {
  char path[] = "/tmp/gpumux-elf-XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  ::close(fd);
  const auto check_with = [&](std::size_t offset, std::uint8_t value) {
    std::vector<std::byte> bytes = bytes_of(OTHER_LIBRARY);
    bytes[offset] = std::byte(value);
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return check_preloadable(path);
  };
  EXPECT_TRUE(check_preloadable(OTHER_LIBRARY));
  EXPECT_NE(check_with(offsetof(Elf64_Ehdr, e_machine), EM_ARM).error().what.find("ARM 32-bit"), std::string::npos);
  EXPECT_NE(check_with(EI_CLASS, ELFCLASS32).error().what.find("is for"), std::string::npos);
  EXPECT_NE(check_with(offsetof(Elf64_Ehdr, e_type), ET_EXEC).error().what.find("not a shared library"),
            std::string::npos);
  ::unlink(path);
}

std::pair<std::vector<std::string>, std::vector<std::string>> split(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const SplitArguments result = split_run_arguments(arguments, {"--name", "--gang", "--mem", "-m"});
  EXPECT_EQ(result.options.back(), nullptr);
  EXPECT_EQ(result.program.back(), nullptr);
  return {std::vector<std::string>(result.options.begin(), result.options.end() - 1),
          std::vector<std::string>(result.program.begin(), result.program.end() - 1)};
}

TEST(SplitTest, FindsWhereTheProgramBegins) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split({"--", "a", "--", "b"}), (std::pair<Words, Words>{{}, {"a", "--", "b"}}));
  EXPECT_EQ(split({"a", "-v"}), (std::pair<Words, Words>{{}, {"a", "-v"}}));
  EXPECT_EQ(split({"-v", "--name", "x", "a", "b"}), (std::pair<Words, Words>{{"-v", "--name", "x"}, {"a", "b"}}));
  EXPECT_EQ(split({"--name=x", "a"}), (std::pair<Words, Words>{{"--name=x"}, {"a"}}));
  EXPECT_EQ(split({"--name", "--", "a"}), (std::pair<Words, Words>{{"--name"}, {"a"}}))
      << "a value that is missing is not the word that begins the program";
  EXPECT_EQ(split({"--name", "-x", "a"}), (std::pair<Words, Words>{{"--name", "-x"}, {"a"}}))
      << "else a value may look like anything";
  EXPECT_EQ(split({"--gang"}), (std::pair<Words, Words>{{"--gang"}, {}}));
  EXPECT_EQ(split({"-"}), (std::pair<Words, Words>{{}, {"-"}}));
  EXPECT_EQ(split({}), (std::pair<Words, Words>{{}, {}}));
}

}  // namespace
}  // namespace gpumux::cli
