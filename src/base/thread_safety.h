// SPDX-License-Identifier: Apache-2.0
// Which mutex guards what, said so that clang checks it (-Wthread-safety, tools/check_threads.py). Other compilers see
// nothing. Names and meanings are those of clang's documentation, "Thread Safety Analysis".
#pragma once

#if defined(__clang__)
#define GPUMUX_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define GPUMUX_THREAD_SAFETY(attribute)
#endif

#define GPUMUX_CAPABILITY(name) GPUMUX_THREAD_SAFETY(capability(name))
#define GPUMUX_SCOPED_CAPABILITY GPUMUX_THREAD_SAFETY(scoped_lockable)
// A member that is read and written under this mutex only; what a pointer points to.
#define GPUMUX_GUARDED_BY(mutex) GPUMUX_THREAD_SAFETY(guarded_by(mutex))
#define GPUMUX_PT_GUARDED_BY(mutex) GPUMUX_THREAD_SAFETY(pt_guarded_by(mutex))
// A function that is called with these mutexes held, or without.
#define GPUMUX_REQUIRES(...) GPUMUX_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define GPUMUX_EXCLUDES(...) GPUMUX_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
// A function that locks or unlocks them.
#define GPUMUX_ACQUIRE(...) GPUMUX_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define GPUMUX_RELEASE(...) GPUMUX_THREAD_SAFETY(release_capability(__VA_ARGS__))
// A function that gives this mutex, or what has it.
#define GPUMUX_RETURN_CAPABILITY(mutex) GPUMUX_THREAD_SAFETY(lock_returned(mutex))
// A function that clang cannot follow. A comment says why it is right.
#define GPUMUX_NO_THREAD_SAFETY_ANALYSIS GPUMUX_THREAD_SAFETY(no_thread_safety_analysis)
