// Rows that are updated in order, whatever the order in which blocks run. A generated structure P says with what:
//
//   struct P {
//     typedef ... S;                        elements in memory
//     typedef ... T;                        what is computed with
//     typedef ... I;                        the type of indices
//     static const i64 ROWS, COLUMNS, STEPS;
//     static const int LANES;               neighbours that are read and written at once; COLUMNS is a multiple
//     DEVICE I place(I step) const;         the row that a step updates
//     DEVICE void update(I step, I column, T (&to)[LANES]) const;
//     DEVICE void start(I row, I column, T (&to)[LANES]) const;
//     DEVICE static T join(T stands, T update);
//     DEVICE T made(I row, I column, T sum) const;   what is written; may read what stood there
//     S* out;
//   };
//
// Of many steps a kernel before has made a list in the order of their rows; P then has it in place of `place`:
//
//     static const int LENGTH;              steps of a part
//     const i32 *places, *steps;            rows and steps, in order
//     T* parts;                             what parts make
//
// A block takes EACH rows, and some columns of them, which stay in shared memory. It looks for the steps that fall on
// its rows, 1024 at a time, and lists them in order; some neighbouring threads share a row, each with columns of its
// own, and the groups of them share the rows.
template <class P, int EACH> DEVICE void scatter_rows(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  const int THREADS = 256, WARPS = THREADS / 32, LOOKS = 4, LANES = P::LANES;
  const int WIDTH = P::COLUMNS < THREADS * LANES ? (int)P::COLUMNS : THREADS * LANES;
  const int MEMBERS = WIDTH / LANES, GROUPS = THREADS / MEMBERS;
  DYNAMIC_SHARED(memory);
  T* sums = (T*)memory;
  SHARED(I, listed, 1024);
  SHARED(int, rows_of, 1024);
  SHARED(int, counts, 32);
  const I across = (I)((P::COLUMNS + WIDTH - 1) / WIDTH);
  const I row0 = (I)blockIdx.x / across * EACH, column0 = (I)blockIdx.x % across * WIDTH;
  const int rows = (I)P::ROWS - row0 < EACH ? (int)((I)P::ROWS - row0) : EACH;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int group = thread / MEMBERS, member = thread % MEMBERS;
  const I column = column0 + member * LANES;
  const bool works = group < GROUPS && column < (I)P::COLUMNS;
  // Lanes of a thread lie MEMBERS apart, so that neighbouring threads use different banks.
  T* own = sums + member;
  if (works)
    for (int row = group; row < rows; row += GROUPS) {
      T first[LANES];
      p.start(row0 + row, column, first);
#pragma unroll
      for (int i = 0; i < LANES; ++i) own[row * WIDTH + i * MEMBERS] = first[i];
    }
  for (I base = 0; base < (I)P::STEPS; base += LOOKS * THREADS) {
    int found[LOOKS];
    u32 all[LOOKS];
#pragma unroll
    for (int i = 0; i < LOOKS; ++i) {
      const I step = base + i * THREADS + thread, row = step < (I)P::STEPS ? p.place(step) - row0 : (I)-1;
      found[i] = row >= 0 && row < (I)rows ? (int)row : -1;
      all[i] = __ballot_sync(FULL_WARP, found[i] >= 0);
      if (lane == 0) counts[i * WARPS + warp] = __popc(all[i]);
    }
    // Nobody reads the list of before any more.
    __syncthreads();
    int total = 0;
#pragma unroll
    for (int i = 0; i < LOOKS; ++i)
      for (int w = 0; w < WARPS; ++w) {
        if (w == warp && found[i] >= 0) {
          const int at = total + __popc(all[i] & ((1u << lane) - 1u));
          listed[at] = base + i * THREADS + thread;
          rows_of[at] = found[i];
        }
        total += counts[i * WARPS + w];
      }
    __syncthreads();
    if (!works) continue;
    for (int n = 0; n < total; n += 4) {
      T read[4][LANES];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (n + j < total && rows_of[n + j] % GROUPS == group) p.update(listed[n + j], column, read[j]);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (n + j < total && rows_of[n + j] % GROUPS == group) {
          T* to = own + rows_of[n + j] * WIDTH;
#pragma unroll
          for (int i = 0; i < LANES; ++i) to[i * MEMBERS] = P::join(to[i * MEMBERS], read[j][i]);
        }
    }
  }
  if (!works) return;
  for (int row = group; row < rows; row += GROUPS) {
    vec<LANES, typename P::S> made;
#pragma unroll
    for (int i = 0; i < LANES; ++i) put(made.v[i], p.made(row0 + row, column + i, own[row * WIDTH + i * MEMBERS]));
    *(vec<LANES, typename P::S>*)(p.out + (row0 + row) * (I)P::COLUMNS + column) = made;
  }
}

