// SPDX-License-Identifier: Apache-2.0
#define NCURSES_WIDECHAR 1
#include "top/curses_terminal.h"

#include <curses.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <term.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cwchar>
#include <string>
#include <string_view>

// Names that the macros of curses take.
#undef columns
#undef lines
#undef erase
#undef move
#undef clear
#undef refresh

namespace gpumux::top {
namespace {

// An Escape that so long nothing follows is a key of its own. Over a slow line the parts of one key come late.
constexpr int kEscapeMilliseconds = 100;

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

// The environment says what the user's terminal shows. main() sets a UTF-8 locale whatever that is, for the widths of
// characters.
Letters letters_of_the_environment() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(variable(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    const bool is_utf8 = value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
    return is_utf8 && MB_CUR_MAX > 1 ? Letters::kUnicode : Letters::kAscii;
  }
  return Letters::kAscii;
}

base::Result<std::unique_ptr<CursesTerminal>> unusable(const std::string& why) {
  return base::fail(base::Code::kUnsupported, why + ". `gpumux status` and `gpumux queue` need no terminal");
}

short colour_of(Hue hue) {
  switch (hue) {
    case Hue::kNone: return -1;
    case Hue::kRed: return COLOR_RED;
    case Hue::kGreen: return COLOR_GREEN;
    case Hue::kYellow: return COLOR_YELLOW;
    case Hue::kBlue: return COLOR_BLUE;
    case Hue::kMagenta: return COLOR_MAGENTA;
    case Hue::kCyan: return COLOR_CYAN;
    case Hue::kWhite: return COLOR_WHITE;
  }
  return -1;
}

// Each hue is the colour pair of its number.
short pair_of(Hue hue) { return static_cast<short>(hue); }

bool prepare_colours() {
  if (!variable("NO_COLOR").empty() || !::has_colors() || ::start_color() == ERR) return false;
  const bool has_default = ::use_default_colors() != ERR;
  for (int hue = 1; hue <= static_cast<int>(Hue::kWhite); ++hue) {
    const auto pair = static_cast<short>(hue);
    ::init_pair(pair, colour_of(static_cast<Hue>(hue)), has_default ? short{-1} : short{COLOR_BLACK});
  }
  return true;
}

attr_t attributes_of(const Style& style) {
  attr_t attributes = A_NORMAL;
  if (style.bold) attributes |= A_BOLD;
  if (style.dim) attributes |= A_DIM;
  if (style.reversed) attributes |= A_REVERSE;
  return attributes;
}

// In the process's encoding, which is UTF-8.
std::string narrow(wint_t character) {
  std::array<char, MB_LEN_MAX> bytes{};
  std::mbstate_t state{};
  const std::size_t size = std::wcrtomb(bytes.data(), static_cast<wchar_t>(character), &state);
  return size == static_cast<std::size_t>(-1) ? std::string() : std::string(bytes.data(), size);
}

std::optional<KeyPress> key_of_code(wint_t code) {
  switch (code) {
    case KEY_UP: return KeyPress{Key::kUp};
    case KEY_DOWN: return KeyPress{Key::kDown};
    case KEY_LEFT: return KeyPress{Key::kLeft};
    case KEY_RIGHT: return KeyPress{Key::kRight};
    case KEY_PPAGE: return KeyPress{Key::kPageUp};
    case KEY_NPAGE: return KeyPress{Key::kPageDown};
    case KEY_HOME: return KeyPress{Key::kFirst};
    case KEY_END: return KeyPress{Key::kLast};
    case KEY_ENTER: return KeyPress{Key::kEnter};
    case KEY_BACKSPACE: return KeyPress{Key::kErase};
    case KEY_BTAB: return KeyPress{Key::kTab};
    case KEY_DC: return KeyPress{Key::kF9};
    case KEY_F(1): return KeyPress{Key::kF1};
    case KEY_F(3): return KeyPress{Key::kF3};
    case KEY_F(4): return KeyPress{Key::kF4};
    case KEY_F(6): return KeyPress{Key::kF6};
    case KEY_F(7): return KeyPress{Key::kF7};
    case KEY_F(9): return KeyPress{Key::kF9};
    case KEY_F(10): return KeyPress{Key::kF10};
    default: return std::nullopt;
  }
}

std::optional<KeyPress> key_of_character(wint_t character) {
  switch (character) {
    case '\t': return KeyPress{Key::kTab};
    case '\n':
    case '\r': return KeyPress{Key::kEnter};
    case 0x1b: return KeyPress{Key::kEscape};
    case 0x08:
    case 0x7f: return KeyPress{Key::kErase};
    case 0x03: return KeyPress{Key::kInterrupt};
    default: break;
  }
  if (character < 0x20) return std::nullopt;
  return KeyPress{Key::kText, narrow(character)};
}

}  // namespace

base::Result<std::unique_ptr<CursesTerminal>> CursesTerminal::open() {
  if (::isatty(STDIN_FILENO) != 1) return unusable("standard input is not a terminal, and keys come from there");
  if (::isatty(STDOUT_FILENO) != 1) return unusable("standard output is not a terminal");
  const std::string term(variable("TERM"));
  if (term.empty()) return unusable("the variable TERM is not set, so nothing is known of the terminal");
  int found = 0;
  if (::setupterm(term.c_str(), STDOUT_FILENO, &found) == ERR) {
    return unusable("there is no description of the terminal '" + term.substr(0, 64) +
                    "' (TERM): set TERM to one that is there, such as xterm or vt100");
  }
  if (cursor_address == nullptr)
    return unusable("the terminal '" + term.substr(0, 64) + "' (TERM) cannot move its cursor");
  if (::newterm(nullptr, stdout, stdin) == nullptr)
    return unusable("the terminal '" + term.substr(0, 64) + "' (TERM) cannot show a screen");
  ::cbreak();
  ::noecho();
  ::set_escdelay(kEscapeMilliseconds);
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::curs_set(0);
  Look look;
  look.letters = letters_of_the_environment();
  look.colours = prepare_colours();
  auto terminal = std::unique_ptr<CursesTerminal>(new CursesTerminal(look));
  terminal->resize();
  return terminal;
}

// A terminal without a second screen keeps what was shown, and the shell goes on in the last line.
CursesTerminal::~CursesTerminal() {
  ::wmove(stdscr, getmaxy(stdscr) - 1, 0);
  ::wclrtoeol(stdscr);
  ::wrefresh(stdscr);
  ::endwin();
}

void CursesTerminal::resize() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
    ::resizeterm(size.ws_row, size.ws_col);
  look_.rows = static_cast<std::size_t>(std::max(getmaxy(stdscr), 0));
  look_.columns = static_cast<std::size_t>(std::max(getmaxx(stdscr), 0));
}

