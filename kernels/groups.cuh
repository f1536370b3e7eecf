// Products of matrices by groups of 128 threads (a warpgroup of Hopper's: wgmma, PTX ISA, "Asynchronous Warpgroup Level Matrix
// Instructions"), which read their operands from shared memory while the threads do something else. Compiled for sm_90a. Behind
// the shim each has a twin in plain C++, which is done at once.
//
// Operands lie in panels of 64 halves across: a line is 128 bytes, eight lines are one pattern of 1024 bytes, in which the eight
// units of 16 bytes of line l are at places unit ^ l, so that neither lines nor columns meet in a bank. Panels begin at multiples
// of 1024 bytes.

// The first such multiple from `memory` on.
DEVICE unsigned char* panels_from(unsigned char* memory) {
#ifdef CPU_SHIM
  const u64 at = (u64)memory;
#else
  const u64 at = __cvta_generic_to_shared(memory);
#endif
  return memory + (1024 - at % 1024) % 1024;
}

// Where a unit of eight halves of a line begins, in bytes from the panels' beginning; LINES of a panel.
template <int LINES> DEVICE int unit_at(int line, int unit) {
  return unit / 8 * (LINES * 128) + line * 128 + ((unit % 8) ^ (line & 7)) * 16;
}

// LINES lines of WIDTH halves to panels, by THREADS threads, later; zeros from line `known` on and from column `size`. `from` gives
// a line's first element; lines are as far from one another as the first two.
template <int LINES, int WIDTH, int THREADS, class R>
DEVICE void stage_panels(unsigned char* to, i64 known, int size, const R& from) {
  const int UNITS = WIDTH / 8, DOWN = THREADS / UNITS, PARTS = (LINES + DOWN - 1) / DOWN;
  static_assert(THREADS % UNITS == 0, "a thread's units are below one another");
  const int unit = threadIdx.x % UNITS, first = threadIdx.x / UNITS;
  const u16* const begin = (const u16*)from(0);
  const i64 step = (const u16*)from(1) - begin;
  const bool across = unit * 8 < size;
  const u16* const own = begin + first * step + (across ? unit * 8 : 0);
  // Threads stay together: where some go apart, products may not go on meanwhile.
  if (DOWN % 8 == 0 && known >= LINES && size == WIDTH) {
    // All are there: a thread's copies are a constant apart.
    unsigned char* const at = to + unit_at<LINES>(first, unit);
#pragma unroll
    for (int part = 0; part < PARTS; ++part)
      if ((part + 1) * DOWN <= LINES || part * DOWN + first < LINES)
        copy_later((u16*)(at + part * DOWN * 128), own + part * DOWN * step, true);
    return;
  }
#pragma unroll 1
  for (int part = 0; part < PARTS; ++part) {
    const int line = part * DOWN + first;
    const bool inside = across && line < known;
    if (line < LINES) copy_later((u16*)(to + unit_at<LINES>(line, unit)), inside ? own + part * DOWN * step : begin, inside);
  }
}

// What threads wrote to shared memory is there for products; before a barrier.
DEVICE void written_for_products() {
#ifndef CPU_SHIM
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Waits until all threads' copies but those of their last LEFT batches are there, for products too.
template <int LEFT> DEVICE void copies_arrive() {
  copies_wait<LEFT>();
  written_for_products();
  __syncthreads();
}

// -- signals -------------------------------------------------------------------------------------------
//
// Groups that do different things wait for one another by signals in shared memory (mbarrier of PTX): a phase of one ends when as
// many threads as it expects have given it, and who waits names the parity of the phase. Of a signal that nobody gave yet the
// phase before the first, of parity 1, has ended.

typedef u64 signal;

// By one thread, before a barrier.
DEVICE void signal_begin(signal* at, int gives) {
#ifdef CPU_SHIM
  shim::signal_begin(at, gives);
#else
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(at)), "r"(gives) : "memory");
#endif
}

DEVICE void signal_give(signal* at) {
#ifdef CPU_SHIM
  shim::signal_give(at);
#else
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"((u32)__cvta_generic_to_shared(at)) : "memory");
#endif
}

