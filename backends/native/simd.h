// Vectors for kernels that are compiled once and cloned for each instruction set by the compiler (DISPATCH on their entry points).
#pragma once

#include "problem.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define DISPATCH __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISPATCH
#endif

namespace energyml {
#include "vectors.h"

// A number in every lane, inside of loops.  By way of memory: where the base has narrower vectors than a clone, the compiler would insert it
// lane by lane (`all`).
template <class T> INLINE V<T> repeated(T x) {
    T lanes[Lanes<T>::count];
    for (T& lane : lanes) lane = x;
    return load<T>(lanes);
}

}  // namespace energyml
