// What every generated kernel begins with: types, conversions, arithmetic as the IR defines it, and
// reductions over a warp and a block. No toolkit headers: NVRTC compiles it as it stands, and a C++
// compiler does behind tests/cuda/shim.h, which defines CPU_SHIM.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifndef CPU_SHIM
#define SHARED(T, name, count) __shared__ T name[count]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
// No instructions that round to bf16, or two at once, or give the larger of two with NaN: before sm_80, and on a CPU.
#if defined(CPU_SHIM) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800)
#define WITHOUT_SM_80
#endif
#define DEVICE __device__ __forceinline__
#define FULL_WARP 0xffffffffu
// Behind an argument whose bytes no other one has. Beside kernels that begin early this allows reads before the wait;
// that none is compiled so is asserted of all kernels (`scripts/sass_check`).
#define RESTRICT __restrict__

// The first thing that a kernel does. Where it was begun while the kernel before it still runs, it waits until that has
// ended and all that it wrote is there; from then on the kernel behind it may be begun likewise (programmatic dependent
// launch). Elsewhere it does nothing.
DEVICE void follow_the_kernel_before() {
#ifdef CPU_SHIM
  shim::waits_for_the_kernel_before();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Some neighbouring elements, read and written at once.
template <int N, class T> struct __align__(N * sizeof(T)) vec { T v[N]; };

template <class T> DEVICE T* at(T* p, i64 i) { return p + i; }

// -- halves --------------------------------------------------------------------------------------

DEVICE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

#ifdef WITHOUT_SM_80
DEVICE bf16 to_bf16(float x) {
  u32 bits = __float_as_uint(x);
  bf16 r;
  if ((bits & 0x7fffffffu) > 0x7f800000u) r.bits = (u16)((bits >> 16) | 0x40u);
  else r.bits = (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  return r;
}
DEVICE float widen(f16 x) {
  u32 sign = (u32)(x.bits & 0x8000u) << 16, rest = x.bits & 0x7fffu;
  if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest << 13));
  float magnitude = __uint_as_float(rest << 13) * __uint_as_float(0x77800000u);
  return __uint_as_float(sign | __float_as_uint(magnitude));
}
DEVICE f16 to_f16(float x) {
  u32 bits = __float_as_uint(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu, half;
  if (rest > 0x7f800000u) half = 0x7e00u;
  else if (rest >= 0x47800000u) half = 0x7c00u;
  else if (rest < 0x38800000u) half = __float_as_uint(__uint_as_float(rest) + 0.5f) - 0x3f000000u;
  else half = (rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13;
  f16 r;
  r.bits = (u16)(sign | half);
  return r;
}
#else
DEVICE bf16 to_bf16(float x) {
  bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
DEVICE float widen(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
DEVICE f16 to_f16(float x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
#endif

DEVICE u16 narrow(float x, bf16) { return to_bf16(x).bits; }
DEVICE u16 narrow(float x, f16) { return to_f16(x).bits; }
DEVICE u32 both(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

#ifdef WITHOUT_SM_80
template <class H> DEVICE u32 narrow_both(float low, float high, H) { return both(narrow(low, H()), narrow(high, H())); }
#else
DEVICE u32 narrow_both(float low, float high, bf16) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
DEVICE u32 narrow_both(float low, float high, f16) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
#endif

// Neighbours that are stored at once, two rounded by one instruction.
template <class H, int N> DEVICE vec<N, H> rounded(const float (&x)[N]) {
  union { u32 pairs[N / 2]; vec<N, H> all; } r;
#pragma unroll
  for (int i = 0; i < N / 2; ++i) r.pairs[i] = narrow_both(x[2 * i], x[2 * i + 1], H());
  return r.all;
}

// What is computed with: halves are floats until they are stored.
DEVICE float get(f16 x) { return widen(x); }
DEVICE float get(bf16 x) { return widen(x); }
DEVICE float get(float x) { return x; }
DEVICE double get(double x) { return x; }
DEVICE i8 get(i8 x) { return x; }
DEVICE i16 get(i16 x) { return x; }
DEVICE i32 get(i32 x) { return x; }
DEVICE i64 get(i64 x) { return x; }
DEVICE u8 get(u8 x) { return x; }
DEVICE u16 get(u16 x) { return x; }
DEVICE u32 get(u32 x) { return x; }
DEVICE u64 get(u64 x) { return x; }
DEVICE bool get(bool x) { return x; }
DEVICE void put(f16& to, float x) { to = to_f16(x); }
DEVICE void put(bf16& to, float x) { to = to_bf16(x); }
template <class T> DEVICE void put(T& to, T x) { to = x; }

// -- constants and conversions ---------------------------------------------------------------------

DEVICE float infinity_f() { return __uint_as_float(0x7f800000u); }
DEVICE float not_a_number_f() { return __uint_as_float(0x7fc00000u); }

template <class T> struct limits;
template <> struct limits<float> { DEVICE static float low() { return -infinity_f(); } DEVICE static float high() { return infinity_f(); } };
template <> struct limits<double> { DEVICE static double low() { return -infinity_f(); } DEVICE static double high() { return infinity_f(); } };
template <> struct limits<i8> { DEVICE static i8 low() { return -128; } DEVICE static i8 high() { return 127; } };
template <> struct limits<i16> { DEVICE static i16 low() { return -32768; } DEVICE static i16 high() { return 32767; } };
template <> struct limits<i32> { DEVICE static i32 low() { return (i32)0x80000000u; } DEVICE static i32 high() { return 0x7fffffff; } };
template <> struct limits<i64> { DEVICE static i64 low() { return (i64)0x8000000000000000ull; } DEVICE static i64 high() { return 0x7fffffffffffffffll; } };
template <> struct limits<u8> { DEVICE static u8 low() { return 0; } DEVICE static u8 high() { return 255; } };
template <> struct limits<u16> { DEVICE static u16 low() { return 0; } DEVICE static u16 high() { return 65535; } };
template <> struct limits<u32> { DEVICE static u32 low() { return 0; } DEVICE static u32 high() { return 0xffffffffu; } };
template <> struct limits<u64> { DEVICE static u64 low() { return 0; } DEVICE static u64 high() { return 0xffffffffffffffffull; } };
template <> struct limits<bool> { DEVICE static bool low() { return false; } DEVICE static bool high() { return true; } };

// Floats to integers: towards zero, held within the type, not-a-number to 0. Integers wrap.
template <class T, class F> struct converted { DEVICE static T of(F x) { return (T)x; } };
template <class T, class F> DEVICE T saturated(F x) {
  if (!(x == x)) return 0;
  if (x <= (F)limits<T>::low()) return limits<T>::low();
  if (x >= (F)limits<T>::high()) return limits<T>::high();
  return (T)x;
}
#define SATURATES(T) \
  template <> struct converted<T, float> { DEVICE static T of(float x) { return saturated<T, float>(x); } }; \
  template <> struct converted<T, double> { DEVICE static T of(double x) { return saturated<T, double>(x); } };
SATURATES(i8) SATURATES(i16) SATURATES(i32) SATURATES(i64) SATURATES(u8) SATURATES(u16) SATURATES(u32) SATURATES(u64)
template <class F> struct converted<bool, F> { DEVICE static bool of(F x) { return x != (F)0; } };
template <class T, class F> DEVICE T convert(F x) { return converted<T, F>::of(x); }

// An integer as a position on an axis of `size` elements: a negative one counts from the end.
template <class I, class T> DEVICE I wrapped(T x, i64 size) {
  i64 i = (i64)x;
  if (i < 0) i += size;
  return (I)(i < 0 ? 0 : i >= size ? size - 1 : i);
}

// -- arithmetic --------------------------------------------------------------------------------------

DEVICE float f_add(float x, float y) { return x + y; }
DEVICE double f_add(double x, double y) { return x + y; }
DEVICE float f_sub(float x, float y) { return x - y; }
DEVICE double f_sub(double x, double y) { return x - y; }
DEVICE float f_mul(float x, float y) { return x * y; }
DEVICE double f_mul(double x, double y) { return x * y; }
DEVICE float f_div(float x, float y) { return x / y; }
DEVICE double f_div(double x, double y) { return x / y; }
DEVICE float f_rem(float x, float y) { return fmodf(x, y); }
DEVICE double f_rem(double x, double y) { return fmod(x, y); }
template <class T> DEVICE T f_mod_of(T x, T y) {
  T rest = f_rem(x, y);
  return rest != (T)0 && (rest < (T)0) != (y < (T)0) ? rest + y : rest;
}
DEVICE float f_mod(float x, float y) { return f_mod_of(x, y); }
DEVICE double f_mod(double x, double y) { return f_mod_of(x, y); }
template <class T> DEVICE T f_max(T x, T y) { return !(x == x) ? x : !(y == y) ? y : x < y ? y : x; }
template <class T> DEVICE T f_min(T x, T y) { return !(x == x) ? x : !(y == y) ? y : y < x ? y : x; }
#ifndef WITHOUT_SM_80
DEVICE float f_max(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
DEVICE float f_min(float x, float y) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
#endif

template <class T> DEVICE T f_add(T x, T y) { return (T)((u64)x + (u64)y); }
template <class T> DEVICE T f_sub(T x, T y) { return (T)((u64)x - (u64)y); }
template <class T> DEVICE T f_mul(T x, T y) { return (T)((u64)x * (u64)y); }
template <class T> DEVICE T f_div(T x, T y) {
  return y == 0 ? (T)0 : y == (T)-1 && limits<T>::low() < (T)0 ? (T)(0 - (u64)x) : (T)(x / y);
}
template <class T> DEVICE T f_rem(T x, T y) {
  return y == 0 || (y == (T)-1 && limits<T>::low() < (T)0) ? (T)0 : (T)(x % y);
}
template <class T> DEVICE T f_mod(T x, T y) {
  T rest = f_rem(x, y);
  return rest != 0 && (rest < 0) != (y < 0) ? f_add(rest, y) : rest;
}
template <class T> DEVICE T f_pow(T x, T y) {
  if (y < 0) return convert<T>(pow((double)x, (double)y));
  T result = 1;
  for (u64 rest = (u64)y; rest; rest >>= 1) {
    if (rest & 1) result = f_mul(result, x);
    x = f_mul(x, x);
  }
  return result;
}
template <class T> DEVICE T f_and(T x, T y) { return (T)(x & y); }
template <class T> DEVICE T f_or(T x, T y) { return (T)(x | y); }
template <class T> DEVICE T f_xor(T x, T y) { return (T)(x ^ y); }
// Position x of the stream y of splitmix64.
template <class T> DEVICE T f_hash(T x, T y) {
    unsigned long long z = (unsigned long long)y + ((unsigned long long)x + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (T)(z ^ (z >> 31));
}

template <class T> DEVICE T f_neg(T x) { return (T)(0 - (u64)x); }
DEVICE float f_neg(float x) { return -x; }
DEVICE double f_neg(double x) { return -x; }
template <class T> DEVICE T f_abs(T x) { return x < 0 ? f_neg(x) : x; }
DEVICE float f_abs(float x) { return fabsf(x); }
DEVICE double f_abs(double x) { return fabs(x); }
template <class T> DEVICE T f_sign(T x) { return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x; }
template <class T> DEVICE T f_relu(T x) { return x < (T)0 ? (T)0 : x; }
#ifndef CPU_SHIM
DEVICE float f_relu(float x) { return f_max(x, 0.0f); }
#endif
template <class T> DEVICE bool f_not(T x) { return x == (T)0; }
template <class T> DEVICE bool f_is_nan(T x) { return !(x == x); }
DEVICE bool f_is_inf(float x) { return fabsf(x) == infinity_f(); }
DEVICE bool f_is_inf(double x) { return fabs(x) == (double)infinity_f(); }
// -- folds -------------------------------------------------------------------------------------------

struct fold_sum {
  template <class T> DEVICE static T start() { return (T)0; }
  template <class T> DEVICE static T join(T x, T y) { return f_add(x, y); }
};
struct fold_prod {
  template <class T> DEVICE static T start() { return (T)1; }
  template <class T> DEVICE static T join(T x, T y) { return f_mul(x, y); }
};
struct fold_max {
  template <class T> DEVICE static T start() { return limits<T>::low(); }
  template <class T> DEVICE static T join(T x, T y) { return f_max(x, y); }
};
struct fold_min {
  template <class T> DEVICE static T start() { return limits<T>::high(); }
  template <class T> DEVICE static T join(T x, T y) { return f_min(x, y); }
};

// A value and where it stands; nowhere at first.
template <class T> struct spot { T value; i64 place; };
template <bool LARGEST, bool LAST> struct fold_spot {
  template <class S> DEVICE static S start() { S none; none.value = 0; none.place = -1; return none; }
  template <class S> DEVICE static S join(S x, S y) {
    if (x.place < 0) return y;
    if (y.place < 0) return x;
    bool later = y.place > x.place;
    if (x.value == y.value) return later == LAST ? y : x;
    bool beyond = LARGEST ? y.value > x.value : y.value < x.value;
    bool below = LARGEST ? y.value < x.value : y.value > x.value;
    // Of what does not compare, the earlier stays.
    return beyond || (!below && !later) ? y : x;
  }
};

template <class T> struct small { enum { is = sizeof(T) < 4 }; };
template <class T> DEVICE T swapped(T x, int lanes) { return __shfl_xor_sync(FULL_WARP, x, lanes); }
DEVICE i8 swapped(i8 x, int lanes) { return (i8)__shfl_xor_sync(FULL_WARP, (int)x, lanes); }
DEVICE i16 swapped(i16 x, int lanes) { return (i16)__shfl_xor_sync(FULL_WARP, (int)x, lanes); }
DEVICE u8 swapped(u8 x, int lanes) { return (u8)__shfl_xor_sync(FULL_WARP, (int)x, lanes); }
DEVICE u16 swapped(u16 x, int lanes) { return (u16)__shfl_xor_sync(FULL_WARP, (int)x, lanes); }
DEVICE bool swapped(bool x, int lanes) { return __shfl_xor_sync(FULL_WARP, (int)x, lanes) != 0; }
template <class T> DEVICE spot<T> swapped(spot<T> x, int lanes) {
  spot<T> r;
  r.value = swapped(x.value, lanes);
  r.place = swapped(x.place, lanes);
  return r;
}

// The fold of all lanes, in every lane; the same bits whatever the order in which lanes run.
template <class F, class T> DEVICE T warp_fold(T x) {
  int lane = threadIdx.x & 31;
#pragma unroll
  for (int lanes = 16; lanes; lanes >>= 1) {
    T y = swapped(x, lanes);
    x = lane & lanes ? F::join(y, x) : F::join(x, y);
  }
  return x;
}

// The fold of all threads of a block of whole warps along x, in every thread; of WARPS of them, where that is known.
template <class F, int WARPS = 0, class T> DEVICE T block_fold(T x) {
  SHARED(T, part, 32);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  x = warp_fold<F>(x);
  __syncthreads();
  if (lane == 0) part[warp] = x;
  __syncthreads();
  x = F::template start<T>();
  if constexpr (WARPS > 0) {
#pragma unroll
    for (int i = 0; i < WARPS; ++i) x = F::join(x, part[i]);
  } else {
    const int warps = blockDim.x >> 5;
    for (int i = 0; i < warps; ++i) x = F::join(x, part[i]);
  }
  return x;
}

// The fold over y of a block of 32 by `blockDim.y` threads, in every thread.
template <class F, class T> DEVICE T column_fold(T x) {
  SHARED(T, part, 1024);
  __syncthreads();
  part[threadIdx.y * 32 + threadIdx.x] = x;
  __syncthreads();
  x = F::template start<T>();
  for (int i = 0; i < (int)blockDim.y; ++i) x = F::join(x, part[i * 32 + threadIdx.x]);
  return x;
}