// Given when all copies that the thread has asked for are made. Who multiplies them calls `written_for_products` after its wait.
DEVICE void signal_give_after_copies(signal* at) {
#ifdef CPU_SHIM
  shim::signal_give_after_copies(at);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"((u32)__cvta_generic_to_shared(at)) : "memory");
#endif
}

DEVICE void signal_wait(signal* at, int parity) {
#ifdef CPU_SHIM
  shim::signal_wait(at, parity);
#else
  asm volatile("{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra AGAIN;\n}" ::"r"(
                   (u32)__cvta_generic_to_shared(at)),
               "r"(parity)
               : "memory");
#endif
}

// One group has COUNT registers for each thread from here on: of those that a block was launched with, what some groups leave others
// take. In one branch for each group.
template <int COUNT> DEVICE void registers_left() {
#ifndef CPU_SHIM
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}
template <int COUNT> DEVICE void registers_taken() {
#ifndef CPU_SHIM
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
#endif
}

// Places in shared memory that are filled by one group's copies and emptied by the products of others, one after the other, again and
// again.
template <int STAGES> struct Places {
  signal *filled, *emptied;
  DEVICE Places(signal* at) : filled(at), emptied(at + STAGES) {}
  // By one thread: COPYING threads fill a place, GROUPS groups empty it.
  DEVICE void begin(int copying, int groups) const {
    for (int i = 0; i < STAGES; ++i) {
      signal_begin(filled + i, copying);
      signal_begin(emptied + i, 4 * groups);
    }
  }
  // For the one that copies, before and after it does so.
  DEVICE void wait_emptied(int turn) const { signal_wait(emptied + turn % STAGES, turn / STAGES & 1 ^ 1); }
  DEVICE void fill(int turn) const { signal_give_after_copies(filled + turn % STAGES); }
  // For those that multiply; products are waited for before they give a place back.
  DEVICE void wait_filled(int turn) const {
    signal_wait(filled + turn % STAGES, turn / STAGES & 1);
    written_for_products();
  }
  DEVICE void empty(int turn) const {
    if ((threadIdx.x & 31) == 0) signal_give(emptied + turn % STAGES);
  }
};

