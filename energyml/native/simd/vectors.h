// Vectors of a fixed number of bytes, written with the compiler's vector extensions: one source serves every
// instruction set.
//
// Each module is compiled once for each instruction set, with ordinary flags, into a shared object of its own; what
// differs between sets is asked of the compiler here, and nowhere at run time.
//
// Vectors have 32 bytes also where registers have 64: a row of labels is padded to whole vectors, and half the padding
// beats wider registers.  What gains by more says so by its template argument BYTES, or is written for vectors X of any
// width.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Vectors in registers have to stay there: functions of a few instructions on them are always inlined.
#define INLINE inline __attribute__((always_inline))

namespace energyml {

// Bytes of a register.
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && defined(__AVX512BW__)
constexpr int REGISTER = 64;
#else
constexpr int REGISTER = 32;
#endif
constexpr bool WIDE_REGISTERS = REGISTER == 64;  // comparisons, choices and shuffles of 64 bytes are one instruction

// Whether lanes are moved by numbers that are known at run time only in one instruction, and a product and a sum are
// one.
#if defined(__AVX2__) && defined(__FMA__)
constexpr bool FAST_SHUFFLES = true, FUSED = true;
#else
constexpr bool FAST_SHUFFLES = false, FUSED = false;
#endif

template <class T> struct Format;
template <> struct Format<float> {
    typedef int32_t Whole;
    static constexpr int mantissa = 23;
    static constexpr int bias = 127;
    static constexpr float low = -87.0f;         // exp(low) is still a normal number
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr float ln2_high = 0.693359375f;
    static constexpr float ln2_low = -2.12194440e-4f;
};
template <> struct Format<double> {
    typedef int64_t Whole;
    static constexpr int mantissa = 52;
    static constexpr int bias = 1023;
    static constexpr double low = -708.0;
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double ln2_high = 6.93145751953125e-1;
    static constexpr double ln2_low = 1.42860682030941723212e-6;
};

// Vectors, and vectors of whole numbers as wide; written out, as GCC forgets `may_alias` where a size depends on a
// template.
template <class T, int BYTES = 32> struct Lanes;
template <> struct Lanes<float, 32> : Format<float> {
    typedef float V __attribute__((vector_size(32), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(32), aligned(4), may_alias));
    static constexpr int count = 8;
};
template <> struct Lanes<float, 64> : Format<float> {
    typedef float V __attribute__((vector_size(64), aligned(4), may_alias));
    typedef int32_t I __attribute__((vector_size(64), aligned(4), may_alias));
    static constexpr int count = 16;
};
template <> struct Lanes<double, 32> : Format<double> {
    typedef double V __attribute__((vector_size(32), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(32), aligned(8), may_alias));
    static constexpr int count = 4;
};
template <> struct Lanes<double, 64> : Format<double> {
    typedef double V __attribute__((vector_size(64), aligned(8), may_alias));
    typedef int64_t I __attribute__((vector_size(64), aligned(8), may_alias));
    static constexpr int count = 8;
};

template <class T, int BYTES = 32> using V = typename Lanes<T, BYTES>::V;
template <class T, int BYTES = 32> using I = typename Lanes<T, BYTES>::I;

// For vectors X of any width: whole numbers as wide as theirs, and other types of the same bits.
template <class X> using Bits = decltype(X{} < X{});
template <class Y, class X> INLINE Y bits_as(X x) { return (Y)x; }  // not converted
// The same as whole numbers without a sign, whose sums and shifts wrap around.
template <class X> INLINE auto unsigned_bits(X x) {
    typedef std::conditional_t<sizeof(x[0]) == 4, uint32_t, uint64_t> Word;
    typedef Word Words __attribute__((vector_size(sizeof(X)), may_alias));
    return (Words)x;
}

// The lanes of one vector, or of two after each other, that the numbers in `from` name.
#if defined(__GNUC__) && !defined(__clang__)
template <class X> INLINE X shuffled(X v, Bits<X> from) { return __builtin_shuffle(v, from); }
template <class X> INLINE X shuffled(X one, X other, Bits<X> from) { return __builtin_shuffle(one, other, from); }
#else
template <class X> INLINE X shuffled(X v, Bits<X> from) {
    constexpr int count = sizeof(X) / sizeof(v[0]);
    X out;
    for (int k = 0; k < count; ++k) out[k] = v[from[k] & (count - 1)];
    return out;
}
template <class X> INLINE X shuffled(X one, X other, Bits<X> from) {
    constexpr int count = sizeof(X) / sizeof(one[0]);
    X out;
    for (int k = 0; k < count; ++k)
        out[k] = from[k] & count ? other[from[k] & (count - 1)] : one[from[k] & (count - 1)];
    return out;
}
#endif

// A number in every lane; by a shuffle, as compilers would insert it lane by lane otherwise.
template <class X, class T> INLINE X spread(T x) { return shuffled(X{x}, Bits<X>{}); }
template <class T, int BYTES = 32> INLINE V<T, BYTES> all(T x) { return spread<V<T, BYTES>>(x); }

template <class T, int BYTES = 32> INLINE V<T, BYTES> load(const T* p) {
    return *reinterpret_cast<const V<T, BYTES>*>(p);
}
template <class T, int BYTES = 32> INLINE void store(T* p, V<T, BYTES> v) { *reinterpret_cast<V<T, BYTES>*>(p) = v; }
template <class X, class T> INLINE X vector_at(const T* p) {
    X v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
template <class X, class T> INLINE void put(T* p, X v) { std::memcpy(p, &v, sizeof v); }

typedef float Half __attribute__((vector_size(16), aligned(4), may_alias));  // as many floats as a vector holds doubles

// A vector of T from numbers of another width, and back.
template <class T, class In> INLINE V<T> load_as(const In* p) {
    if constexpr (std::is_same_v<T, In>)
        return load<T>(p);
    else
        return __builtin_convertvector(*reinterpret_cast<const Half*>(p), V<double>);
}
template <class T, class In> INLINE void store_as(In* p, V<T> v) {
    if constexpr (std::is_same_v<T, In>)
        store<T>(p, v);
    else
        *reinterpret_cast<Half*>(p) = __builtin_convertvector(v, Half);
}

template <class T, int BYTES = 32> INLINE V<T, BYTES> larger(V<T, BYTES> a, V<T, BYTES> b) { return a > b ? a : b; }
template <class T, int BYTES = 32> INLINE V<T, BYTES> smaller(V<T, BYTES> a, V<T, BYTES> b) { return a < b ? a : b; }

// All lanes hold the largest one (or the sum) in the end: pairs, then pairs of pairs.
INLINE V<float> rotated(V<float> v, int by) {
    if (by == 4) return shuffled(v, I<float>{4, 5, 6, 7, 0, 1, 2, 3});
    if (by == 2) return shuffled(v, I<float>{2, 3, 0, 1, 6, 7, 4, 5});
    return shuffled(v, I<float>{1, 0, 3, 2, 5, 4, 7, 6});
}
INLINE V<double> rotated(V<double> v, int by) {
    if (by == 2) return shuffled(v, I<double>{2, 3, 0, 1});
    return shuffled(v, I<double>{1, 0, 3, 2});
}
template <class T> INLINE T horizontal_max(V<T> v) {
    if constexpr (Lanes<T>::count == 8) v = larger<T>(v, rotated(v, 4));
    v = larger<T>(v, rotated(v, 2));
    v = larger<T>(v, rotated(v, 1));
    return v[0];
}
template <class T> INLINE T horizontal_sum(V<T> v) {
    if constexpr (Lanes<T>::count == 8) v = v + rotated(v, 4);
    v = v + rotated(v, 2);
    v = v + rotated(v, 1);
    return v[0];
}

// Whether any lane of a mask is set.
template <class T, int BYTES = 32> INLINE bool any(I<T, BYTES> mask) {
#if defined(__AVX512F__)
    if constexpr (BYTES == 64) return _mm512_test_epi64_mask((__m512i)mask, (__m512i)mask) != 0;
#endif
#if defined(__AVX__)
    if constexpr (BYTES == 32) return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#endif
    const auto words = bits_as<I<double, BYTES>>(mask);
    int64_t found = 0;
    for (int k = 0; k < Lanes<double, BYTES>::count; ++k) found |= words[k];
    return found != 0;
}

// Lanes below `live` are set.
template <class T> INLINE I<T> first_lanes(int64_t live) {
    I<T> index;
    for (int k = 0; k < Lanes<T>::count; ++k) index[k] = k;
    return index < (static_cast<typename Lanes<T>::Whole>(live) - I<T>{});
}

// The halves of a vector of 64 bytes, and such a vector of two halves.
typedef int64_t FourWords __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t EightWords __attribute__((vector_size(64), aligned(8), may_alias));
template <class T> INLINE V<T, 64> joined(V<T> one, V<T> other) {
    const auto a = bits_as<FourWords>(one), b = bits_as<FourWords>(other);
    return bits_as<V<T, 64>>(static_cast<EightWords>(__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7)));
}
template <class T> INLINE V<T> low_half(V<T, 64> v) {
    const auto words = bits_as<EightWords>(v);
    return bits_as<V<T>>(static_cast<FourWords>(__builtin_shufflevector(words, words, 0, 1, 2, 3)));
}
template <class T> INLINE V<T> high_half(V<T, 64> v) {
    const auto words = bits_as<EightWords>(v);
    return bits_as<V<T>>(static_cast<FourWords>(__builtin_shufflevector(words, words, 4, 5, 6, 7)));
}

}  // namespace energyml
