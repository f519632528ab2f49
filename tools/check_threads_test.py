#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/check_threads.py refuses what is touched without its mutex, and nothing else."""

import pathlib
import subprocess
import tempfile
import unittest

import check_threads

SOURCE = """#include "base/lock.h"
class Counter {
 public:
  void up() { %s ++count_; }
  void up_twice() {
    const gpumux::base::Locked locked(mutex_);
    up_locked();
    {
      const gpumux::base::Unlocked unlocked(mutex_);
      %s
    }
    ++count_;
    mutex_.wait();
  }
 private:
  void up_locked() GPUMUX_REQUIRES(mutex_) { ++count_; }
  gpumux::base::Mutex mutex_;
  int count_ GPUMUX_GUARDED_BY(mutex_) = 0;
};
"""


class CheckThreadsTest(unittest.TestCase):

    def errors(self, *parts):
        with tempfile.NamedTemporaryFile("w", suffix=".cc") as source:
            source.write(SOURCE % parts)
            source.flush()
            words = ["c++", "-std=c++20", f"-I{check_threads.ROOT / 'src'}", "-fsyntax-only", source.name]
            done = check_threads.check_locks(pathlib.Path("/"), words, source.name)
        return [line for line in done.stderr.splitlines() if "error:" in line]

    def test_under_the_mutex(self):
        self.assertEqual(self.errors("const gpumux::base::Locked locked(mutex_);", ""), [])

    def test_without_it(self):
        self.assertEqual(len(self.errors("", "")), 1)

    def test_while_it_is_let_go(self):
        self.assertEqual(len(self.errors("const gpumux::base::Locked locked(mutex_);", "up_locked();")), 1)


if __name__ == "__main__":
    unittest.main()