// -- many steps ----------------------------------------------------------------------------------
//
// Whichever rows they update: each row once, or one row always. Steps are sorted by their rows, digit by digit from the lowest on,
// each time a stable counting sort. What is joined in which order follows from a row's own updates and from STEPS.
//
//   struct P {
//     typedef ... I;
//     static const i64 STEPS;
//     static const int SHIFT, BITS;         the digit
//     DEVICE I place(I at) const;           the row at a position
//     DEVICE i32 step(I at) const;          and the step
//     i32* counts;                          of each block, how many of its positions have each digit
//     i32 *places, *steps;                  both in the new order
//   };

// The lanes of a warp that have the same digit; of those that have one.
template <int BITS> DEVICE u32 lanes_alike(u32 digit, bool has) {
  u32 alike = __ballot_sync(FULL_WARP, has);
#pragma unroll
  for (int bit = 0; bit < BITS; ++bit) {
    const bool set = digit >> bit & 1u;
    const u32 votes = __ballot_sync(FULL_WARP, set);
    alike &= set ? votes : ~votes;
  }
  return alike;
}

// A block takes EACH positions, and each of its warps neighbouring ones of these: how many have each digit, warp by warp, so that
// nothing is added in an order that might be another one.
template <class P, int EACH> DEVICE void count_of_warps(const P& p, u32* counts) {
  typedef typename P::I I;
  const int WARPS = 512 / 32, DIGITS = 1 << P::BITS, OWN = EACH / WARPS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u32* own = counts + warp * DIGITS;
  for (int i = lane; i < DIGITS; i += 32) own[i] = 0;
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < OWN; i += 32) {
    const I at = (I)blockIdx.x * EACH + warp * OWN + i + lane;
    const bool has = at < (I)P::STEPS;
    const u32 digit = has ? (u32)(p.place(at) >> P::SHIFT) & (DIGITS - 1) : 0;
    const u32 alike = lanes_alike<P::BITS>(digit, has);
    if (has && !(alike & ((1u << lane) - 1u))) own[digit] += __popc(alike);
    __syncwarp();
  }
  __syncthreads();
}

// The first kernel of a digit: how many of a block's positions have each.
template <class P, int EACH> DEVICE void count_digits(const P& p) {
  const int WARPS = 512 / 32, DIGITS = 1 << P::BITS, thread = threadIdx.x;
  SHARED(u32, counts, WARPS * DIGITS);
  count_of_warps<P, EACH>(p, counts);
  if (thread >= DIGITS) return;
  u32 all = 0;
  for (int w = 0; w < WARPS; ++w) all += counts[w * DIGITS + thread];
  p.counts[(i64)blockIdx.x * DIGITS + thread] = (i32)all;
}

