// Numbers that have an exponent of their own, value = mantissa * 2^exponent, in vectors of either width (see product.h).
//
// Exponents are multiples of UNIT, which keeps them exact up to scores of 1e7; mantissas lie in [2^-4, 2^4] or are 0.

constexpr int UNIT = 8;

template <class X> struct Whole;
template <> struct Whole<float> {
    static constexpr float depth = 48;  // a product this far below the largest exponent is lost, whatever the mantissas
    static constexpr float mass = 1e-14f;  // marginals below this have no pairs worth a look
    static constexpr double most = 3e7;  // exponents are exact up to here, and so are sums of two
};
template <> struct Whole<double> {
    static constexpr double depth = 80, mass = 1e-25, most = 1e15;
};
template <class X> INLINE constexpr X void_exponent() { return static_cast<X>(-1e30); }  // of the number 0

// v * 2^x for whole x that are not too large, of vectors B of either width; 0 or next to nothing below -depth.
template <class X, class B> INLINE B shifted(B v, std::common_type_t<B> x) {
#ifdef TARGET_HAS_SCALE
    constexpr bool broad = sizeof(B) == 64;
    if constexpr (std::is_same_v<X, float> && broad)
        return _mm512_scalef_ps(v, x);
    else if constexpr (std::is_same_v<X, float>)
        return _mm256_scalef_ps(v, x);
    else if constexpr (broad)
        return _mm512_scalef_pd(v, x);
    else
        return _mm256_scalef_pd(v, x);
#else
    const B deepest = spread<B>(-Whole<X>::depth);
    B whole = (x > deepest ? x : deepest) + (Lanes<X>::magic + Lanes<X>::bias);
    Bits<B> bits = bits_as<Bits<B>>(whole) << Lanes<X>::mantissa;
    return v * bits_as<B>(bits);
#endif
}

// A vector B of numbers.
template <class B> struct Parts {
    B mantissa, exponent;
};
template <class B> INLINE Parts<B> parts(B mantissa, std::common_type_t<B> exponent) { return {mantissa, exponent}; }

// exp(x), of a vector B; the reduction is in double, as a score of 1e6 has no digits to spare in float.
template <class X, class B> INLINE Parts<B> split(B x) {
    typedef double Exact __attribute__((vector_size(sizeof(B) / sizeof(X) * sizeof(double))));
    constexpr double magic = 6755399441055744.0, ln2 = 0.693147180559945309417;
    const Exact score = __builtin_convertvector(x, Exact);
    const Exact n = (score * (1.0 / (UNIT * ln2)) + magic) - magic;
    const Exact r = score - n * (UNIT * 6.93145751953125e-1) - n * (UNIT * 1.42860682030941723212e-6);
    const B rounded = __builtin_convertvector(r, B);
    const B rest = __builtin_convertvector(r - __builtin_convertvector(rounded, Exact), B), value = small_exponential<X>(rounded);
    const Bits<B> empty = x == spread<B>(-std::numeric_limits<X>::infinity());
    return {empty ? B{} : value + value * rest, empty ? spread<B>(void_exponent<X>()) : __builtin_convertvector(n, B) * static_cast<X>(UNIT)};
}

#ifdef TARGET_HAS_FMA
// c - a b, rounded once.
INLINE V<float> less_product(V<float> a, V<float> b, V<float> c) { return _mm256_fnmadd_ps(a, b, c); }
#ifdef TARGET_HAS_SCALE
INLINE Broad<float>::V less_product(Broad<float>::V a, Broad<float>::V b, Broad<float>::V c) { return _mm512_fnmadd_ps(a, b, c); }
#endif
#endif

// The same of a vector B of scores.  Where products are fused, floats suffice: UNIT ln 2 in two parts, of which the first leaves a
// remainder without any error, so that rounding it comes last and is made good for.
template <class X, class B> INLINE Parts<B> split_scores(B x) {
#ifdef TARGET_HAS_FMA
    if constexpr (std::is_same_v<X, float>) {
        const B high = spread<B>(UNIT * 0.693147182464599609375f), low = spread<B>(UNIT * -1.904654299957768e-9f);
        const auto nearest = [](B y) __attribute__((always_inline)) { return (y + Lanes<X>::magic) - Lanes<X>::magic; };
        constexpr float per = 1.0f / (UNIT * 0.6931471805599453f);
        B n = nearest(x * per);
        n += nearest(less_product(n, high, x) * per);  // of scores above 1e6 the first may be the neighbour
        const B r = less_product(n, high, x), rounded = less_product(n, low, r);
        const B rest = less_product(n, low, r - rounded), value = small_exponential<X>(rounded);
        const Bits<B> empty = x == spread<B>(-std::numeric_limits<X>::infinity());
        return {empty ? B{} : value + value * rest, empty ? spread<B>(void_exponent<X>()) : n * static_cast<X>(UNIT)};
    } else
#endif
        return split<X>(x);
}
template <class X, class In> INLINE auto split_scores(const In* row, int64_t column, int64_t labels, bool inside) {
    return split_scores<X>(load_labels<X>(row, column, labels, inside, -std::numeric_limits<X>::infinity()));
}

// The same numbers with mantissas in their range.
template <class X, class B> INLINE Parts<B> normalised(Parts<B> of) {
    typedef typename Lanes<X>::Whole Whole;
    const Bits<B> bits = (bits_as<Bits<B>>(of.mantissa) >> Lanes<X>::mantissa) - static_cast<Whole>(Lanes<X>::bias - UNIT / 2);
    const B units = __builtin_convertvector(bits & static_cast<Whole>(-UNIT), B);  // the nearest multiple: UNIT is a power of two
    const Bits<B> empty = of.mantissa == B{};
    return {empty ? of.mantissa : shifted<X>(of.mantissa, -units), empty ? spread<B>(void_exponent<X>()) : of.exponent + units};
}

// A row of numbers, or a packed table of them.
template <class X> struct Numbers {
    X *mantissa, *exponent;
};

// The largest number of a row, or the sum, in vectors of both widths.
template <class X> struct Gathered {
    typedef X B __attribute__((vector_size(32 * SPAN)));
    typedef X N __attribute__((vector_size(32)));
    B broad;
    N narrow;
    INLINE explicit Gathered(X x) : broad(spread<B>(x)), narrow(spread<N>(x)) {}
    template <class A> INLINE void see(A v) {
        if constexpr (sizeof(A) == sizeof(B))
            broad = v > broad ? v : broad;
        else
            narrow = v > narrow ? v : narrow;
    }
    template <class A> INLINE void add(A v) {
        if constexpr (sizeof(A) == sizeof(B))
            broad += v;
        else
            narrow += v;
    }
    INLINE X largest() const {
        V<X> found = narrow;
        for (int k = 0; k < SPAN; ++k) found = larger<X>(part(k), found);
        return horizontal_max<X>(found);
    }
    INLINE X sum() const {
        V<X> found = narrow;
        for (int k = 0; k < SPAN; ++k) found += part(k);
        return horizontal_sum<X>(found);
    }

  private:
    INLINE V<X> part(int k) const { return load(reinterpret_cast<const X*>(&broad) + k * Lanes<X>::count); }
};

// visit(a vector of the width that is meant, the first of its columns): broad ones up to `whole`, others up to `padded`.
template <class X, class F> INLINE void in_vectors(int64_t whole, int64_t padded, F visit) {
    int64_t c = 0;
    for (; c + SPAN * Lanes<X>::count <= whole; c += SPAN * Lanes<X>::count) visit(typename Broad<X>::V{}, c);
    for (; c < padded; c += Lanes<X>::count) visit(V<X>{}, c);
}
