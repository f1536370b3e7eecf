// Elementary functions: each within two units in the last place, to where it underflows, as `math.rs` and `wide.rs`
// of `src/run/cpu/elementwise/` compute them; coefficients are explained there. What the library of the toolkit computes that exactly is
// left to it. Sums and products whose roundings matter are written as fused operations, or are exact.

#define BOTH(name, single, wide) \
  DEVICE float name(float x) { return single(x); } \
  DEVICE double name(double x) { return wide(x); }
BOTH(f_exp, expf, exp)
BOTH(f_expm1, expm1f, expm1)
BOTH(f_log, logf, log)
BOTH(f_log1p, log1pf, log1p)
BOTH(f_sqrt, sqrtf, sqrt)
BOTH(f_floor, floorf, floor)
BOTH(f_ceil, ceilf, ceil)
BOTH(f_round, rintf, rint)
BOTH(f_sin, sinf, sin)
BOTH(f_atan, atanf, atan)
BOTH(f_cos, cosf, cos)
BOTH(f_tanh, tanhf, tanh)
BOTH(f_cosh, coshf, cosh)
BOTH(f_erf, erff, erf)
template <class T> DEVICE T f_reciprocal(T x) { return (T)1 / x; }
template <class T> DEVICE T f_detach(T x) { return x; }
// tanf and powf may be four units off, sinhf three.
DEVICE float f_tan(float x) { return (float)tan((double)x); }
DEVICE double f_tan(double x) { return tan(x); }
DEVICE float f_pow(float x, float y) { return y == 2.0f ? x * x : (float)pow((double)x, (double)y); }
DEVICE double f_pow(double x, double y) { return pow(x, y); }

// -- of float ----------------------------------------------------------------------------------------

// Two to a whole number between -126 and 127.
DEVICE float power_of_two(int n) { return __uint_as_float((u32)(n + 127) << 23); }

// An exponential of at most one: k (1 - p) / 2^64, where k is a power of two.
struct Decay { float k, p; };

DEVICE Decay decay(float t) {
  const float n = rintf(t * -1.44269504f), r = fmaf(n, -2.12194440e-4f, fmaf(n, 0.693359375f, t));
  float p = -0.00140410801f;
  p = fmaf(p, r, 0.00836585648f);
  p = fmaf(p, r, -0.0416647606f);
  p = fmaf(p, r, 0.166665509f);
  p = fmaf(p, r, -0.50000006f);
  Decay e;
  e.k = power_of_two((int)n + 64);
  e.p = fmaf(r * r, p, r);
  return e;
}

// 2^f - 1.
DEVICE float beyond_one(float f) {
  float p = 0.000153267814f;
  p = fmaf(p, f, 0.00133910251f);
  p = fmaf(p, f, 0.00961850584f);
  p = fmaf(p, f, 0.0555035956f);
  p = fmaf(p, f, 0.240226477f);
  p = fmaf(p, f, 0.693147182f);
  return p * f;
}

// factor / (1 + e), or factor e / (1 + e) where x is negative.
DEVICE float gated(float x, float factor, Decay e) {
  const float small = fmaf(-e.k, e.p, e.k) * 5.42101086e-20f, sum = 1.0f + small;
  // What the sum's rounding took is taken off the numerator, about.
  const float p = fmaf(small - (sum - 1.0f), 0.6f, e.p), k = factor * e.k;
  return x < 0.0f ? fmaf(-k, p, k) / sum * 5.42101086e-20f : factor / sum;
}

DEVICE float f_sigmoid(float x) { return !(x == x) ? x : gated(x, 1.0f, decay(fminf(fabsf(x), 105.0f))); }

DEVICE float f_silu(float x) {
  if (!(x >= -125.0f)) return x * 0.0f;
  return gated(x, x, decay(fminf(fabsf(x), 125.0f)));
}

DEVICE float f_softplus(float x) {
  if (!(x < 1e30f)) return x;
  const Decay parts = decay(fminf(fabsf(x), 125.0f));
  const float e = fmaf(-parts.k, parts.p, parts.k) * 5.42101086e-20f, sum = 2.0f + e, lost = e - (sum - 2.0f);
  const float u = (e + e) / sum, square = u * u;
  float z = 0.000547007483f;
  z = fmaf(z, square, 0.00218773633f);
  z = fmaf(z, square, 0.0125066992f);
  z = fmaf(z, square, 0.0833330229f) * square;
  z = fmaf(lost, -0.42f, z);
  const float line = fmaxf(x, 0.0f), high = fmaxf(line, u), low = fminf(line, u), both = high + low;
  return both + fmaf(u, z, low - (both - high));
}