// The second one: a block's first step of each digit comes behind all of lower digits, and those of its own in the blocks before;
// a warp's behind those of the warps before.
template <class P, int EACH> DEVICE void order_steps(const P& p) {
  typedef typename P::I I;
  const int WARPS = 512 / 32, DIGITS = 1 << P::BITS, OWN = EACH / WARPS;
  const int BLOCKS = (int)((P::STEPS + EACH - 1) / EACH);
  SHARED(u32, counts, WARPS * DIGITS);
  SHARED(u32, sums, 2 * DIGITS);
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  u32 earlier = 0;
  if (thread < DIGITS) {
    u32 all = 0;
#pragma unroll 8
    for (int block = 0; block < BLOCKS; ++block) {
      const u32 count = (u32)p.counts[(i64)block * DIGITS + thread];
      all += count;
      if (block < (int)blockIdx.x) earlier += count;
    }
    sums[thread] = all;
  }
  __syncthreads();
  int now = 0;
  for (int reach = 1; reach < DIGITS; reach *= 2) {
    if (thread < DIGITS) {
      const u32 own = sums[now + thread];
      sums[DIGITS - now + thread] = thread < reach ? own : own + sums[now + thread - reach];
    }
    now = DIGITS - now;
    __syncthreads();
  }
  if (thread > 0 && thread < DIGITS) earlier += sums[now + thread - 1];
  count_of_warps<P, EACH>(p, counts);
  if (thread < DIGITS)
    for (int w = 0; w < WARPS; ++w) {
      const u32 count = counts[w * DIGITS + thread];
      counts[w * DIGITS + thread] = earlier;
      earlier += count;
    }
  __syncthreads();
  u32* own = counts + warp * DIGITS;
#pragma unroll 4
  for (int i = 0; i < OWN; i += 32) {
    const I at = (I)blockIdx.x * EACH + warp * OWN + i + lane;
    const bool has = at < (I)P::STEPS;
    const I place = has ? p.place(at) : 0;
    const u32 digit = (u32)(place >> P::SHIFT) & (DIGITS - 1), lower = (1u << lane) - 1u;
    const u32 alike = lanes_alike<P::BITS>(digit, has);
    const u32 to = own[digit] + __popc(alike & lower);
    // It is a position; and if what was counted were none, no other memory would be written.
    if (has && to < (u32)P::STEPS) {
      p.places[to] = (i32)place;
      p.steps[to] = p.step(at);
    }
    __syncwarp();
    if (has && !(alike & lower)) own[digit] += __popc(alike);
    __syncwarp();
  }
}

