// All kernels of one instruction set, in the order in which they build on one another.
#define VECTOR_BYTES 32
#include "vectors.h"
#include "product.h"
#include "table.h"
#include "scaled.h"
#include "viterbi.h"
#include "batch.h"
#include "log_space.h"
#include "best_wide.h"
#include "abreast_tables.h"

namespace abreast {
#include "abreast.h"
#include "abreast_best.h"
}  // namespace abreast

#undef VECTOR_BYTES
#if SPAN > 1
namespace abreast_broad {  // the same with twice as many chains in a vector
#define VECTOR_BYTES 64
#include "vectors.h"
#include "abreast.h"
#include "abreast_best.h"
#undef VECTOR_BYTES
}  // namespace abreast_broad
#endif

#include "driver.h"
#include "covariance.h"
