// SPDX-License-Identifier: Apache-2.0
// A directory of a test's own, below the system's for temporary files. It goes with its owner, whatever is in it.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace gpumux {

class TemporaryDirectory {
 public:
  // Ends the process where there can be none: no test has anything to say then.
  TemporaryDirectory() : path_((std::filesystem::temp_directory_path() / "gpumux-test-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  // Of a file in it.
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace gpumux
