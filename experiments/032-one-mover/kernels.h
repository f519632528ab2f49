// SPDX-License-Identifier: Apache-2.0
// The kernels of mover.cc, as nvcc 13.0 compiles them (-arch=compute_75 -ptx):
//
//   walk(a, words, passes)                            passes times over: a[i] = a[i] * 1664525 + 1013904223
//   check(a, words, passes, salt, wrong, set)         set: a[i] = i ^ salt; else counts the words that are not what so
//                                                     many passes make of that
#pragma once

namespace {
constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry walk(
  .param .u64 walk_param_0,
  .param .u64 walk_param_1,
  .param .u32 walk_param_2
)
{
  .reg .pred   %p<5>;
  .reg .b32   %r<12>;
  .reg .b64   %rd<13>;
  ld.param.u64   %rd6, [walk_param_0];
  ld.param.u64   %rd7, [walk_param_1];
  ld.param.u32   %r3, [walk_param_2];
  setp.eq.s32   %p1, %r3, 0;
  @%p1 bra   $L__BB0_6;
  mov.u32   %r5, %ctaid.x;
  mov.u32   %r6, %ntid.x;
  mul.wide.u32   %rd8, %r5, %r6;
  mov.u32   %r7, %tid.x;
  cvt.u64.u32   %rd9, %r7;
  add.s64   %rd1, %rd8, %rd9;
  mov.u32   %r8, %nctaid.x;
  mul.wide.u32   %rd2, %r8, %r6;
  cvta.to.global.u64   %rd3, %rd6;
  mov.u32   %r11, 0;
$L__BB0_2:
  setp.ge.u64   %p2, %rd1, %rd7;
  @%p2 bra   $L__BB0_5;
  mov.u64   %rd12, %rd1;
$L__BB0_4:
  shl.b64   %rd10, %rd12, 2;
  add.s64   %rd11, %rd3, %rd10;
  ld.global.u32   %r9, [%rd11];
  mad.lo.s32   %r10, %r9, 1664525, 1013904223;
  st.global.u32   [%rd11], %r10;
  add.s64   %rd12, %rd12, %rd2;
  setp.lt.u64   %p3, %rd12, %rd7;
  @%p3 bra   $L__BB0_4;
$L__BB0_5:
  add.s32   %r11, %r11, 1;
  setp.lt.u32   %p4, %r11, %r3;
  @%p4 bra   $L__BB0_2;
$L__BB0_6:
  ret;
}
.visible .entry check(
  .param .u64 check_param_0,
  .param .u64 check_param_1,
  .param .u32 check_param_2,
  .param .u32 check_param_3,
  .param .u64 check_param_4,
  .param .u32 check_param_5
)
{
  .reg .pred   %p<15>;
  .reg .b32   %r<35>;
  .reg .b64   %rd<42>;
  ld.param.u64   %rd19, [check_param_0];
  ld.param.u64   %rd16, [check_param_1];
  ld.param.u32   %r15, [check_param_2];
  ld.param.u32   %r16, [check_param_3];
  ld.param.u64   %rd17, [check_param_4];
  ld.param.u32   %r17, [check_param_5];
  cvta.to.global.u64   %rd1, %rd19;
  mov.u32   %r18, %ctaid.x;
  mov.u32   %r19, %ntid.x;
  cvt.u64.u32   %rd2, %r19;
  mul.wide.u32   %rd20, %r18, %r19;
  mov.u32   %r20, %tid.x;
  cvt.u64.u32   %rd21, %r20;
  add.s64   %rd36, %rd20, %rd21;
  setp.ge.u64   %p1, %rd36, %rd16;
  mov.u64   %rd41, 0;
  @%p1 bra   $L__BB1_15;
  setp.eq.s32   %p2, %r17, 0;
  mov.u32   %r21, %nctaid.x;
  cvt.u64.u32   %rd22, %r21;
  mul.lo.s64   %rd4, %rd22, %rd2;
  @%p2 bra   $L__BB1_3;
$L__BB1_2:
  cvt.u32.u64   %r22, %rd36;
  xor.b32    %r23, %r22, %r16;
  shl.b64   %rd24, %rd36, 2;
  add.s64   %rd25, %rd1, %rd24;
  st.global.u32   [%rd25], %r23;
  add.s64   %rd36, %rd36, %rd4;
  setp.lt.u64   %p3, %rd36, %rd16;
  @%p3 bra   $L__BB1_2;
  bra.uni   $L__BB1_15;
$L__BB1_3:
  setp.eq.s32   %p4, %r15, 0;
  @%p4 bra   $L__BB1_13;
  add.s32   %r1, %r15, -1;
  and.b32    %r2, %r15, 3;
  sub.s32   %r3, %r15, %r2;
  mov.u64   %rd41, 0;
$L__BB1_5:
  cvt.u32.u64   %r25, %rd36;
  xor.b32    %r34, %r25, %r16;
  setp.lt.u32   %p5, %r1, 3;
  @%p5 bra   $L__BB1_8;
  mov.u32   %r31, %r3;
$L__BB1_7:
  mad.lo.s32   %r34, %r34, 158984081, -1426500812;
  add.s32   %r31, %r31, -4;
  setp.ne.s32   %p6, %r31, 0;
  @%p6 bra   $L__BB1_7;
$L__BB1_8:
  setp.eq.s32   %p7, %r2, 0;
  @%p7 bra   $L__BB1_12;
  setp.eq.s32   %p8, %r2, 1;
  mad.lo.s32   %r34, %r34, 1664525, 1013904223;
  @%p8 bra   $L__BB1_12;
  setp.eq.s32   %p9, %r2, 2;
  mad.lo.s32   %r34, %r34, 1664525, 1013904223;
  @%p9 bra   $L__BB1_12;
  mad.lo.s32   %r34, %r34, 1664525, 1013904223;
$L__BB1_12:
  shl.b64   %rd27, %rd36, 2;
  add.s64   %rd28, %rd1, %rd27;
  ld.global.u32   %r26, [%rd28];
  setp.ne.s32   %p10, %r34, %r26;
  selp.u64   %rd29, 1, 0, %p10;
  add.s64   %rd41, %rd41, %rd29;
  add.s64   %rd36, %rd36, %rd4;
  setp.lt.u64   %p11, %rd36, %rd16;
  @%p11 bra   $L__BB1_5;
  bra.uni   $L__BB1_15;
$L__BB1_13:
  mov.u64   %rd41, 0;
$L__BB1_14:
  cvt.u32.u64   %r27, %rd36;
  xor.b32    %r28, %r27, %r16;
  shl.b64   %rd31, %rd36, 2;
  add.s64   %rd32, %rd1, %rd31;
  ld.global.u32   %r29, [%rd32];
  setp.ne.s32   %p12, %r28, %r29;
  selp.u64   %rd33, 1, 0, %p12;
  add.s64   %rd41, %rd41, %rd33;
  add.s64   %rd36, %rd36, %rd4;
  setp.lt.u64   %p13, %rd36, %rd16;
  @%p13 bra   $L__BB1_14;
$L__BB1_15:
  setp.eq.s64   %p14, %rd41, 0;
  @%p14 bra   $L__BB1_17;
  cvta.to.global.u64   %rd34, %rd17;
  atom.global.add.u64   %rd35, [%rd34], %rd41;
$L__BB1_17:
  ret;
}
)";
}  // namespace