DEVICE float f_sinh(float x) {
  // Small numbers are the nearest to their own, and NaN stays.
  if (!(fabsf(x) >= 2e-4f)) return x;
  const float t = fminf(fabsf(x), 89.6f), n = rintf(t * 1.44269504f);
  const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, t)), square = r * r;
  float sine = fmaf(fmaf(0.000199739879f, square, 0.00833317544f), square, 0.166666672f);
  sine = fmaf(sine * square, r, r);
  const float rise = fmaf(fmaf(0.00139354658f, square, 0.0416664593f), square, 0.5f) * square;
  const float k = power_of_two((int)n - 2), inverse = n > 100.0f ? 0.0f : power_of_two(-(int)n - 2);
  const float sum = fmaf(rise, k - inverse, fmaf(sine, k + inverse, k - inverse)) * 2.0f;
  return copysignf(sum, x);
}

static __device__ const float normal_centres[16] = {
  1.2487793f, 1.74682617f, 2.24987793f, 2.75354004f, 3.50585938f, 4.49414062f, 5.48535156f, 6.51269531f,
  8.00317383f, 10.0141602f, 11.9870605f, 13.9985352f, 0.0f, 0.381103516f, 0.619018555f, 0.881713867f,
};
static __device__ const float normal_powers[7][16] = {
  {
    -0.00124508073f, -0.000429551554f, -0.000159539064f, -7.92421997e-05f, -1.98463604e-05f, -4.69058023e-06f,
    -1.22027723e-06f, -4.74570442e-07f, -1.04389549e-07f, -2.18630714e-08f, -4.28115055e-09f, 9.23499388e-10f,
    -0.0200476553f, -0.0101471525f, -0.00509015238f, -0.00301386323f,
  },
  {
    0.00367854885f, 0.00139774045f, 0.000570567616f, 0.000251034042f, 8.41911969e-05f, 2.34050185e-05f,
    7.63866956e-06f, 2.77219533e-06f, 7.9283177e-07f, 1.85745961e-07f, 5.65103235e-08f, 1.98816963e-08f,
    0.0607944503f, 0.0243943334f, 0.0141499052f, 0.00792805012f,
  },
  {
    -0.00992235634f, -0.00415586215f, -0.00186669594f, -0.000896373065f, -0.000335994235f, -0.000109330853f,
    -4.131077e-05f, -1.70342591e-05f, -5.646094e-06f, -1.62369906e-06f, -5.86549561e-07f, -2.4292703e-07f,
    -0.132773012f, -0.0561635569f, -0.0338910967f, -0.0199206565f,
  },
  {
    0.0244579874f, 0.0113474447f, 0.00562785845f, 0.00297576701f, 0.00127251516f, 0.000485297322f,
    0.000211380495f, 9.98484174e-05f, 3.92329603e-05f, 1.37627039e-05f, 5.83395513e-06f, 2.75652133e-06f,
    0.249988809f, 0.114880919f, 0.0730014965f, 0.0454386137f,
  },
  {
    -0.0526779592f, -0.0273343436f, -0.0150958896f, -0.00883863308f, -0.00435503619f, -0.00196393137f,
    -0.000993417692f, -0.000538881111f, -0.000252494123f, -0.000108252891f, -5.42044399e-05f, -2.9655781e-05f,
    -0.398942083f, -0.201340199f, -0.135544792f, -0.0898306966f,
  },
  {
    0.0927739814f, 0.0545278154f, 0.0338984244f, 0.0221765749f, 0.0127241416f, 0.00685478607f, 0.00405561458f,
    0.00253940513f, 0.00142565765f, 0.000750226201f, 0.000444841222f, 0.000282285124f, 0.5f, 0.28091228f,
    0.201941952f, 0.143683031f,
  },
  {
    0.288337231f, 0.323982626f, 0.345712721f, 0.359571636f, 0.372282743f, 0.381575167f, 0.386825621f,
    0.390134215f, 0.392984897f, 0.395077586f, 0.396221906f, 0.396936834f, 0.0f, 0.14407374f, 0.200894535f,
    0.245767981f,
  },
};