void CursesTerminal::show(const Canvas& canvas) {
  ::werase(stdscr);
  for (std::size_t row = 0; row < canvas.rows(); ++row) {
    for (std::size_t column = 0; column < canvas.columns(); ++column) {
      const Cell& cell = canvas.at(row, column);
      if (cell.text.empty() || (cell.text == " " && cell.style == Style{})) continue;
      std::array<wchar_t, CCHARW_MAX + 1> text{};
      const std::size_t size = std::mbstowcs(text.data(), cell.text.c_str(), CCHARW_MAX);
      if (size == static_cast<std::size_t>(-1)) continue;
      cchar_t character{};
      const short pair = look_.colours ? pair_of(cell.style.hue) : short{0};
      if (::setcchar(&character, text.data(), attributes_of(cell.style), pair, nullptr) == ERR) continue;
      ::wmove(stdscr, static_cast<int>(row), static_cast<int>(column));
      ::wadd_wch(stdscr, &character);  // ERR at the last cell, which is drawn all the same
    }
  }
  ::wrefresh(stdscr);
}

std::optional<KeyPress> CursesTerminal::read() {
  for (;;) {
    wint_t character = 0;
    const int kind = ::wget_wch(stdscr, &character);
    if (kind == ERR) return std::nullopt;
    // A key that means nothing here is skipped.
    if (const auto key = kind == KEY_CODE_YES ? key_of_code(character) : key_of_character(character)) return key;
  }
}

int CursesTerminal::key_events() {
  const int events = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  ::epoll_ctl(events, EPOLL_CTL_ADD, STDIN_FILENO, &wanted);
  return events;
}

bool CursesTerminal::has_ended() {
  int bytes = 0;
  return ::ioctl(STDIN_FILENO, FIONREAD, &bytes) != 0 || bytes == 0;
}

}  // namespace gpumux::top
