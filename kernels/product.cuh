// Matrix products of any sizes. A generated kernel gives the sizes, the operands' elements and what is
// done with each sum:
//
//   struct P {
//     typedef ... T;                        what is multiplied and summed: float, double, an integer
//     typedef ... I;                        the type of indices
//     static const i64 BATCH, M, N, K;
//     DEVICE T left(I b, I m, I k) const;   within the sizes
//     DEVICE T right(I b, I k, I n) const;
//     DEVICE void store(I b, I m, I n, T sum) const;
//     DEVICE const u16 *left_wide(I b, I m, I k, bool& inside) const, *right_wide(I b, I k, I n, bool& inside) const;
//   };
//
// where the last two are there for elements that lie beside one another (see Operand and product_dots_wide). What tensor cores make is
// stored eight neighbours at a time where `static const bool BESIDE` is true: `store_beside(b, m, part, sums)`, from column 8 * part on. Few
// rows may have been normalised by the block, which then keeps them in shared memory.

// A thread adds up so many products one after the other, and then begins a new sum: roundings are of sums of few
// terms. Tensor cores add up all of k.
const int CHAIN = 128;

// 256 threads make a tile of BM x BN, each TM x TN of it, BK at a time through shared memory. Blocks
// run over columns first, then rows, then batches. LEFT_ALONG_K, RIGHT_ALONG_K: neighbours of the
// operand in memory are neighbours along k, and so are neighbouring threads that read it.
template <class P, int BM, int BN, int BK, int TM, int TN, bool LEFT_ALONG_K, bool RIGHT_ALONG_K>
DEVICE void product_tiled(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  SHARED(T, left, BK * (BM + 1));
  SHARED(T, right, BK * (BN + 1));
  const I columns = (I)((P::N + BN - 1) / BN), rows = (I)((P::M + BM - 1) / BM);
  I tile = (I)blockIdx.x;
  const I n0 = tile % columns * BN;
  tile /= columns;
  const I m0 = tile % rows * BM, b = tile / rows;
  const int thread = threadIdx.x, tx = thread % (BN / TN), ty = thread / (BN / TN);
  T sum[TM][TN], total[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) sum[i][j] = total[i][j] = (T)0;
  for (I k0 = 0; k0 < (I)P::K; k0 += BK) {
    if (k0 > 0 && k0 % CHAIN == 0) {
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) {
          total[i][j] = f_add(total[i][j], sum[i][j]);
          sum[i][j] = (T)0;
        }
    }
#pragma unroll
    for (int i = thread; i < BM * BK; i += 256) {
      const int k = LEFT_ALONG_K ? i % BK : i / BM, m = LEFT_ALONG_K ? i / BK : i % BM;
      left[k * (BM + 1) + m] = m0 + m < (I)P::M && k0 + k < (I)P::K ? p.left(b, m0 + m, k0 + k) : (T)0;
    }
#pragma unroll
    for (int i = thread; i < BN * BK; i += 256) {
      const int k = RIGHT_ALONG_K ? i % BK : i / BN, n = RIGHT_ALONG_K ? i / BK : i % BN;
      right[k * (BN + 1) + n] = n0 + n < (I)P::N && k0 + k < (I)P::K ? p.right(b, k0 + k, n0 + n) : (T)0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      T x[TM], y[TN];
#pragma unroll
      for (int i = 0; i < TM; ++i) x[i] = left[k * (BM + 1) + ty + i * (BM / TM)];
#pragma unroll
      for (int j = 0; j < TN; ++j) y[j] = right[k * (BN + 1) + tx + j * (BN / TN)];
#pragma unroll
      for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int j = 0; j < TN; ++j) sum[i][j] = f_add(sum[i][j], f_mul(x[i], y[j]));
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) {
      const I m = m0 + ty + i * (BM / TM), n = n0 + tx + j * (BN / TN);
      if (m < (I)P::M && n < (I)P::N) p.store(b, m, n, f_add(total[i][j], sum[i][j]));
    }
}

