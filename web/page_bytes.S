// SPDX-License-Identifier: Apache-2.0
// The files of the page as they are. The assembler looks for them in built/.

#define FILE(name, file)              \
  .globl name;                        \
  .hidden name;                       \
  .globl name##_end;                  \
  .hidden name##_end;                 \
  name: .incbin file; \
  name##_end:

  .section .rodata
  FILE(gpumux_web_index, "index.gen.html")
  FILE(gpumux_web_script, "app.gen.js")
  FILE(gpumux_web_style, "app.gen.css")
  FILE(gpumux_web_icon, "app.gen.svg")
  .section .note.GNU-stack, "", @progbits
