// Vectors for kernels that are compiled once and cloned for each instruction set by the compiler (DISPATCH on their entry points).
#pragma once

#include "problem.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define DISPATCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define CLONED_TARGETS
#define WIDE_TARGET __attribute__((target("arch=x86-64-v4")))  // for what has another shape with vectors of 64 bytes
#else
#define DISPATCH
#endif

namespace energyml {

// Whether there are vectors of 64 bytes: comparisons, choices and shuffles of them are one instruction then, and many elsewhere.
inline bool vectors_are_wide() {
#if defined(__GNUC__) && defined(__x86_64__)
    static const bool found = __builtin_cpu_supports("avx512f");
    return found;
#else
    return false;
#endif
}

#define VECTOR_BYTES 32
#include "vectors.h"
}  // namespace energyml
