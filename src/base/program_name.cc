// SPDX-License-Identifier: Apache-2.0
#include "base/program_name.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace gpumux::base {
namespace {

// A program that runs the script or module that is the first word after its options.
struct Interpreter {
  std::string_view name;
  bool has_versions = false;           // python3.11 is python
  std::string_view letters_of_values;  // one-letter options whose value is the rest of their word, or the next word
  std::string_view words_of_values;    // long options whose value is the next word, each between spaces
};

constexpr std::string_view kShellLetters = "oO";
constexpr std::string_view kShellWords = " --rcfile --init-file ";
constexpr std::string_view kTorchrunLetters = "rt";
constexpr std::string_view kTorchrunWords =
    " --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval"
    " --start-method --event-log-handler --role --log-dir --redirects --tee --local-ranks-filter --node-rank"
    " --master-addr --master-port --local-addr --logs-specs --numa-binding --signals-to-handle ";

constexpr std::array kInterpreters{
    Interpreter{"python", true, "WX", " --check-hash-based-pycs "},
    Interpreter{"bash", false, kShellLetters, kShellWords},
    Interpreter{"sh", false, kShellLetters, kShellWords},
    Interpreter{"dash", false, kShellLetters, kShellWords},
    Interpreter{"zsh", false, kShellLetters, kShellWords},
    Interpreter{"torchrun", false, kTorchrunLetters, kTorchrunWords},
    Interpreter{"torch.distributed.run", false, kTorchrunLetters, kTorchrunWords},
    Interpreter{"torch.distributed.launch", false, kTorchrunLetters, kTorchrunWords},
};

std::string_view base_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string_view::npos || path.size() == 1 ? path : path.substr(slash + 1);
}

const Interpreter* find_interpreter(std::string_view name) {
  const auto fits = [name](const Interpreter& one) {
    if (!name.starts_with(one.name)) return false;
    const std::string_view rest = name.substr(one.name.size());
    return rest.empty() || (one.has_versions && rest.find_first_not_of("0123456789.") == std::string_view::npos);
  };
  const auto* const found = std::find_if(kInterpreters.begin(), kInterpreters.end(), fits);
  return found == kInterpreters.end() ? nullptr : found;
}

// torchrun takes --nproc_per_node and --nproc-per-node.
bool is_among(std::string_view words, std::string_view option) {
  const auto same = [](char a, char b) { return a == (b == '_' ? '-' : b); };
  for (std::size_t at = words.find("--"); at != std::string_view::npos; at = words.find("--", at + 1)) {
    const std::string_view word = words.substr(at, words.find(' ', at) - at);
    if (word.size() == option.size() && std::equal(word.begin(), word.end(), option.begin(), same)) return true;
  }
  return false;
}

enum class Option { kAlone, kTakesNext, kIsScript };

Option kind_of(const Interpreter& interpreter, std::string_view option) {
  if (option.starts_with("--"))
    return is_among(interpreter.words_of_values, option) ? Option::kTakesNext : Option::kAlone;
  for (std::size_t i = 1; i < option.size(); ++i) {
    if (option[i] == 'c') return Option::kIsScript;
    if (interpreter.letters_of_values.find(option[i]) == std::string_view::npos) continue;
    return i + 1 == option.size() ? Option::kTakesNext : Option::kAlone;
  }
  return Option::kAlone;
}

// The script and its arguments; empty: a script without a name.
std::span<const std::string_view> script_of(const Interpreter& interpreter, std::span<const std::string_view> words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "-" || words[i].empty()) return {};
    if (words[i][0] != '-') return words.subspan(i);
    const Option kind = kind_of(interpreter, words[i]);
    if (kind == Option::kIsScript) return {};
    if (kind == Option::kTakesNext) ++i;
  }
  return {};
}

}  // namespace

std::string_view program_name(std::span<const std::string_view> words) {
  if (words.empty()) return {};
  for (;;) {
    const std::string_view name = base_name(words[0]);
    const Interpreter* const interpreter = find_interpreter(name);
    const auto script = interpreter != nullptr ? script_of(*interpreter, words) : std::span<const std::string_view>();
    if (script.empty()) return name;
    // torchrun is a script of python's, and runs another one.
    words = script;
  }
}

}  // namespace gpumux::base
