// SPDX-License-Identifier: Apache-2.0
// Goal: each lock mode synchronises and gives the GPU up where it says. Method: a program of one thread in virtual
// time. Its actions are written as a line: a letter for each submission, `s` for a synchronised one, `u` if that gives
// the GPU up.
#include "shim/tenant/lock_modes.h"

#include <gtest/gtest.h>

#include <string>

namespace gpumux::shim {
namespace {

using namespace std::chrono_literals;

class Program {
 public:
  explicit Program(std::optional<LockModeSettings> settings) : modes_(settings) {}

  std::string submit(int count, base::Duration apart = 1ms) {
    std::string line;
    for (int i = 0; i < count; ++i) {
      modes_.entered(0, now_);
      now_ += apart;
      line += modes_.wants_synchronisation(0, now_) ? (modes_.synchronised(0, now_) ? 'u' : 's') : '.';
    }
    return line;
  }
  bool synchronise() { return modes_.synchronised(0, now_); }
  LockModes& modes() { return modes_; }

 private:
  LockModes modes_;
  base::TimePoint now_{1s};
};

TEST(LockModesTest, AreNotSetUnlessTheProgramSetsOne) {
  EXPECT_FALSE(LockModes(std::nullopt).are_set());
  EXPECT_TRUE(LockModes(LockModeSettings{}).are_set());
}

TEST(LockModesTest, GiveUpAfterSoManySubmissions) {
  EXPECT_EQ(Program(LockModeSettings{}).submit(21), ".........u.........u.");
  EXPECT_EQ(Program(LockModeSettings{.submissions = 3}).submit(7), "..u..u.");
  EXPECT_EQ(Program(LockModeSettings{.submissions = 1}).submit(3), "uuu");
  EXPECT_EQ(Program(LockModeSettings{.submissions = 0}).submit(3), "uuu");
}

TEST(LockModesTest, GiveUpByTheTimeThatItWasHeldInstead) {
  EXPECT_EQ(Program(LockModeSettings{.submissions = 2, .held = 5ms}).submit(11), "....u....u.");
  EXPECT_EQ(Program(LockModeSettings{.held = 500us}).submit(3), "uuu");
  EXPECT_EQ(Program(LockModeSettings{.held = 500us}).submit(4, 250us), ".u.u");
}

TEST(LockModesTest, GiveUpAfterEachSubmissionInsteadOfBoth) {
  EXPECT_EQ(Program(LockModeSettings{.submissions = 5, .held = 5ms, .always = true}).submit(4), "uuuu");
}

TEST(LockModesTest, GiveUpWhereTheProgramSynchronises) {
  Program program(LockModeSettings{.submissions = 4});
  EXPECT_FALSE(program.modes().is_locked(0));
  EXPECT_EQ(program.submit(3), "...");
  EXPECT_TRUE(program.modes().is_locked(0));
  EXPECT_TRUE(program.synchronise());
  EXPECT_FALSE(program.modes().is_locked(0));
  EXPECT_FALSE(program.synchronise()) << "there is nothing to give up";
  EXPECT_EQ(program.submit(5), "...u.") << "the count begins anew";
}

TEST(LockModesTest, KeepTheGpuThroughTheFirstSynchronisations) {
  Program forced(LockModeSettings{.submissions = 2, .skips = 2});
  EXPECT_EQ(forced.submit(13), ".s.s.u.s.s.u.");
  Program own(LockModeSettings{.submissions = 4, .skips = 2});
  EXPECT_EQ(own.submit(2), "..");
  EXPECT_FALSE(own.synchronise());
  EXPECT_TRUE(own.modes().is_locked(0));
  EXPECT_EQ(own.submit(4), "...s");
  EXPECT_TRUE(own.synchronise());
  EXPECT_EQ(Program(LockModeSettings{.always = true, .skips = 1}).submit(4), "susu");
}

TEST(LockModesTest, LockEachGpuByItself) {
  LockModes modes(LockModeSettings{.submissions = 2});
  const base::TimePoint now{1s};
  modes.entered(0, now);
  modes.entered(1, now);
  EXPECT_FALSE(modes.wants_synchronisation(0, now));
  EXPECT_FALSE(modes.wants_synchronisation(1, now));
  EXPECT_TRUE(modes.wants_synchronisation(1, now));
  EXPECT_TRUE(modes.synchronised(1, now));
  EXPECT_TRUE(modes.is_locked(0));
  EXPECT_FALSE(modes.is_locked(1));
}

TEST(LockModesTest, AnotherThreadMayHaveGivenUpMeanwhile) {
  LockModes modes(LockModeSettings{.submissions = 1});
  const base::TimePoint now{1s};
  modes.entered(0, now);
  EXPECT_TRUE(modes.synchronised(0, now));
  EXPECT_FALSE(modes.wants_synchronisation(0, now));
}

}  // namespace
}  // namespace gpumux::shim
