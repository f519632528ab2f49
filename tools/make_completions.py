#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what bash, zsh and fish need to complete our command lines, as a part of the build: those of gpumux, gpumuxd,
gpumux-kubelet-plugin and the commands of an older scheduler.

    tools/make_completions.py --bin DIR --out DIR     DIR is laid out like /usr/share

Commands, options, and what an option may be come from the programs' --help, so they cannot differ. The placeholder of
an option says what its value is (KINDS): a new option with one of these placeholders needs nothing here. The shell asks
for jobs, GPUs and programs with `gpumux __complete KIND` (src/cli/cmd_complete.cc). After `gpumux run` and
`gpumux submit` the program's own completion takes over.
"""

import argparse
import pathlib
import re
import sys
from dataclasses import dataclass

import help_text

BANNER = "# Made by tools/make_completions.py from --help. Do not edit."
OTHER_PROGRAMS = ("gpumuxd", "gpumux-kubelet-plugin", "mgpu_srun", "mgpu_queue", "mgpu_cancel", "mgpu_scheduler_server")
LEFT_OUT = ("gpumux-kubelet-plugin",)    # by some builds
PROGRAM_COMMANDS = ("run", "submit", "mgpu_srun")    # what follows their options is another command line
DONE_JOB_COMMANDS = ("show", "logs", "wait", "history", "requeue", "report")    # take ids of jobs that are done, too
ACTION_COMMAND = "admin"    # takes one of the words that its help lists


@dataclass(frozen=True)
class Kind:
    """The values of a word: the shell offers all that apply."""
    words: tuple = ()
    ask: str = ""            # gpumux __complete ASK
    files: str = ""          # "directories" or "files"
    is_list: bool = False    # several, with commas between them


# By placeholder.
KINDS = {
    "DIR": Kind(files="directories"), "FILE": Kind(files="files"), "PATTERN": Kind(files="files"),
    "USER": Kind(ask="users"), "PID": Kind(ask="tenants"), "ID": Kind(ask="jobs"),
    "CONDITION": Kind(ask="conditions"), "GPU": Kind(ask="gpus"),
    "STATES": Kind(is_list=True), "GPUS": Kind(ask="gpus", is_list=True), "IDS": Kind(ask="gpus", is_list=True),
}


def built(folder):
    """The other programs, without those that this build leaves out."""
    return [name for name in OTHER_PROGRAMS if name not in LEFT_OUT or (folder / name).exists()]


def fields_of(found):
    """The names that the text of --help lists after "Fields for --format:"."""
    for block in found.blocks:
        listed = re.match(r"Fields for --format: ([^.]*)\.", block.text)
        if listed:
            return tuple(listed.group(1).split(", "))
    return ()


def of_placeholder(command, placeholder):
    kind = KINDS.get(placeholder.strip("[]."), Kind())
    if kind.ask == "jobs" and command in DONE_JOB_COMMANDS:
        return Kind(ask="all-jobs")
    return kind


def kind_of(command, found, option):
    """The values of an option; None: it takes none."""
    if not option.placeholder:
        return None
    if option.placeholder == "FIELDS":
        return Kind(words=fields_of(found), is_list=True)
    kind = of_placeholder(command, option.placeholder)
    return Kind(tuple(option.values()), kind.ask, kind.files, kind.is_list)


def operand_of(command, found):
    """The values of words that are no options: the usage ends with their placeholder."""
    name = re.search(r"\[?([A-Z]+)\]?(?:\.\.\.)?\]?$", found.usage)
    kind = of_placeholder(command, name.group(1)) if name and name.group(1) != "OPTIONS" else Kind()
    return Kind(("all",), "gpus") if kind.ask == "gpus" and command == "set" else kind


def actions_of(commands):
    """{action: its words after it}: "drain GPU..." """
    found = dict(commands).get(ACTION_COMMAND)
    lines = [item for block in found.blocks if block.header == "Actions" for item in block.items] if found else []
    return {line.split()[0]: line.split()[1:] for line, _ in reversed(lines)}


def limits_of(commands):
    """The keys of `admin limits USER KEY=VALUE`."""
    for block in dict(commands)[ACTION_COMMAND].blocks:
        for line, text in block.items if block.header == "Actions" else ():
            if "KEY=VALUE" in line:
                return [f"{key}=" for key in re.findall(r"[a-z_]+(?=[,;])", text)]
    return []


def flags_of(found):
    return " ".join(flag for option in found.options() for flag in option.flags)


def program_values(named):
    """Options that take the next word, so that the program is not looked for there. A name means the same in each."""
    return list(dict.fromkeys(flag for command, found in named if command in PROGRAM_COMMANDS
                              for option in found.options() if option.placeholder for flag in option.flags))


# ---- bash

BASH_PARTS = r'''
# Sets word: what is typed of the word at the cursor; option: the word before it; need: what is before a colon in it.
_gpumux_look() {
  local at=$COMP_CWORD
  word=${COMP_WORDS[at]} need=
  # bash makes three words of --option=value, and of ok:17
  [ "$word" != : ] && [ "${COMP_WORDS[at-1]}" = : ] && at=$((at - 1))
  [ "${COMP_WORDS[at]}" = : ] && need=${COMP_WORDS[at-1]} && at=$((at - 1))
  option=${COMP_WORDS[at-1]}
  [ "$option" = = ] && option=${COMP_WORDS[at-2]}
  case $word in = | :) word= ;; esac
}
_gpumux_offer() {
  local found
  while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -W "$1" -- "$word")
}
# Of conditions such as ok:17: bash replaces only what comes after the colon.
_gpumux_ask() {
  local found
  while IFS= read -r found; do
    if [ -z "$need" ]; then echo "$found"; else case $found in "$need":*) echo "${found#*:}" ;; esac; fi
  done < <(gpumux __complete "$1" 2>/dev/null)
}
# Words with commas between them.
_gpumux_list() {
  local found before='' parts=''
  case $word in *,*) before=${word%,*}, ;; esac
  for found in $1; do case ,$before in *",$found,"*) ;; *) parts+="$before$found " ;; esac; done
  compopt -o nospace
  _gpumux_offer "$parts"
}
# The command line that begins with the given word, as if nothing stood before it.
_gpumux_program() {
  if [ "$COMP_CWORD" -gt "$1" ] && declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif [ "$COMP_CWORD" = "$1" ]; then
    local found
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    compopt -o default
  else
    compopt -o default
  fi
}
'''
BASH_PASSED_OPTIONS = r'''# Whether the words from the given one on reach a program: its own completion goes on.
_gpumux_passed_options() {
  local i
  for ((i = $1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      --) _gpumux_program $((i + 1)); return ;;
      @PROGRAM_VALUES@)
        [ "${COMP_WORDS[i+1]}" = = ] && ((i++))
        ((i++))
        while [ "${COMP_WORDS[i+1]}" = : ]; do ((i += 2)); done
        ;;
      -*) ;;
      *) _gpumux_program "$i"; return ;;
    esac
  done
  return 1
}
'''


def bash_offer(kind):
    """The commands that offer words of a kind."""
    parts = list(kind.words) + ([f'$(_gpumux_ask {kind.ask})'] if kind.ask else [])
    offer = f'_gpumux_{"list" if kind.is_list else "offer"} "{" ".join(parts)}"' if parts else ":"
    return {"directories": "compopt -o dirnames", "files": "compopt -o default"}.get(kind.files, offer)


def bash_values(prefix, command, found):
    lines = []
    for option in found.options():
        kind = kind_of(command, found, option)
        # A value that may be left out is no reason to offer nothing else.
        if kind is None or (option.placeholder.startswith("[") and kind == Kind()):
            continue
        patterns = " | ".join(f"{prefix}{flag}" for flag in option.flags)
        lines.append(f"    {patterns}) {bash_offer(kind)}; return ;;")
    return lines


def bash_operand(command, commands, found):
    if command in PROGRAM_COMMANDS:
        return '_gpumux_program "$COMP_CWORD"'
    return "_gpumux_actions" if command == ACTION_COMMAND else bash_offer(operand_of(command, found))


def bash_actions(commands):
    actions = actions_of(commands)
    takes_gpus = " | ".join(action for action, words in actions.items() if words[:1] == ["GPU..."])
    return f'''_gpumux_actions() {{
  if [ "$COMP_CWORD" = 2 ]; then _gpumux_offer '{" ".join(sorted(actions))}'; return; fi
  case ${{COMP_WORDS[2]}} in
    {takes_gpus}) _gpumux_offer "all $(_gpumux_ask gpus)" ;;
    limits)
      if [ "$COMP_CWORD" = 3 ]; then
        _gpumux_offer "$(_gpumux_ask users)"
      elif [ "${{COMP_WORDS[COMP_CWORD]}}" = = ] || [ "${{COMP_WORDS[COMP_CWORD-1]}}" = = ]; then
        _gpumux_offer unlimited
      else
        compopt -o nospace
        _gpumux_offer '{" ".join(limits_of(commands))} default'
      fi
      ;;
  esac
}}
'''


def bash_parts(named):
    values = program_values(named)
    return BASH_PARTS + (BASH_PASSED_OPTIONS.replace("@PROGRAM_VALUES@", " | ".join(values)) if values else "")


def bash(commands):
    names = " ".join(command for command, _ in commands)
    lines = [BANNER + bash_parts(commands) + bash_actions(commands), "_gpumux() {", "  local word option need",
             "  COMPREPLY=()",
             "  if [ \"$COMP_CWORD\" -gt 1 ] && [ \"${COMP_WORDS[1]}\" = --simulated ]; then",
             "    COMP_WORDS=(\"${COMP_WORDS[0]}\" \"${COMP_WORDS[@]:2}\") COMP_CWORD=$((COMP_CWORD - 1))", "  fi",
             "  local command=${COMP_WORDS[1]}", "  _gpumux_look",
             "  case $COMP_CWORD:$word in 1:-*) _gpumux_offer '--help --simulated'; return ;; esac",
             f"  if [ \"$COMP_CWORD\" = 1 ]; then _gpumux_offer '{names} help'; return; fi",
             f"  if [ \"$command\" = help ]; then _gpumux_offer '{names}'; return; fi",
             f"  case $command in {' | '.join(c for c, _ in commands if c in PROGRAM_COMMANDS)})"
             " _gpumux_passed_options 2 && return ;; esac",
             "  case $command:$option in"]
    for command, found in commands:
        lines += bash_values(command + ":", command, found)
    lines += ["  esac", "  case $command:$word in"]
    for command, found in commands:
        lines += [f"    {command}:-*) _gpumux_offer '{flags_of(found)}' ;;",
                  f"    {command}:*) {bash_operand(command, commands, found)} ;;"]
    return "\n".join([*lines, "  esac", "}", "complete -F _gpumux gpumux", ""])


def bash_program(name, found):
    function = "_" + name.replace("-", "_")
    lines = [BANNER + bash_parts([(name, found)]), f"{function}() {{", "  local word option need", "  COMPREPLY=()",
             "  _gpumux_look"]
    if name in PROGRAM_COMMANDS:
        lines += ["  _gpumux_passed_options 1 && return"]
    lines += ["  case $option in", *bash_values("", name, found), "  esac", "  case $word in",
              f"    -*) _gpumux_offer '{flags_of(found)}' ;;", f"    *) {bash_operand(name, [], found)} ;;",
              "  esac", "}"]
    return "\n".join([*lines, f"complete -F {function} {name}", ""])


# ---- zsh

def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_action(kind):
    if kind.files:
        return "_files -/" if kind.files == "directories" else "_files"
    parts = [*kind.words, *([f"$(gpumux __complete {kind.ask} 2>/dev/null)"] if kind.ask else [])]
    if not parts:
        return ""
    return f"_sequence compadd - {' '.join(parts)}" if kind.is_list else f"({' '.join(parts)})"


def zsh_option(option, kind):
    text = option.text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    value = ""
    if kind is not None:
        value = ":" * (1 + option.placeholder.startswith("[")) + option.placeholder.strip("[]") + ":" + zsh_action(kind)
    excluded = "(" + " ".join(option.flags) + ")"
    return [quoted(f"{excluded}{flag}{'=' * (value != '' and flag.startswith('--'))}[{text}]{value}")
            for flag in option.flags]


def zsh_arguments(command, commands, found):
    specs = [spec for option in found.options() for spec in zsh_option(option, kind_of(command, found, option))]
    if command in PROGRAM_COMMANDS:
        specs += [quoted("(-)1:program:_command_names -e"), quoted("*::argument:_normal")]
    elif command == ACTION_COMMAND:
        specs += [quoted(f"1:action:({' '.join(sorted(actions_of(commands)))})"),
                  quoted("*:what:(all $(gpumux __complete gpus 2>/dev/null) $(gpumux __complete users 2>/dev/null)"
                         f" {' '.join(limits_of(commands))} default)")]
    elif operand_of(command, found) != Kind():
        specs += [quoted(f"*:word:{zsh_action(operand_of(command, found))}")]
    return "_arguments -s " + " \\\n        ".join(specs)


def zsh(whole, commands):
    summaries = dict(next(block.items for block in whole.blocks if block.header == "Commands"))
    lines = ["#compdef gpumux", BANNER, "_gpumux() {", "  local -a commands", "  commands=("]
    lines += [f"    {quoted(f'{command}:{text}')}" for command, text in summaries.items()]
    lines += ["    'help:Explain a command'", "  )",
              "  if [[ CURRENT -gt 2 && $words[2] == --simulated ]]; then shift words; (( CURRENT-- )); fi",
              "  if (( CURRENT == 2 )); then",
              "    _describe -t commands 'gpumux command' commands", "    return", "  fi", "  local command=$words[2]",
              "  shift words", "  (( CURRENT-- ))", "  case $command in"]
    for command, found in commands:
        lines += [f"    {command})", "      " + zsh_arguments(command, commands, found), "      ;;"]
    lines += ["    help) _describe -t commands 'gpumux command' commands ;;", "  esac", "}", '_gpumux "$@"', ""]
    return "\n".join(lines)


def zsh_program(name, found):
    return "\n".join([f"#compdef {name}", BANNER, zsh_arguments(name, [], found), ""])


# ---- fish

def fish_words(kind):
    if kind.files:
        return "(__fish_complete_directories)" if kind.files == "directories" else ""
    ask = f"gpumux __complete {kind.ask} 2>/dev/null"
    if kind.is_list:
        return f"(__fish_append , {' '.join([*kind.words, *([f'({ask})'] if kind.ask else [])])})"
    return " ".join([*kind.words, *([f"({ask})"] if kind.ask else [])])


def fish_lines(begin, command, commands, found):
    lines = []
    for option in found.options():
        flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
        kind = kind_of(command, found, option)
        value = ""
        if kind is not None and kind.files == "files":
            value = " -r -F"
        elif kind is not None and (kind != Kind() or not option.placeholder.startswith("[")):
            value = f" -x -a {quoted(fish_words(kind))}" if kind != Kind() else " -x"
        lines.append(f"{begin} {flags}{value} -d {quoted(option.text)}")
    if command in PROGRAM_COMMANDS:
        skip = " --fcs-skip=2" if commands else ""
        lines.append(f"{begin} -a '(__fish_complete_subcommand{skip})'")
    elif command == ACTION_COMMAND:
        words = [*sorted(actions_of(commands)), "all", "(gpumux __complete gpus 2>/dev/null)", *limits_of(commands)]
        lines.append(f"{begin} -a {quoted(' '.join(words))}")
    elif operand_of(command, found) != Kind():
        lines.append(f"{begin} -a {quoted(fish_words(operand_of(command, found)))}")
    return lines


def fish(whole, commands):
    summaries = dict(next(block.items for block in whole.blocks if block.header == "Commands"))
    lines = [BANNER, "complete -c gpumux -f"]
    for command, text in [*summaries.items(), ("help", "Explain a command")]:
        lines.append(f"complete -c gpumux -n __fish_use_subcommand -a {command} -d {quoted(text)}")
    names = " ".join(summaries)
    lines.append(f"complete -c gpumux -n '__fish_seen_subcommand_from help' -a {quoted(names)}")
    for command, found in commands:
        here = quoted(f"__fish_seen_subcommand_from {command}")
        lines += fish_lines(f"complete -c gpumux -n {here}", command, commands, found)
    return "\n".join(lines) + "\n"


def fish_program(name, found):
    return "\n".join([BANNER, f"complete -c {name} -f", *fish_lines(f"complete -c {name}", name, [], found)]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where the programs are")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="laid out like /usr/share")
    arguments = parser.parse_args()
    whole, commands = help_text.ask_gpumux(arguments.bin / "gpumux")
    texts = {"gpumux": (bash(commands), zsh(whole, commands), fish(whole, commands))}
    for name in built(arguments.bin):
        found = help_text.ask(arguments.bin / name, name)
        texts[name] = (bash_program(name, found), zsh_program(name, found), fish_program(name, found))
    for name, (for_bash, for_zsh, for_fish) in texts.items():
        for place, text in ((f"bash-completion/completions/{name}", for_bash),
                            (f"zsh/site-functions/_{name}", for_zsh),
                            (f"fish/vendor_completions.d/{name}.fish", for_fish)):
            (arguments.out / place).parent.mkdir(parents=True, exist_ok=True)
            (arguments.out / place).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
