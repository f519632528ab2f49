// SPDX-License-Identifier: Apache-2.0
// Included before everything else in libgpumux.so (cmake). Binds functions of which glibc has newer versions to the
// versions that every glibc has (2.2.5 and later on x86-64, 2.17 on 64-bit Arm). So a library built here loads in old
// containers. tools/check_exports.py holds us to GLIBC_2.28.
#pragma once

#if defined(GPUMUX_OLD_GLIBC)
#if defined(__x86_64__)
#define GPUMUX_BASE_VERSION(symbol) __asm__(".symver " #symbol "," #symbol "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define GPUMUX_BASE_VERSION(symbol) __asm__(".symver " #symbol "," #symbol "@GLIBC_2.17")
#endif
GPUMUX_BASE_VERSION(dlvsym);
GPUMUX_BASE_VERSION(pthread_create);
GPUMUX_BASE_VERSION(pthread_join);
GPUMUX_BASE_VERSION(pthread_once);
GPUMUX_BASE_VERSION(pthread_key_create);
GPUMUX_BASE_VERSION(pthread_setspecific);
GPUMUX_BASE_VERSION(pthread_sigmask);
GPUMUX_BASE_VERSION(memcpy);
#if defined(__x86_64__)
__asm__(".symver pthread_setname_np,pthread_setname_np@GLIBC_2.12");
#else
GPUMUX_BASE_VERSION(pthread_setname_np);
#endif
#undef GPUMUX_BASE_VERSION
#endif
