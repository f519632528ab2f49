// SPDX-License-Identifier: Apache-2.0
// Goal: the classes of share groups count as they say. group_shares_test.cc tests how seats of a claim share a GPU.
#include <gtest/gtest.h>

#include <list>

#include "sched/lease/share_groups.h"
#include "sched/lease/state.h"

namespace gpumux::sched {
namespace {

TEST(ShareGroup, NoTimeIsLostInTheDivisionByTheWeight) {
  ShareGroup group("");
  group.begin(100);
  group.set_weight(3);
  for (int i = 0; i < 6; ++i) group.charge(Duration(2));
  EXPECT_EQ(group.virtual_time(), 104);
  group.charge(Duration(2));
  EXPECT_EQ(group.virtual_time(), 104);
  EXPECT_EQ(group.virtual_time_after(Duration(1)), 105) << "with what is left over";
}

TEST(ShareGroup, OnlyTheFirstBeginningCounts) {
  ShareGroup group("");
  EXPECT_EQ(group.virtual_time(), 0);
  group.begin(0);
  group.begin(7);
  EXPECT_EQ(group.virtual_time(), 0);
}

class Groups : public ::testing::Test {
 protected:
  Seat& join(const std::string& name) {
    Seat& seat = seats_.emplace_back();
    seat.id.tenant.value = seats_.size();
    seat.group = groups.join(seat, name);
    return seat;
  }
  void leave(Seat& seat) { groups.leave(seat, *seat.group); }

  ShareGroups groups;

 private:
  std::list<Seat> seats_;
};

TEST_F(Groups, SeatsOfOneClaimAreOneGroup) {
  Seat& one = join("claim");
  Seat& other = join("claim");
  EXPECT_EQ(one.group, other.group);
  EXPECT_EQ(one.group->seats(), (std::vector<Seat*>{&one, &other}));
  EXPECT_NE(join("").group, join("").group);
}

TEST_F(Groups, DebtIsRememberedUntilOthersHaveCaughtUp) {
  Seat& debtor = join("claim");
  debtor.group->move_to(10);
  groups.advance(4);
  groups.advance(3);
  EXPECT_EQ(groups.present(), 4) << "the present never goes back";
  leave(debtor);
  Seat& again = join("claim");
  EXPECT_EQ(again.group->virtual_time(), 10);
  groups.advance(10);
  leave(again);
  EXPECT_TRUE(groups.named().empty());
  EXPECT_EQ(join("claim").group->virtual_time(), 0);
}

TEST_F(Groups, ThoseThatOweLeastAreForgottenFirst) {
  for (std::size_t i = 0; i <= ShareGroups::kMostRemembered; ++i) {
    Seat& seat = join(std::to_string(i));
    seat.group->move_to(static_cast<std::int64_t>(1 + i));
    leave(seat);
  }
  EXPECT_EQ(groups.named().size(), ShareGroups::kMostRemembered);
  EXPECT_FALSE(groups.named().contains("0"));
}

}  // namespace
}  // namespace gpumux::sched