// The first of some positions whose row is not less.
template <class P> DEVICE i32 first_of(const P& p, i32 row, i32 low, i32 high) {
  while (low < high) {
    const i32 middle = low + (high - low) / 2;
    if (p.places[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Whether a row whose steps begin here has more of them than a part.
template <class P> DEVICE bool is_long(const P& p, i32 row, i32 first) {
  return (i64)first + P::LENGTH < P::STEPS && p.places[first + P::LENGTH] == row;
}

// How a block's threads share rows: some neighbouring ones have one, each with columns of its own.
template <class P> struct Shares {
  typedef typename P::I I;
  static const int THREADS = 256, LANES = P::LANES;
  static const int WIDTH = P::COLUMNS < THREADS * LANES ? (int)P::COLUMNS : THREADS * LANES;
  static const int MEMBERS = WIDTH / LANES, GROUPS = THREADS / MEMBERS;
  I block, column;
  int group;
  bool works;
  DEVICE Shares() {
    const I across = (I)((P::COLUMNS + WIDTH - 1) / WIDTH);
    block = (I)blockIdx.x / across;
    group = (int)threadIdx.x / MEMBERS;
    column = (I)blockIdx.x % across * WIDTH + (int)threadIdx.x % MEMBERS * LANES;
    works = group < GROUPS && column < (I)P::COLUMNS;
  }
};

// How many rows of LANES elements are read at once, which then wait for memory together: of so many registers.
template <class P, int REGISTERS> struct Ahead {
  static const int EACH = P::LANES * (int)sizeof(typename P::T) / 4;
  static const int COUNT = EACH <= REGISTERS / 8 ? 8 : EACH < REGISTERS ? REGISTERS / EACH : 1;
};

// Joins the updates at some positions, one after the other, AHEAD of them read at once.
template <int AHEAD, class P> DEVICE void join_steps(const P& p, i32 from, i32 to, typename P::I column, typename P::T (&sum)[P::LANES]) {
  const u32 last = (u32)P::STEPS - 1;
  for (i32 n = from; n < to; n += AHEAD) {
    typename P::T read[AHEAD][P::LANES];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (n + j < to) {
        // What is listed is a step; and if it were none, no other memory would be read.
        const u32 step = (u32)p.steps[n + j];
        p.update((typename P::I)(step < last ? step : last), column, read[j]);
      }
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (n + j < to)
#pragma unroll
        for (int i = 0; i < P::LANES; ++i) sum[i] = P::join(sum[i], read[j][i]);
  }
}

template <class P> DEVICE void join_part(const P& p, i32 place, i32 from, i32 to, typename P::I column) {
  vec<P::LANES, typename P::T> made;
  const u32 last = (u32)P::STEPS - 1, step = (u32)p.steps[from];
  p.update((typename P::I)(step < last ? step : last), column, made.v);
  join_steps<Ahead<P, 32>::COUNT>(p, from + 1, to, column, made.v);
  *(vec<P::LANES, typename P::T>*)(p.parts + (i64)place * P::COLUMNS + column) = made;
}

// Joins the parts of rows that have more steps than a part. Windows of LENGTH positions have two at most: one of a row that
// has begun before, and the first one of another.
template <class P> DEVICE void scatter_parts(const P& p) {
  const Shares<P> shares;
  const i64 window = (i64)shares.block * Shares<P>::GROUPS + shares.group;
  if (!shares.works || window * P::LENGTH >= P::STEPS) return;
  const i32 begin = (i32)(window * P::LENGTH);
  const i32 end = begin + (i64)P::LENGTH < P::STEPS ? begin + P::LENGTH : (i32)P::STEPS;
  i32 row = p.places[begin], first = first_of(p, row, 0, begin);
  if (first < begin && is_long(p, row, first)) {
    const i32 from = first + (begin - first + P::LENGTH - 1) / P::LENGTH * P::LENGTH;
    if (from < end) {
      const i32 most = from + (i64)P::LENGTH < P::STEPS ? from + P::LENGTH : (i32)P::STEPS;
      const i32 to = first_of(p, row + 1, from, most);
      if (from < to) join_part(p, 2 * (i32)window, from, to, shares.column);
    }
  }
  row = p.places[end - 1];
  first = first_of(p, row, begin, end);
  const bool begins = first > begin || begin == 0 || p.places[begin - 1] != row;
  if (begins && is_long(p, row, first)) join_part(p, 2 * (i32)window + 1, first, first + P::LENGTH, shares.column);
}

// Joins what parts have made of a row's steps, one after the other.
template <class P> DEVICE void join_parts(const P& p, i32 from, i32 to, typename P::I column, typename P::T (&sum)[P::LANES]) {
  const int AHEAD = Ahead<P, 16>::COUNT;
  const i32 window = from / P::LENGTH, count = (to - from + P::LENGTH - 1) / P::LENGTH;
  for (i32 k = 0; k < count; k += AHEAD) {
    vec<P::LANES, typename P::T> read[AHEAD];
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (k + j < count) {
        // A row's first part lies in the second place of its window.
        const i64 place = 2 * (i64)(window + k + j) + (k + j == 0);
        read[j] = *(const vec<P::LANES, typename P::T>*)(p.parts + place * P::COLUMNS + column);
      }
#pragma unroll
    for (int j = 0; j < AHEAD; ++j)
      if (k + j < count)
#pragma unroll
        for (int i = 0; i < P::LANES; ++i) sum[i] = P::join(sum[i], read[j].v[i]);
  }
}

// A block takes EACH rows, whose steps its threads look for together.
template <class P, int EACH> DEVICE void scatter_ordered(const P& p) {
  typedef typename P::I I;
  const Shares<P> shares;
  SHARED(i32, bounds, EACH + 1);
  const I row0 = shares.block * EACH;
  const int rows = (I)P::ROWS - row0 < EACH ? (int)((I)P::ROWS - row0) : EACH;
  for (int i = threadIdx.x; i <= rows; i += Shares<P>::THREADS) bounds[i] = first_of(p, (i32)row0 + i, 0, (i32)P::STEPS);
  __syncthreads();
  if (!shares.works) return;
  for (int row = shares.group; row < rows; row += Shares<P>::GROUPS) {
    typename P::T sum[P::LANES];
    p.start(row0 + row, shares.column, sum);
    const i32 from = bounds[row], to = bounds[row + 1];
    if (to - from <= P::LENGTH) join_steps<Ahead<P, 16>::COUNT>(p, from, to, shares.column, sum);
    else join_parts(p, from, to, shares.column, sum);
    vec<P::LANES, typename P::S> made;
#pragma unroll
    for (int i = 0; i < P::LANES; ++i) put(made.v[i], p.made(row0 + row, shares.column + i, sum[i]));
    *(vec<P::LANES, typename P::S>*)(p.out + (row0 + row) * (I)P::COLUMNS + shares.column) = made;
  }
}
