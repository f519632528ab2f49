// SPDX-License-Identifier: Apache-2.0
// The queues by themselves: which GPUs share one, and which unit is first in it.
#include "sched/lease/shapes.h"

#include <gtest/gtest.h>

#include "sched/lease/units.h"

namespace gpumux::sched {
namespace {

QueueEntry entry(Unit& unit, std::int64_t level) {
  return {.level = level, .lead = SeatId{TenantId{unit.serial}, GpuIndex{0}}, .unit = &unit};
}

TEST(Shapes, UnitsOfTheSameGpusHaveOneQueue) {
  Gpu a, b;
  a.index = GpuIndex{0};
  b.index = GpuIndex{1};
  Shapes shapes;
  Shape& both = shapes.join({&a, &b});
  EXPECT_EQ(&shapes.join({&a, &b}), &both);
  Shape& alone = shapes.join({&a});
  EXPECT_NE(&alone, &both);
  EXPECT_EQ(a.shapes(), (std::vector<Shape*>{&both, &alone}));
  EXPECT_EQ(b.shapes(), (std::vector<Shape*>{&both}));
  EXPECT_EQ(a.single_shape(), &alone);
  EXPECT_EQ(b.single_shape(), nullptr);

  shapes.leave(both);
  EXPECT_EQ(b.shapes().size(), 1u) << "another unit has it still";
  shapes.leave(both);
  EXPECT_TRUE(b.shapes().empty());
  EXPECT_EQ(a.shapes(), (std::vector<Shape*>{&alone}));
}

TEST(Shapes, TheLeastKeyIsFirst) {
  Gpu gpu;
  Unit one, two;
  one.serial = 1;
  two.serial = 2;
  Shapes shapes;
  Shape& shape = shapes.join({&gpu});
  EXPECT_EQ(shape.first(), nullptr);
  shape.insert(entry(one, 5));
  shape.insert(entry(two, 3));
  EXPECT_EQ(shape.first(), &two);
  EXPECT_EQ(one.queued().level, 5);
  shape.erase(two);
  EXPECT_EQ(shape.first(), &one);
  shape.insert(entry(two, 5));
  EXPECT_EQ(shape.first(), &one) << "ties go by seat";
}

}  // namespace
}  // namespace gpumux::sched
