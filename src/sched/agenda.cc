// SPDX-License-Identifier: Apache-2.0
#include "sched/agenda.h"

namespace gpumux::sched {

void Agenda::touch_around(const Gpu& gpu) {
  touch(gpu);
  for (const Shape* shape : gpu.shapes()) {
    if (shape->first() == nullptr) continue;
    for (const Gpu* other : shape->gpus()) touch(*other);
  }
}

void Agenda::give_way(const Gpu& here, const Unit& single, const Gpu& there) {
  if (must_wait_for_drain(single) || gave_way_.has(here.index.value)) return wait_for_drain(here);
  gave_way_.set(here.index.value);
  touch(there);
}

}  // namespace gpumux::sched
