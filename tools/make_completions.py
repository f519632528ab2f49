#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes what bash, zsh and fish need to complete `gpumux` command lines, as a part of the build.

    tools/make_completions.py --bin DIR --out DIR     DIR is laid out like /usr/share

Commands, options, and the words that an option may be come from the programs' --help, so they cannot differ. After
`gpumux run` and `gpumux submit` the program's own completion takes over. Where a job's id belongs, gpumux is asked for
the user's jobs.
"""

import argparse
import pathlib
import sys

import help_text

BANNER = "# Made by tools/make_completions.py from gpumux --help. Do not edit."
PROGRAM_COMMANDS = ("run", "submit")    # what follows their options is another command line
GPU_COMMAND = "set"        # takes GPUs
ACTION_COMMAND = "admin"    # takes one of the words that its help lists
JOB_COMMANDS = ("show", "cancel", "logs", "attach", "wait", "hold", "release")    # take ids of jobs
DONE_JOB_COMMANDS = ("show", "logs", "wait")    # and of those that are done, the latest
ASK_FOR_JOBS = "gpumux queue --mine --format label 2>/dev/null"
ASK_FOR_ALL_JOBS = ASK_FOR_JOBS + "; gpumux history --mine --format label 2>/dev/null"


def asking_for_jobs(command):
    return ASK_FOR_ALL_JOBS if command in DONE_JOB_COMMANDS else ASK_FOR_JOBS


def is_folder(option):
    return option.placeholder == "DIR"


def actions_of(commands):
    found = dict(commands).get(ACTION_COMMAND)
    lines = [item for block in found.blocks if block.header == "Actions" for item in block.items] if found else []
    return list(dict.fromkeys(words.split()[0] for words, _ in lines))


def program_options(commands):
    """Options that take the next word, so that the program is not looked for there. A name means the same in each."""
    return dict.fromkeys(flag for command, found in commands if command in PROGRAM_COMMANDS
                         for option in found.options() if option.placeholder for flag in option.flags)


def words_of(found):
    return " ".join(flag for option in found.options() for flag in option.flags)


BASH = r'''{banner}
_gpumux() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}} words='' i
  # bash makes three words of --option=value
  [ "$word" = = ] && word=
  [ "$before" = = ] && before=${{COMP_WORDS[COMP_CWORD-2]}}
  COMPREPLY=()
  if [ "$COMP_CWORD" = 1 ]; then
    words='{commands} help'
  elif [ "$command" = help ]; then
    words='{commands}'
  else
    case $command in {program_commands})
      for ((i = 2; i < COMP_CWORD; i++)); do
        case ${{COMP_WORDS[i]}} in
          --) _gpumux_program $((i + 1)); return ;;
          {program_values}) [ "${{COMP_WORDS[i+1]}}" = = ] && ((i++)); ((i++)) ;;
          -*) ;;
          *) _gpumux_program "$i"; return ;;
        esac
      done
    esac
    case $command:$before in
{values}
      *)
        case $command in
{options}
        esac
        case $word in
          -*) ;;
          *)
            case $command in
              {program_commands}) _gpumux_program "$COMP_CWORD"; return ;;
              {gpu_command}) words=all ;;
              {action_command}) words=; [ "$COMP_CWORD" = 2 ] && words='{actions}' ;;
              {done_job_commands}) words=$({ask_for_all_jobs}) ;;
              {job_commands}) words=$({ask_for_jobs}) ;;
            esac
            ;;
        esac
        ;;
    esac
  fi
  while IFS= read -r i; do COMPREPLY+=("$i"); done < <(compgen -W "$words" -- "$word")
}}
# The command line that begins with the given word, as if nothing stood before it.
_gpumux_program() {{
  if [ "$COMP_CWORD" -gt "$1" ] && declare -F _command_offset >/dev/null; then
    _command_offset "$1"
  elif [ "$COMP_CWORD" = "$1" ]; then
    local found
    while IFS= read -r found; do COMPREPLY+=("$found"); done < <(compgen -c -- "${{COMP_WORDS[COMP_CWORD]}}")
    compopt -o default
  else
    compopt -o default
  fi
}}
complete -F _gpumux gpumux
'''


def bash(commands):
    values, options = [], []
    for command, found in commands:
        options.append(f"          {command}) words='{words_of(found)}' ;;")
        for option in found.options():
            patterns = " | ".join(f"{command}:{flag}" for flag in option.flags)
            if is_folder(option):
                values.append(f"      {patterns}) compopt -o dirnames; return ;;")
            elif option.values():
                values.append(f"      {patterns}) words='{' '.join(option.values())}' ;;")
            elif option.placeholder and not option.placeholder.startswith("["):
                values.append(f"      {patterns}) return ;;")
    return BASH.format(banner=BANNER, commands=" ".join(command for command, _ in commands),
                       program_commands=" | ".join(PROGRAM_COMMANDS), gpu_command=GPU_COMMAND,
                       action_command=ACTION_COMMAND, actions=" ".join(actions_of(commands)),
                       job_commands=" | ".join(JOB_COMMANDS), ask_for_jobs=ASK_FOR_JOBS,
                       done_job_commands=" | ".join(DONE_JOB_COMMANDS), ask_for_all_jobs=ASK_FOR_ALL_JOBS,
                       program_values=" | ".join(program_options(commands)), values="\n".join(values),
                       options="\n".join(options))


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh_option(option):
    text = option.text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    if is_folder(option):
        value = ":folder:_files -/"
    elif option.values():
        value = f":{option.placeholder}:({' '.join(option.values())})"
    elif option.placeholder:
        value = ":" * (1 + option.placeholder.startswith("[")) + option.placeholder.strip("[]") + ":"
    else:
        value = ""
    excluded = "(" + " ".join(option.flags) + ")"
    return [quoted(f"{excluded}{flag}{'=' * (value != '' and flag.startswith('--'))}[{text}]{value}")
            for flag in option.flags]


def zsh(whole, commands):
    summaries = dict(next(block.items for block in whole.blocks if block.header == "Commands"))
    lines = ["#compdef gpumux", BANNER, "_gpumux() {", "  local -a commands", "  commands=("]
    lines += [f"    {quoted(f'{command}:{text}')}" for command, text in summaries.items()]
    lines += ["    'help:Explain a command'", "  )", "  if (( CURRENT == 2 )); then",
              "    _describe -t commands 'gpumux command' commands", "    return", "  fi", "  local command=$words[2]",
              "  shift words", "  (( CURRENT-- ))", "  case $command in"]
    for command, found in commands:
        specs = [spec for option in found.options() for spec in zsh_option(option)]
        if command in PROGRAM_COMMANDS:
            specs += [quoted("(-)1:program:_command_names -e"), quoted("*::argument:_normal")]
        elif command == GPU_COMMAND:
            specs += [quoted("*:GPU:(all)")]
        elif command == ACTION_COMMAND:
            specs += [quoted(f"1:action:({' '.join(actions_of(commands))})"), quoted("*:what: ")]
        elif command in JOB_COMMANDS:
            specs += [quoted(f"*:job:($({asking_for_jobs(command)}))")]
        lines += [f"    {command})", "      _arguments -s " + " \\\n        ".join(specs), "      ;;"]
    lines += ["    help) _describe -t commands 'gpumux command' commands ;;", "  esac", "}", '_gpumux "$@"', ""]
    return "\n".join(lines)


def fish(whole, commands):
    summaries = dict(next(block.items for block in whole.blocks if block.header == "Commands"))
    lines = [BANNER, "complete -c gpumux -f"]
    for command, text in [*summaries.items(), ("help", "Explain a command")]:
        lines.append(f"complete -c gpumux -n __fish_use_subcommand -a {command} -d {quoted(text)}")
    names = " ".join(summaries)
    lines.append(f"complete -c gpumux -n '__fish_seen_subcommand_from help' -a {quoted(names)}")
    for command, found in commands:
        here = quoted(f"__fish_seen_subcommand_from {command}")
        for option in found.options():
            flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
            value = ""
            if is_folder(option):
                value = " -x -a '(__fish_complete_directories)'"
            elif option.placeholder and not option.placeholder.startswith("["):
                value = f" -x -a {quoted(' '.join(option.values()))}" if option.values() else " -x"
            lines.append(f"complete -c gpumux -n {here} {flags}{value} -d {quoted(option.text)}")
        if command in PROGRAM_COMMANDS:
            lines.append(f"complete -c gpumux -n {here} -a '(__fish_complete_subcommand --fcs-skip=2)'")
        elif command == GPU_COMMAND:
            lines.append(f"complete -c gpumux -n {here} -a all")
        elif command == ACTION_COMMAND:
            lines.append(f"complete -c gpumux -n {here} -a {quoted(' '.join(actions_of(commands)))}")
        elif command in JOB_COMMANDS:
            lines.append(f"complete -c gpumux -n {here} -a {quoted(f'({asking_for_jobs(command)})')}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where gpumux is")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="laid out like /usr/share")
    arguments = parser.parse_args()
    whole, commands = help_text.ask_gpumux(arguments.bin / "gpumux")
    files = {
        "bash-completion/completions/gpumux": bash(commands),
        "zsh/site-functions/_gpumux": zsh(whole, commands),
        "fish/vendor_completions.d/gpumux.fish": fish(whole, commands),
    }
    for name, text in files.items():
        (arguments.out / name).parent.mkdir(parents=True, exist_ok=True)
        (arguments.out / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
