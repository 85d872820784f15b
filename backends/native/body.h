// All kernels of one instruction set, in the order in which they build on one another.
#include "vectors.h"
#include "product.h"
#include "table.h"
#include "scaled.h"
#include "extended.h"
#include "viterbi.h"
#include "driver.h"
#include "covariance.h"
