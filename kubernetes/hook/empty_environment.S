// SPDX-License-Identifier: Apache-2.0
// Where gpumux-cdi-hook starts: takes the environment away before the C library has seen it.
//
// Runtimes hand the image's environment to hooks. A static program has no loader, but its C library reads variables
// all the same (GLIBC_TUNABLES and others), before main. So this runs first. The kernel has put on the stack: argc,
// argv, a null pointer, the environment, a null pointer, the auxiliary vector up to an entry of type 0. The auxiliary
// vector moves down, to behind an environment that has no entry.
    .globl gpumux_hook_start
    .type gpumux_hook_start, @function
    .text
gpumux_hook_start:
    xorl %ebp, %ebp
    movq (%rsp), %rax             // argc
    leaq 16(%rsp,%rax,8), %rdi    // the first variable; the auxiliary vector's new place is one word on
    movq %rdi, %rsi
1:  movq (%rsi), %rcx
    addq $8, %rsi
    testq %rcx, %rcx
    jnz 1b
    movq $0, (%rdi)
    addq $8, %rdi
2:  movq (%rsi), %rcx             // rsi is at or above rdi, so that no entry is overwritten before it has moved
    movq 8(%rsi), %rax
    movq %rcx, (%rdi)
    movq %rax, 8(%rdi)
    addq $16, %rsi
    addq $16, %rdi
    testq %rcx, %rcx
    jnz 2b
    jmp _start
    .size gpumux_hook_start, . - gpumux_hook_start
    .section .note.GNU-stack,"",@progbits