// The same for larger products of f32: of a tile of BM x BN each thread makes four times 4 x 4, whose operands come out of
// shared memory 16 bytes at a time. What is multiplied next is read into registers meanwhile.
template <class P, int BM, int BN, bool LEFT_ALONG_K, bool RIGHT_ALONG_K> DEVICE void product_tiled_large(const P& p) {
  typedef typename P::I I;
  // No thread holds more than sixteen elements on their way, LEFT and RIGHT of them.
  const int THREADS = BM * BN / 64, ACROSS = BN / 8, BK = THREADS == 256 ? 16 : 8;
  const int LEFT = BM * BK / THREADS, RIGHT = BN * BK / THREADS, MOST = LEFT > RIGHT ? LEFT : RIGHT;
  typedef vec<4, float> Four;
  SHARED(Four, left_memory, BK * (BM + 4) / 4);
  SHARED(Four, right_memory, BK * (BN + 4) / 4);
  float *left = (float*)left_memory, *right = (float*)right_memory;
  const I columns = (I)((P::N + BN - 1) / BN), rows = (I)((P::M + BM - 1) / BM);
  I tile = (I)blockIdx.x;
  const I n0 = tile % columns * BN;
  tile /= columns;
  const I m0 = tile % rows * BM, b = tile / rows;
  const int thread = threadIdx.x, tx = thread % ACROSS * 4, ty = thread / ACROSS * 4;
  float sum[8][8], total[8][8], next_left[LEFT], next_right[RIGHT];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i / 8][i % 8] = total[i / 8][i % 8] = 0.0f;
  auto read = [&](I k0) {
#pragma unroll
    for (int e = 0; e < MOST; ++e) {
      const int i = thread + e * THREADS;
      const int lk = LEFT_ALONG_K ? i % BK : i / BM, m = LEFT_ALONG_K ? i / BK : i % BM;
      const int rk = RIGHT_ALONG_K ? i % BK : i / BN, n = RIGHT_ALONG_K ? i / BK : i % BN;
      if (e < LEFT) next_left[e] = m0 + m < (I)P::M && k0 + lk < (I)P::K ? p.left(b, m0 + m, k0 + lk) : 0.0f;
      if (e < RIGHT) next_right[e] = n0 + n < (I)P::N && k0 + rk < (I)P::K ? p.right(b, k0 + rk, n0 + n) : 0.0f;
    }
  };
  read(0);
  for (I k0 = 0; k0 < (I)P::K; k0 += BK) {
    if (k0 > 0 && k0 % CHAIN == 0) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        total[i / 8][i % 8] += sum[i / 8][i % 8];
        sum[i / 8][i % 8] = 0.0f;
      }
    }
#pragma unroll
    for (int e = 0; e < MOST; ++e) {
      const int i = thread + e * THREADS;
      if (e < LEFT) left[(LEFT_ALONG_K ? i % BK : i / BM) * (BM + 4) + (LEFT_ALONG_K ? i / BK : i % BM)] = next_left[e];
      if (e < RIGHT) right[(RIGHT_ALONG_K ? i % BK : i / BN) * (BN + 4) + (RIGHT_ALONG_K ? i / BK : i % BN)] = next_right[e];
    }
    __syncthreads();
    if (k0 + BK < (I)P::K) read(k0 + BK);
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      Four x[2], y[2];
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        x[part] = *(const Four*)(left + k * (BM + 4) + part * (BM / 2) + ty);
        y[part] = *(const Four*)(right + k * (BN + 4) + part * (BN / 2) + tx);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] = f_add(sum[i][j], f_mul(x[i / 4].v[i % 4], y[j / 4].v[j % 4]));
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const I m = m0 + i / 4 * (BM / 2) + ty + i % 4, n = n0 + j / 4 * (BN / 2) + tx + j % 4;
      if (m < (I)P::M && n < (I)P::N) p.store(b, m, n, total[i][j] + sum[i][j]);
    }
}

// What `threads` that share the terms of a sum add up before each begins a new sum: terms from `begin` to `end`.
template <class I> struct Chains {
  const I all, most;
  I begin, end;
  DEVICE Chains(I all, int threads) : all(all), most((I)threads * CHAIN), begin(0), end(0) {}
  DEVICE bool next() {
    begin = end;
    end = all - begin < most ? all : begin + most;
    return begin < all;
  }
};

