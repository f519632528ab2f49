// SPDX-License-Identifier: Apache-2.0
#include "command_line/parse.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace gpumux::command_line {
namespace {

class ParseTest : public ::testing::Test {
 protected:
  ParseTest() {
    auto* user = app_.add_option("-u,--user", user_, "U")->type_name("NAME");
    app_.add_flag("-m,--mine", mine_, "M")->excludes(user);
    app_.add_option("-n,--lines", lines_, "L")->type_name("N")->check([](const std::string& text) {
      return text == "13" ? "'13' brings bad luck" : text == "14" ? "bad luck, too" : "";
    });
    app_.add_option("-w,--watch", seconds_, "W")->type_name("[SECONDS]")->expected(0, 1);
    app_.add_option("ID", id_, "I")->type_name("")->required();
  }

  // Says what is wrong with the words.
  std::string wrong(const std::vector<std::string>& words) {
    const auto end = parse(app_, words);
    if (!end || !end->is_error) return end ? "no error: " + end->text : "nothing";
    constexpr std::string_view kBegin = "try: ";
    constexpr std::string_view kEnd = "\nSee `try --help`.\n";
    EXPECT_TRUE(end->text.starts_with(kBegin) && end->text.ends_with(kEnd)) << end->text;
    return end->text.substr(kBegin.size(), end->text.size() - kBegin.size() - kEnd.size());
  }

  CLI::App app_{"Tries.", "try"};
  std::string user_;
  std::string id_;
  bool mine_ = false;
  double seconds_ = 0;
  std::uint64_t lines_ = 0;
};

TEST_F(ParseTest, RightOnes) {
  EXPECT_EQ(wrong({"7"}), "nothing");
  EXPECT_EQ(wrong({"7", "-mn20"}), "nothing");
  EXPECT_TRUE(mine_);
  EXPECT_EQ(lines_, 20u);
  EXPECT_EQ(wrong({"7", "-w"}), "nothing");
  EXPECT_EQ(wrong({"7", "--user=--odd"}), "nothing");
  EXPECT_EQ(wrong({"--", "-7"}), "nothing");
  EXPECT_EQ(wrong({"--help"}).substr(0, 17), "no error: Tries.\n");
}

TEST_F(ParseTest, NamesAreAsTyped) {
  EXPECT_EQ(wrong({"7", "--usr", "eva"}), "there is no option '--usr'. Did you mean '--user'?");
  EXPECT_EQ(wrong({"7", "--usr=eva"}), "there is no option '--usr'. Did you mean '--user'?");
  EXPECT_EQ(wrong({"--usr"}), "there is no option '--usr'. Did you mean '--user'?");
  EXPECT_EQ(wrong({"7", "--li", "3"}), "there is no option '--li'. Did you mean '--lines'?");
  EXPECT_EQ(wrong({"7", "--qqqqqqqq"}), "there is no option '--qqqqqqqq'");
  EXPECT_EQ(wrong({"7", "-x"}), "there is no option '-x'");
  EXPECT_EQ(wrong({"7", "-mx"}), "there is no option '-x'");
  EXPECT_EQ(wrong({"7", "-n", "13"}), "-n: '13' brings bad luck");
  EXPECT_EQ(wrong({"7", "-n", "14"}), "-n: '14': bad luck, too");
  EXPECT_EQ(wrong({"7", "--lines=13"}), "--lines: '13' brings bad luck");
  EXPECT_EQ(wrong({"7", "-n", "abc"}), "-n: 'abc' is not a number");
  EXPECT_EQ(wrong({"7", "-w", "abc"}), "-w: 'abc' is not a number");
}

TEST_F(ParseTest, ValuesAndCounts) {
  EXPECT_EQ(wrong({"7", "--user"}), "--user needs a value: --user NAME");
  EXPECT_EQ(wrong({"7", "--user="}), "--user needs a value: --user NAME");
  EXPECT_EQ(wrong({"7", "-mu"}), "-u needs a value: -u NAME");
  EXPECT_EQ(wrong({"7", "--mine=soon"}), "--mine takes no value");
  EXPECT_EQ(wrong({"7", "--mine=yes"}), "--mine takes no value");
  EXPECT_EQ(wrong({"7", "--user", "a", "-u", "b"}), "--user is given twice");
  EXPECT_EQ(wrong({}), "ID is missing");
  EXPECT_EQ(wrong({"7", "8", "9"}), "the word '8' is one too many");
  EXPECT_EQ(wrong({"7", "-m", "--user", "a"}), "--user and -m cannot be combined");
}

TEST(ErrorText, IsFolded) {
  const std::string text = error_text("gpumux", std::string(60, 'a') + " " + std::string(60, 'b'));
  EXPECT_EQ(text, "gpumux: " + std::string(60, 'a') + "\n  " + std::string(60, 'b') + "\n");
}

}  // namespace
}  // namespace gpumux::command_line
