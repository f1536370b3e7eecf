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
//     DEVICE T start(I row, I column) const;
//     DEVICE static T join(T stands, T update);
//     DEVICE T made(I row, I column, T sum) const;   what is written; may read what stood there
//     S* out;
//   };
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
    for (int row = group; row < rows; row += GROUPS)
#pragma unroll
      for (int i = 0; i < LANES; ++i) own[row * WIDTH + i * MEMBERS] = p.start(row0 + row, column + i);
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
