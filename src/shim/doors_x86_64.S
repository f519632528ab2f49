// SPDX-License-Identifier: Apache-2.0
// dlsym and dlopen, each in every symbol version that the platform has: see doors.h. The stack is as the caller left it when we jump on,
// so the real function sees the caller's return address, by which it finds the caller's library.
#if defined(__x86_64__)
  .text

  .globl gpumux_dlsym_stub
  .hidden gpumux_dlsym_stub
  .type gpumux_dlsym_stub, @function
gpumux_dlsym_stub:
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
  .size gpumux_dlsym_stub, . - gpumux_dlsym_stub

  .globl gpumux_dlopen_stub
  .hidden gpumux_dlopen_stub
  .type gpumux_dlopen_stub, @function
gpumux_dlopen_stub:
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
  .size gpumux_dlopen_stub, . - gpumux_dlopen_stub

  .globl gpumux_dlsym_base
  .globl gpumux_dlsym_new
  .globl gpumux_dlopen_base
  .globl gpumux_dlopen_new
  .set gpumux_dlsym_base, gpumux_dlsym_stub
  .set gpumux_dlsym_new, gpumux_dlsym_stub
  .set gpumux_dlopen_base, gpumux_dlopen_stub
  .set gpumux_dlopen_new, gpumux_dlopen_stub
  .type gpumux_dlsym_base, @function
  .type gpumux_dlsym_new, @function
  .type gpumux_dlopen_base, @function
  .type gpumux_dlopen_new, @function
  .symver gpumux_dlsym_base, dlsym@GLIBC_2.2.5
  .symver gpumux_dlsym_new, dlsym@@GLIBC_2.34
  .symver gpumux_dlopen_base, dlopen@GLIBC_2.2.5
  .symver gpumux_dlopen_new, dlopen@@GLIBC_2.34
#endif
  .section .note.GNU-stack, "", @progbits
