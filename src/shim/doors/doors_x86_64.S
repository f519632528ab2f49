// SPDX-License-Identifier: Apache-2.0
// dlsym and dlopen: see doors.h. They have no symbol version, and so answer references to every version (libgpumux.gen.map). The stack is as the caller left it when we jump on,
// so the real function sees the caller's return address, by which it finds the caller's library.
#if defined(__x86_64__)
  .text

  .globl dlsym
  .type dlsym, @function
dlsym:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  pushq %rsi
  .cfi_adjust_cfa_offset 8
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call gpumux_override_symbol
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  popq %rsi
  .cfi_adjust_cfa_offset -8
  popq %rdi
  .cfi_adjust_cfa_offset -8
  testq %rax, %rax
  jne 1f
  movq gpumux_real_dlsym(%rip), %rax
  jmp *%rax
1:
  ret
  .cfi_endproc
  .size dlsym, . - dlsym

  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  endbr64
  pushq %rdi
  .cfi_adjust_cfa_offset 8
  subq $16, %rsp
  .cfi_adjust_cfa_offset 16
  movl %esi, %edi
  call gpumux_dlopen_flags
  movl %eax, %esi
  addq $16, %rsp
  .cfi_adjust_cfa_offset -16
  popq %rdi
  .cfi_adjust_cfa_offset -8
  movq gpumux_real_dlopen(%rip), %rax
  jmp *%rax
  .cfi_endproc
  .size dlopen, . - dlopen

#endif
  .section .note.GNU-stack, "", @progbits