// An operand in panels: from an element on; `across` bytes from panel to panel.
struct Panels {
#ifdef CPU_SHIM
  const unsigned char* start;
  i64 across;
  DEVICE Panels(const unsigned char* start, int across) : start(start), across(across) {}
  DEVICE Panels moved(int bytes) const { return Panels(start + bytes, (int)across); }
  // The bits of an element: `down` lines down, `right` halves to the right.
  DEVICE u16 at(int down, int right) const {
    u64 place = (u64)start + right / 64 * across + down / 8 * 1024 + down % 8 * 128 + right % 64 * 2;
    place ^= (place >> 7 & 7) << 4;
    return *(const u16*)place;
  }
#else
  u64 bits;
  DEVICE Panels(u64 bits) : bits(bits) {}
  // Patterns of 128 bytes, 1024 bytes from one to the next downwards.
  DEVICE Panels(const unsigned char* start, int across)
      : bits((u64)(((u32)__cvta_generic_to_shared(start) & 0x3ffff) >> 4) | (u64)(across >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62) {}
  DEVICE Panels moved(int bytes) const { return Panels(bits + (u64)(bytes >> 4)); }
#endif
};

// Registers that a product reads or adds to are not touched from here on, until `products_wait`.
DEVICE void products_begin() {
#ifndef CPU_SHIM
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// The products since the last `products_end` are one batch.
DEVICE void products_end() {
#ifndef CPU_SHIM
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits for all batches but the last `LEFT`.
template <int LEFT> DEVICE void products_wait() {
#ifndef CPU_SHIM
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}

// Sums that a product made: whatever reads them comes after this.
template <int COUNT> DEVICE void made(float (&sums)[COUNT][4]) {
#ifndef CPU_SHIM
#pragma unroll
  for (int i = 0; i < COUNT * 4; ++i) asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
#endif
}

// sums = or += left * right, 64 x 16 times 16 x 8 COUNT. `left`: lines are rows, or fragments in registers, 16 rows for each warp;
// `right`: lines are columns, TURNED: lines are what is summed over. Sums lie as those of `mma` do.
#ifdef CPU_SHIM
template <bool TURNED, int COUNT, class H>
DEVICE void product_of(float (&sums)[COUNT][4], const u32 (&left)[4], Panels right, bool adds, H) {
  const int group = (threadIdx.x & 31) / 4, place = (threadIdx.x & 31) % 4;
  for (int j = 0; j < COUNT; ++j) {
    const int column = j * 8 + group, k = place * 2;
    auto element = [&](int k) { return TURNED ? right.at(k, column) : right.at(column, k); };
    const u32 y[4] = {both(element(k), element(k + 1)), both(element(k + 8), element(k + 9)), 0, 0};
    if (!adds)
      for (int i = 0; i < 4; ++i) sums[j][i] = 0.0f;
    mma<0>(sums[j], left, y, H());
  }
}
template <bool TURNED, int COUNT, class H>
DEVICE void product_of(float (&sums)[COUNT][4], Panels left, Panels right, bool adds, H) {
  const int lane = threadIdx.x & 31, row = threadIdx.x / 32 % 4 * 16 + lane / 4, k = lane % 4 * 2;
  auto two = [&](int row, int k) { return both(left.at(row, k), left.at(row, k + 1)); };
  const u32 x[4] = {two(row, k), two(row + 8, k), two(row, k + 8), two(row + 8, k + 8)};
  product_of<TURNED>(sums, x, right, adds, H());
}
#else
#define SUM_4(j) "+f"(sums[j][0]), "+f"(sums[j][1]), "+f"(sums[j][2]), "+f"(sums[j][3])
#define SUM_32 SUM_4(0), SUM_4(1), SUM_4(2), SUM_4(3), SUM_4(4), SUM_4(5), SUM_4(6), SUM_4(7)
#define SUM_64 \
  SUM_32, SUM_4(8), SUM_4(9), SUM_4(10), SUM_4(11), SUM_4(12), SUM_4(13), SUM_4(14), SUM_4(15)
#define NAMED_32 \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMED_64 \
  NAMED_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60," \
           "%61,%62,%63"
// From shared memory, and with fragments on the left; N columns of TYPE, whose sums are SUMS, named NAMED; A and the next are
// the numbers of the operands behind them.
#define WGMMA(N, TYPE, NAME, NAMED, SUMS, A, B, C, D, E, F)                                                                        \
  template <bool TURNED> DEVICE void product_of(float (&sums)[N / 8][4], Panels left, Panels right, bool adds, TYPE) {          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" C ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME \
                 " {" NAMED "}, %" A ", %" B ", p, 1, 1, 0, %" D ";\n}"                                                          \
                 : SUMS                                                                                                          \
                 : "l"(left.bits), "l"(right.bits), "r"((int)adds), "n"(TURNED ? 1 : 0));                                      \
  }                                                                                                                              \
  template <bool TURNED> DEVICE void product_of(float (&sums)[N / 8][4], const u32 (&left)[4], Panels right, bool adds, TYPE) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" F ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME \
                 " {" NAMED "}, {%" A ", %" B ", %" C ", %" D "}, %" E ", p, 1, 1, %" NEXT_##N ";\n}"                           \
                 : SUMS                                                                                                          \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right.bits), "r"((int)adds),                     \
                   "n"(TURNED ? 1 : 0));                                                                                         \
  }
#define NEXT_64 "38"
#define NEXT_128 "70"
WGMMA(64, bf16, "bf16", NAMED_32, SUM_32, "32", "33", "34", "35", "36", "37")
WGMMA(64, f16, "f16", NAMED_32, SUM_32, "32", "33", "34", "35", "36", "37")
WGMMA(128, bf16, "bf16", NAMED_64, SUM_64, "64", "65", "66", "67", "68", "69")
WGMMA(128, f16, "f16", NAMED_64, SUM_64, "64", "65", "66", "67", "68", "69")
#endif
