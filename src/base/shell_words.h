// SPDX-License-Identifier: Apache-2.0
// A command line as a person types it into a shell.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gpumux::base {

// The word in quotes, if a shell does not take it as it is.
std::string shell_word(std::string_view word);
// The words with spaces between them.
std::string shell_words(std::span<const std::string> words);
// The first `most` bytes, and "..." where more is left out. Cuts no character of UTF-8 in two.
std::string shortened(std::string text, std::size_t most);

}  // namespace gpumux::base
