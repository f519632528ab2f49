// SPDX-License-Identifier: Apache-2.0
#include "sched/lease/shapes.h"

#include "sched/lease/units.h"

namespace gpumux::sched {
namespace {

std::vector<std::uint32_t> key_of(const std::vector<Gpu*>& gpus) {
  std::vector<std::uint32_t> key;
  for (const Gpu* gpu : gpus) key.push_back(gpu->index.value);
  return key;
}

}  // namespace

// Most units that come are the last.
void Shape::insert(const QueueEntry& entry) { entry.unit->queued_ = queue_.insert(queue_.end(), entry); }

void Shape::erase(const Unit& unit) { queue_.erase(unit.queued_); }

Shape& Shapes::join(std::vector<Gpu*> gpus) {
  auto& slot = shapes_[key_of(gpus)];
  if (slot == nullptr) {
    slot = std::make_unique<Shape>(std::move(gpus));
    for (Gpu* gpu : slot->gpus_) gpu->shapes_.push_back(slot.get());
  }
  ++slot->units_;
  return *slot;
}

void Shapes::leave(Shape& shape) {
  if (--shape.units_ > 0) return;
  for (Gpu* gpu : shape.gpus_) std::erase(gpu->shapes_, &shape);
  shapes_.erase(key_of(shape.gpus_));
}

}  // namespace gpumux::sched