// What the results of a column are made of beside the sums.
template <int ROWS, class P> DEVICE void read_beside(const P& p, typename P::I b, typename P::I n, typename P::Beside (&to)[ROWS]) {
#pragma unroll
  for (int m = 0; m < ROWS; ++m) p.read(b, (typename P::I)m, n, to[m]);
}

// The columns that a warp takes, one after the other: all warps of a launch take as many, or one less.
template <class P> struct WarpColumns {
  i64 at;
  DEVICE WarpColumns() : at((i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5)) {}
  DEVICE bool more() const { return at < P::BATCH * P::N; }
  DEVICE void next() { at += (i64)gridDim.x * (blockDim.x >> 5); }
};

// Few rows, right operand contiguous along k: a warp takes a column, its lanes the products.
template <class P, int ROWS>
DEVICE void product_dot(const P& p, i64 column) {
  typedef typename P::T T;
  typedef typename P::I I;
  const I b = (I)(column / P::N), n = (I)(column % P::N), lane = threadIdx.x & 31;
  typename P::Beside beside[ROWS];
  if (lane == 0) read_beside<ROWS>(p, b, n, beside);
  T sum[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sum[m] = (T)0;
  for (Chains<I> chain((I)P::K, 32); chain.next();) {
    T part[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; ++m) part[m] = (T)0;
#pragma unroll 4
    for (I k = chain.begin + lane; k < chain.end; k += 32) {
      const T y = p.right(b, k, n);
#pragma unroll
      for (int m = 0; m < ROWS; ++m) part[m] = f_add(part[m], f_mul(p.left(b, (I)m, k), y));
    }
#pragma unroll
    for (int m = 0; m < ROWS; ++m) sum[m] = f_add(sum[m], part[m]);
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    const T total = warp_fold<fold_sum>(sum[m]);
    if (lane == 0) p.store(b, (I)m, n, total, beside[m]);
  }
}
template <class P, int ROWS>
DEVICE void product_dots(const P& p) {
  for (WarpColumns<P> column; column.more(); column.next()) product_dot<P, ROWS>(p, column.at);
}

// Few rows, right operand contiguous along n: a block of 32 columns, a warp for each of PARTS parts of k.
template <class P, int ROWS, int PARTS>
DEVICE void product_columns(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  SHARED(T, part, PARTS * 32);
  const I blocks = (I)((P::N + 31) / 32);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const I b = (I)blockIdx.x / blocks, n = (I)blockIdx.x % blocks * 32 + lane;
  T sum[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sum[m] = (T)0;
  typename P::Beside beside[ROWS];
  if (warp == 0 && n < (I)P::N) read_beside<ROWS>(p, b, n, beside);
  if (n < (I)P::N) {
    for (Chains<I> chain((I)P::K, PARTS); chain.next();) {
      T own[ROWS];
#pragma unroll
      for (int m = 0; m < ROWS; ++m) own[m] = (T)0;
#pragma unroll 4
      for (I k = chain.begin + warp; k < chain.end; k += PARTS) {
        const T y = p.right(b, k, n);
#pragma unroll
        for (int m = 0; m < ROWS; ++m) own[m] = f_add(own[m], f_mul(p.left(b, (I)m, k), y));
      }
#pragma unroll
      for (int m = 0; m < ROWS; ++m) sum[m] = f_add(sum[m], own[m]);
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    __syncthreads();
    part[threadIdx.x] = sum[m];
    __syncthreads();
    if (warp == 0 && n < (I)P::N) {
      T total = (T)0;
#pragma unroll
      for (int i = 0; i < PARTS; ++i) total = f_add(total, part[i * 32 + lane]);
      p.store(b, (I)m, n, total, beside[m]);
    }
  }
}

// As product_dots with 16 bytes of the right operand, of elements S, at a time; LEFT_WIDE: of the left one, of
// elements L, as well.
template <class P, int ROWS, class S, bool LEFT_WIDE, class L = S>
DEVICE void product_dot_wide(const P& p, i64 column) {
  typedef typename P::T T;
  typedef typename P::I I;
  const int LANES = 16 / sizeof(S);
  const I b = (I)(column / P::N), n = (I)(column % P::N), lane = threadIdx.x & 31;
  // Terms whose loads do not wait for one another: as many as there are, and one where there is none.
  const int EACH = (int)((P::K + 32 * LANES - 1) / (32 * LANES)), AHEAD = EACH < 1 ? 1 : EACH < 4 ? EACH : 4;
  bool inside = true;
  typename P::Beside beside[ROWS];
  if (lane == 0) read_beside<ROWS>(p, b, n, beside);
  T sum[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sum[m] = (T)0;
  for (Chains<I> chain((I)P::K, 32); chain.next();) {
    T part[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; ++m) part[m] = (T)0;
    for (I first = chain.begin + lane * LANES; first < chain.end; first += 32 * LANES * AHEAD) {
      vec<LANES, S> y[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const I k = first + u * 32 * LANES;
        if (k < chain.end) y[u] = *(const vec<LANES, S>*)p.right_wide(b, k, n, inside);
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const I k = first + u * 32 * LANES;
        if (k >= chain.end) continue;
#pragma unroll
        for (int m = 0; m < ROWS; ++m) {
          const int STEP = LEFT_WIDE ? 16 / sizeof(L) : 1;
#pragma unroll
          for (int i = 0; i < LANES; i += STEP) {
            vec<STEP, L> x;
            if constexpr (LEFT_WIDE) x = *(const vec<STEP, L>*)p.left_wide(b, (I)m, k + i, inside);
#pragma unroll
            for (int j = 0; j < STEP; ++j) {
              T own;
              if constexpr (LEFT_WIDE) own = get(x.v[j]);
              else own = p.left(b, (I)m, k + i);
              part[m] = f_add(part[m], f_mul(own, get(y[u].v[i + j])));
            }
          }
        }
      }
    }
#pragma unroll
    for (int m = 0; m < ROWS; ++m) sum[m] = f_add(sum[m], part[m]);
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    const T total = warp_fold<fold_sum>(sum[m]);
    if (lane == 0) p.store(b, (I)m, n, total, beside[m]);
  }
}
template <class P, int ROWS, class S, bool LEFT_WIDE, class L = S>
DEVICE void product_dots_wide(const P& p) {
  for (WarpColumns<P> column; column.more(); column.next()) product_dot_wide<P, ROWS, S, LEFT_WIDE, L>(p, column.at);
}

// As product_columns with 16 bytes of the right operand, of elements S, at a time: THREADS threads make what ACROSS of
// these have of columns.
template <class P, int ROWS, class S, int ACROSS, int THREADS>
DEVICE void product_columns_wide(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  const int LANES = 16 / sizeof(S), WIDTH = ACROSS * LANES, PARTS = THREADS / ACROSS, WARPS = THREADS / 32;
  // Terms whose loads do not wait for one another: as many as there are, and one where there is none.
  const int EACH = (int)((P::K + PARTS - 1) / PARTS), MOST = ROWS <= 2 ? 6 : 4;
  const int AHEAD = EACH < 1 ? 1 : EACH < MOST ? EACH : MOST;
  SHARED(T, part, WARPS * WIDTH);
  const I blocks = (I)((P::N + WIDTH - 1) / WIDTH);
  const int thread = threadIdx.x, across = thread % ACROSS;
  const I b = (I)blockIdx.x / blocks, n0 = (I)blockIdx.x % blocks * WIDTH, n = n0 + across * LANES;
  bool inside = true;
  typename P::Beside beside[ROWS];
  if (thread < WIDTH && n0 + thread < (I)P::N) read_beside<ROWS>(p, b, n0 + thread, beside);
  T sum[ROWS][LANES];
#pragma unroll
  for (int m = 0; m < ROWS * LANES; ++m) sum[m / LANES][m % LANES] = (T)0;
  if (n < (I)P::N) {
    for (Chains<I> chain((I)P::K, PARTS); chain.next();) {
      T own[ROWS][LANES];
#pragma unroll
      for (int m = 0; m < ROWS * LANES; ++m) own[m / LANES][m % LANES] = (T)0;
      for (I first = chain.begin + thread / ACROSS; first < chain.end; first += PARTS * AHEAD) {
        vec<LANES, S> y[AHEAD];
        T x[AHEAD][ROWS];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
          const I k = first + u * PARTS;
          if (k >= chain.end) continue;
          y[u] = *(const vec<LANES, S>*)p.right_wide(b, k, n, inside);
#pragma unroll
          for (int m = 0; m < ROWS; ++m) x[u][m] = p.left(b, (I)m, k);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
          if (first + u * PARTS >= chain.end) continue;
#pragma unroll
          for (int m = 0; m < ROWS; ++m)
#pragma unroll
            for (int i = 0; i < LANES; ++i) own[m][i] = f_add(own[m][i], f_mul(x[u][m], get(y[u].v[i])));
        }
      }
#pragma unroll
      for (int m = 0; m < ROWS * LANES; ++m)
        sum[m / LANES][m % LANES] = f_add(sum[m / LANES][m % LANES], own[m / LANES][m % LANES]);
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < LANES; ++i) {
      T own = sum[m][i];
      // Of the parts of a warp.
#pragma unroll
      for (int lanes = ACROSS; lanes < 32; lanes *= 2) own = f_add(own, swapped(own, lanes));
      if ((thread & 31) < ACROSS) part[(thread >> 5) * WIDTH + across * LANES + i] = own;
    }
    __syncthreads();
    if (thread < WIDTH && n0 + thread < (I)P::N) {
      T total = (T)0;
#pragma unroll
      for (int warp = 0; warp < WARPS; ++warp) total = f_add(total, part[warp * WIDTH + thread]);
      p.store(b, (I)m, n0 + thread, total, beside[m]);
    }
  }
}

// Eight neighbours that begin anywhere, as memory has them: the one or two aligned pieces of 16 bytes in which `count` of them lie.
// No piece is read that has none, so nothing is read beyond the 16 bytes of an element that is there.
struct Loose {
  vec<4, u32> first, second;
  int shift, count;

  DEVICE void read(const u16* from, int there) {
    const int behind = (int)((u64)from & 15);
    const vec<4, u32>* pieces = (const vec<4, u32>*)((const char*)from - behind);
    shift = behind / 2;
    count = there;
    first = vec<4, u32>();
    second = vec<4, u32>();
    if (there > 0) first = pieces[0];
    if (shift + there > 8) second = pieces[1];
  }

  // The neighbours, zeros behind those that are there.
  DEVICE vec<4, u32> made() const {
    u32 words[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = first.v[i];
      words[4 + i] = second.v[i];
    }
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = shift & 4 ? words[i + 2] : words[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = shift & 2 ? words[i + 1] : words[i];
    vec<4, u32> made;
#pragma unroll
    for (int i = 0; i < 4; ++i) made.v[i] = shift & 1 ? words[i] >> 16 | words[i + 1] << 16 : words[i];
    if (count < 8) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int rest = count - 2 * i;
        made.v[i] &= rest >= 2 ? 0xffffffffu : rest == 1 ? 0xffffu : 0u;
      }
    }
    return made;
  }
};

// How an operand of halves is read: element by element; 8 neighbours that are copied at once, and waited for later; 8 that begin
// anywhere.
const int SINGLE = 0, WIDE = 1, LOOSE = 2;

// An operand of halves on its way to shared memory, by THREADS threads, 32 of k at a time, in the order in which it lies in memory: ROWS
// rows of 32 (ALONG_K) or 32 of ROWS, and 8 more each, so that a fragment's rows fall into different banks. WIDE: P
// has pointers to 8 neighbours, zeros where they are not inside, and copies are waited for later; else elements are
// held in registers meanwhile. LOOSE: P has pointers to neighbours that are there up to the side's end.
template <class P, class H, int ROWS, int THREADS, bool ALONG_K, int READ, bool RIGHT> struct Operand {
  typedef typename P::I I;
  static const int PITCH = ALONG_K ? 40 : ROWS + 8, COUNT = ALONG_K ? ROWS * 40 : 32 * (ROWS + 8);
  static const int STEP = READ == SINGLE ? 1 : 8, ALL = ROWS * 32 / STEP, EACH = (ALL + THREADS - 1) / THREADS;
  static const i64 END = RIGHT ? P::N : P::M;
  u16 held[READ == SINGLE ? EACH : 1];
  Loose loose[READ == LOOSE ? EACH : 1];

  DEVICE static int row_of(int i) { return ALONG_K ? i / (32 / STEP) : i % (ROWS / STEP) * STEP; }
  DEVICE static int k_of(int i) { return ALONG_K ? i % (32 / STEP) * STEP : i / (ROWS / STEP); }
  DEVICE static int place(int row, int k) { return ALONG_K ? row * PITCH + k : k * PITCH + row; }

  DEVICE void fetch(const P& p, u16* to, I b, I row0, I k0) {
// Where sums take most registers, addresses are made one after the other.
#pragma unroll(READ == WIDE && THREADS > 256 ? 1 : EACH)
    for (int i = 0; i < EACH; ++i) {
      const int own = threadIdx.x + i * THREADS, row = row_of(own), k = k_of(own);
      if (ALL % THREADS != 0 && own >= ALL) break;
      bool inside = row0 + row < (I)END && k0 + k < (I)P::K;
      if constexpr (READ == WIDE) {
        const u16* from;
        if constexpr (RIGHT) from = p.right_wide(b, k0 + k, row0 + row, inside);
        else from = p.left_wide(b, row0 + row, k0 + k, inside);
        copy_later(to + place(row, k), from, inside);
      } else if constexpr (READ == LOOSE) {
        const I rest = ALONG_K ? (I)P::K - k0 - k : (I)END - row0 - row;
        const u16* from;
        if constexpr (RIGHT) from = p.right_loose(b, k0 + k, row0 + row);
        else from = p.left_loose(b, row0 + row, k0 + k);
        loose[i].read(from, !inside ? 0 : rest < 8 ? (int)rest : 8);
      } else {
        held[i] = 0;
        if (inside) held[i] = narrow(RIGHT ? p.right(b, k0 + k, row0 + row) : p.left(b, row0 + row, k0 + k), H());
      }
    }
  }

  DEVICE void keep(u16* to) const {
    if constexpr (READ != WIDE) {
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        const int own = threadIdx.x + i * THREADS, row = row_of(own), k = k_of(own);
        if (ALL % THREADS != 0 && own >= ALL) break;
        if constexpr (READ == LOOSE) *(vec<4, u32>*)(to + place(row, k)) = loose[i].made();
        else to[place(row, k)] = held[i];
      }
    }
  }
};

// Stores a row's sums of TILES tiles of eight columns, from column n on: LOWER are those of the row `group + 8`. Eight neighbours at
// once where P takes these.
template <bool LOWER, int TILES, class P, class I> DEVICE void store_rows(const P& p, const float (*sum)[4], I b, I m, I n) {
  const int place = threadIdx.x & 3;
  if constexpr (P::BESIDE && TILES % 4 == 0) {
#pragma unroll
    for (int j = 0; j < TILES; j += 4) {
      float all[8];
      row_neighbours<LOWER>(all, sum + j);
      const I first = n + (j + place) * 8;
      if (m < (I)P::M && first < (I)P::N) p.store_beside(b, m, first / 8, all);
    }
  } else {
#pragma unroll
    for (int j = 0; j < TILES * 2; ++j) {
      const I own = n + j / 2 * 8 + place * 2 + j % 2;
      if (m < (I)P::M && own < (I)P::N) p.store(b, m, own, sum[j / 2][(LOWER ? 2 : 0) + j % 2]);
    }
  }
}

// Halves H on tensor cores: a block makes a tile of BM x BN, each of four warps a quarter of it, each of more warps 64 x 64, 32
// of k at a time. STAGES of these are in shared memory, of which all but one are on their way: memory is farther away
// than one is multiplied.
template <class P, class H, int BM, int BN, int THREADS, int STAGES, bool LEFT_ALONG_K, bool RIGHT_ALONG_K, int LEFT_READ, int RIGHT_READ>
DEVICE void product_mma(const P& p) {
  typedef typename P::I I;
  typedef Operand<P, H, BM, THREADS, LEFT_ALONG_K, LEFT_READ, false> Left;
  typedef Operand<P, H, BN, THREADS, RIGHT_ALONG_K, RIGHT_READ, true> Right;
  const int DOWN = THREADS == 128 ? 2 : BM / 64, ACROSS = THREADS / 32 / DOWN, WM = BM / DOWN, WN = BN / ACROSS;
  DYNAMIC_SHARED(memory);
  u16 *left = (u16*)memory, *right = left + STAGES * Left::COUNT;
  const I columns = (I)((P::N + BN - 1) / BN), rows = (I)((P::M + BM - 1) / BM);
  I tile = (I)blockIdx.x;
  const I n0 = tile % columns * BN;
  tile /= columns;
  const I m0 = tile % rows * BM, b = tile / rows;
  const int warp = threadIdx.x >> 5, wm = warp / ACROSS * WM, wn = warp % ACROSS * WN;
  float sum[WM / 16][WN / 8][4];
#pragma unroll
  for (int i = 0; i < WM / 16 * (WN / 8) * 4; ++i) sum[i / 4 / (WN / 8)][i / 4 % (WN / 8)][i % 4] = 0.0f;
  Left lefts;
  Right rights;
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage * 32 < P::K) {
      lefts.fetch(p, left + stage * Left::COUNT, b, m0, stage * 32);
      rights.fetch(p, right + stage * Right::COUNT, b, n0, stage * 32);
      lefts.keep(left + stage * Left::COUNT);
      rights.keep(right + stage * Right::COUNT);
    }
    copies_end();
  }
  int now = 0, then = STAGES - 1;
  for (I k0 = 0; k0 < (I)P::K; k0 += 32) {
    const I ahead = k0 + 32 * (STAGES - 1);
    const bool more = ahead < (I)P::K;
    copies_wait<STAGES - 2>();
    __syncthreads();
    // Everyone is done with the stage that is filled now.
    if (more) {
      lefts.fetch(p, left + then * Left::COUNT, b, m0, ahead);
      rights.fetch(p, right + then * Right::COUNT, b, n0, ahead);
    }
    copies_end();
    const u16 *x0 = left + now * Left::COUNT, *y0 = right + now * Right::COUNT;
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
      u32 x[WM / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        if (LEFT_ALONG_K) left_fragment<Left::PITCH>(x[i], x0 + (wm + i * 16) * Left::PITCH + k);
        else left_fragment_turned<Left::PITCH>(x[i], x0 + k * Left::PITCH + wm + i * 16);
      }
#pragma unroll
      for (int j = 0; j < WN / 8; j += 2) {
        u32 y[4];
        if (RIGHT_ALONG_K) right_fragments<Right::PITCH>(y, y0 + (wn + j * 8) * Right::PITCH + k);
        else right_fragments_turned<Right::PITCH>(y, y0 + k * Right::PITCH + wn + j * 8);
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
          mma<0>(sum[i][j], x[i], y, H());
          mma<2>(sum[i][j + 1], x[i], y, H());
        }
      }
    }
    if (more) {
      lefts.keep(left + then * Left::COUNT);
      rights.keep(right + then * Right::COUNT);
    }
    now = now == STAGES - 1 ? 0 : now + 1;
    then = then == STAGES - 1 ? 0 : then + 1;
  }
  const I m = m0 + wm + ((threadIdx.x & 31) >> 2), n = n0 + wn;
#pragma unroll
  for (int i = 0; i < WM / 16; ++i) {
    store_rows<false, WN / 8>(p, sum[i], b, m + i * 16, n);
    store_rows<true, WN / 8>(p, sum[i], b, m + i * 16 + 8, n);
  }
}
