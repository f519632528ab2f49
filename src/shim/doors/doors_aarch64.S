// SPDX-License-Identifier: Apache-2.0
// dlsym and dlopen on 64-bit Arm: see doors.h and doors_x86_64.S. The link register is as the caller left it when the
// stub jumps on, so the real function sees the caller's return address. x16 is the register from which a jump may land
// on a function that branch target identification (BTI) guards.
#if defined(__aarch64__)
  .text

  .globl dlsym
  .type dlsym, %function
dlsym:
  .cfi_startproc
  hint #34  // bti c
  stp x29, x30, [sp, #-32]!
  .cfi_adjust_cfa_offset 32
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  stp x0, x1, [sp, #16]
  mov x29, sp
  bl gpumux_override_symbol
  mov x9, x0
  ldp x0, x1, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_adjust_cfa_offset -32
  .cfi_restore x29
  .cfi_restore x30
  cbnz x9, 1f
  adrp x16, gpumux_real_dlsym
  ldr x16, [x16, #:lo12:gpumux_real_dlsym]
  br x16
1:
  mov x0, x9
  ret
  .cfi_endproc
  .size dlsym, . - dlsym

  .globl dlopen
  .type dlopen, %function
dlopen:
  .cfi_startproc
  hint #34  // bti c
  stp x29, x30, [sp, #-32]!
  .cfi_adjust_cfa_offset 32
  .cfi_rel_offset x29, 0
  .cfi_rel_offset x30, 8
  str x0, [sp, #16]
  mov x29, sp
  mov w0, w1
  bl gpumux_dlopen_flags
  mov w1, w0
  ldr x0, [sp, #16]
  ldp x29, x30, [sp], #32
  .cfi_adjust_cfa_offset -32
  .cfi_restore x29
  .cfi_restore x30
  adrp x16, gpumux_real_dlopen
  ldr x16, [x16, #:lo12:gpumux_real_dlopen]
  br x16
  .cfi_endproc
  .size dlopen, . - dlopen

#endif
  .section .note.GNU-stack, "", %progbits
