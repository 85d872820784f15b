// The kernels, compiled once for each instruction set into a namespace of its own; `kernels.cpp` picks one at run time, so that a
// wheel runs on any machine of its kind.  ROWS is how many chains share a load of the table: what the registers can hold.  SPAN is how many
// vectors a register holds.
#pragma once

#ifdef _OPENMP
#include <omp.h>
#endif

#include "problem.h"

#define KERNELS_OF(NAME)                  \
    namespace energyml {                  \
    namespace NAME {

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#include <immintrin.h>
#define RUN_TIME_TARGETS

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#define ROWS 8
#define SPAN 2
#define TARGET_HAS_TEST
#define TARGET_HAS_FMA
#define TARGET_HAS_SCALE
KERNELS_OF(v4)
#include "body.h"
}  // namespace v4
}  // namespace energyml
#undef ROWS
#undef SPAN
#undef TARGET_HAS_SCALE
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define ROWS 4
#define SPAN 1
KERNELS_OF(v3)
#include "body.h"
}  // namespace v3
}  // namespace energyml
#undef ROWS
#undef SPAN
#undef TARGET_HAS_TEST
#undef TARGET_HAS_FMA
#pragma GCC pop_options
#endif

#define ROWS 2
#define SPAN 1
KERNELS_OF(plain)
#include "body.h"
}  // namespace plain
}  // namespace energyml
#undef ROWS
#undef SPAN