DEVICE float f_gelu(float x) {
  if (!(x >= -14.9f)) return x * 0.0f;
  const float t = fminf(fabsf(x), 14.9f);
  const u32 place = __float_as_uint(t + 1.0f) >> 21 & 15;
  const float d = t - normal_centres[place];
  float tail = normal_powers[0][place];
#pragma unroll
  for (int i = 1; i < 7; ++i) tail = fmaf(tail, d, normal_powers[i][place]);
  const float square = t * t, lost = fmaf(t, t, -square), n = rintf(square * -0.721347511f);
  float f = fmaf(square, -0.721347511f, -n);
  f = fmaf(lost, -0.721347511f, fmaf(square, -9.62981517e-09f, f));
  tail = fmaf(tail, beyond_one(f), tail) * power_of_two((int)n + 64);
  return fmaf(tail, -5.42101086e-20f, fmaxf(x, 0.0f));
}

DEVICE float f_gelu_tanh(float x) {
  if (!(x >= -11.0f)) return x * 0.0f;
  const float t = fminf(fabsf(x), 11.0f), a = 2.30220819f, b = 0.102943242f;
  const float square = t * t, square_low = fmaf(t, t, -square);
  const float cubic = b * square, cubic_low = fmaf(b, square, -cubic);
  const float high = fmaxf(cubic, a), low = fminf(cubic, a), slope = high + low;
  float slope_low = low - (slope - high) + cubic_low;
  slope_low = fmaf(-2.01619854e-09f, square, fmaf(b, square_low, slope_low)) + 1.29484024e-08f;
  const float n = rintf(-t * slope), f = -fmaf(t, slope_low, fmaf(t, slope, n));
  Decay e;
  e.k = power_of_two((int)n + 64);
  e.p = -beyond_one(f);
  return gated(x, x, e);
}

// -- of float, for what is rounded to halves ----------------------------------------------------------
//
// A few roundings of f32, which are far below half a unit in the last place of a half; by the special function unit.

#ifdef CPU_SHIM
DEVICE float near_power(float x) { return exp2f(x); }
DEVICE float near_reciprocal(float x) { return 1.0f / x; }
DEVICE float near_tanh(float x) { return tanhf(x); }
DEVICE float near_div(float x, float y) { return x / y; }
#else
DEVICE float near_power(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
DEVICE float near_reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// 2^-11 off at most: for bf16.
DEVICE float near_tanh(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
DEVICE float near_div(float x, float y) {
  float r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
#endif

DEVICE float near_exp(float x) { return near_power(x * 1.44269504f); }
// e^(factor * (x - y)): one rounding of y's multiple, which must not be large.
DEVICE float near_exp_of(float x, float y, float factor = 1.0f) {
  return near_power(fmaf(x, factor * 1.44269504f, y * (factor * -1.44269504f)));
}
DEVICE float near_sigmoid(float x) { return near_reciprocal(1.0f + near_exp(-x)); }
DEVICE float near_silu(float x) { return x * near_sigmoid(x); }
DEVICE float near_gelu_tanh(float x) {
  return x * near_reciprocal(1.0f + near_power(x * fmaf(x * x, -0.102943242f, -2.30220819f)));
}
// Half of erfc by Abramowitz and Stegun, 7.1.26.
DEVICE float near_gelu(float x) {
  const float z = fabsf(x) * 0.707106781f, t = near_reciprocal(fmaf(z, 0.3275911f, 1.0f));
  float p = fmaf(t, 0.5307027145f, -0.7265760135f);
  p = fmaf(p, t, 0.7107068705f);
  p = fmaf(p, t, -0.142248368f);
  p = fmaf(p, t, 0.127414796f);
  const float tail = p * t * near_power(z * z * -1.44269504f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// The largest so far, and the sum of exponentials of what others are less than it.
template <class T, bool NEAR> struct online {
  T most, sum;
  DEVICE online() : most(limits<T>::low()), sum((T)0) {}
  DEVICE static T power(T x) { return NEAR ? (T)near_exp((float)x) : f_exp(x); }
  // What is to be taken off: nothing where all are as low as can be.
  DEVICE static T floor_of(T largest) { return largest == limits<T>::low() ? (T)0 : largest; }
  DEVICE T scaled(T largest) const { return sum * power(most - floor_of(largest)); }
  template <int N> DEVICE void take(const T (&x)[N]) {
    T next = most;
#pragma unroll
    for (int i = 0; i < N; ++i) next = f_max(next, x[i]);
    const T off = floor_of(next);
    T all = sum * power(most - off);
#pragma unroll
    for (int i = 0; i < N; ++i) all += power(x[i] - off);
    most = next;
    sum = all;
  }
};

// -- of double ---------------------------------------------------------------------------------------

// A number in two parts, the second of which is small beside the first.
struct Pair { double high, low; };
DEVICE Pair pair_of(double high, double low) {
  Pair r;
  r.high = high;
  r.low = low;
  return r;
}
DEVICE Pair pair_times(Pair x, Pair y) {
  const double high = x.high * y.high;
  return pair_of(high, fma(x.high, y.high, -high) + fma(x.high, y.low, x.low * y.high));
}
// Of numbers that are not negative.
DEVICE Pair pair_plus(Pair x, Pair y) {
  const double large = fmax(x.high, y.high), small = fmin(x.high, y.high), high = large + small;
  return pair_of(high, small - (high - large) + (x.low + y.low));
}

// e^-t for t >= 0: a fraction, and the power of two that it is to be multiplied by.
DEVICE double decay(Pair t, int& power) {
  if (t.high > 2000.0) t = pair_of(2000.0, 0.0);
  const double n = rint(t.high * -1.4426950408889634);
  const double r = fma(n, 0.6931471803691238, t.high) + fma(n, 1.9082149292705877e-10, t.low);
  power = (int)n;
  return exp(-r);
}

// numerator / (1 + e) * 2^power.
DEVICE double gate(double numerator, double e, int power) {
  const double sum = 1.0 + e, lost = e - (sum - 1.0), quotient = numerator / sum;
  const double rest = fma(-quotient, lost, fma(-quotient, sum, numerator));
  return ldexp(quotient + rest / sum, power);
}
DEVICE double gated(double x, double factor, Pair t) {
  int power;
  const double fraction = decay(t, power), e = ldexp(fraction, power);
  return x < 0.0 ? gate(factor * fraction, e, power) : gate(factor, e, 0);
}

DEVICE double f_sigmoid(double x) { return gated(x, 1.0, pair_of(fabs(x), 0.0)); }
DEVICE double f_silu(double x) {
  return x < -2000.0 ? x * 0.0 : x > 2000.0 ? x : gated(x, x, pair_of(fabs(x), 0.0));
}
DEVICE double f_softplus(double x) {
  const double rest = log1p(exp(-fabs(x)));
  return x > 0.0 ? x + rest : rest;
}
DEVICE double f_sinh(double x) { return sinh(x); }
DEVICE double f_gelu(double x) {
  if (x < -60.0) return x * 0.0;
  if (x > 10.0) return x;
  if (x < -30.0) {
    const double inverse = 1.0 / (x * x);
    double series = 0.0;
    for (int n = 9; n > 0; --n) series = -(double)(2 * n - 1) * inverse * (1.0 + series);
    const Pair square = pair_times(pair_of(x, 0.0), pair_of(x, 0.0));
    int power;
    const double scale = -0.3989422804014327 * decay(pair_of(0.5 * square.high, 0.5 * square.low), power);
    return ldexp(fma(scale, series, scale), power);
  }
  const Pair z = pair_times(pair_of(-x, 0.0), pair_of(0.7071067811865476, -4.833646656726457e-17));
  const double slope = -1.1283791670955126 * exp(-z.high * z.high), half = 0.5 * x;
  return fma(half, erfc(z.high), half * (slope * z.low));
}
DEVICE double f_gelu_tanh(double x) {
  if (x < -100.0) return x * 0.0;
  if (x > 100.0) return x;
  const Pair t = pair_of(fabs(x), 0.0), line = pair_of(1.5957691216057308, -9.96930880911092e-17);
  const Pair cube = pair_of(0.07135481627260025, -6.175149918155315e-19);
  return gated(x, x, pair_times(t, pair_plus(line, pair_times(cube, pair_times(t, t)))));
}
