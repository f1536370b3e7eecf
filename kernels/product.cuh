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
//   };

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
  T sum[TM][TN];
#pragma unroll
  for (int i = 0; i < TM; ++i)
#pragma unroll
    for (int j = 0; j < TN; ++j) sum[i][j] = (T)0;
  for (I k0 = 0; k0 < (I)P::K; k0 += BK) {
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
      if (m < (I)P::M && n < (I)P::N) p.store(b, m, n, sum[i][j]);
    }
}

// Few rows, right operand contiguous along k: a warp takes a column, its lanes the products.
template <class P, int ROWS>
DEVICE void product_dots(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  const i64 column = (i64)blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (column >= P::BATCH * P::N) return;
  const I b = (I)(column / P::N), n = (I)(column % P::N), lane = threadIdx.x & 31;
  T sum[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sum[m] = (T)0;
#pragma unroll 4
  for (I k = lane; k < (I)P::K; k += 32) {
    const T y = p.right(b, k, n);
#pragma unroll
    for (int m = 0; m < ROWS; ++m) sum[m] = f_add(sum[m], f_mul(p.left(b, (I)m, k), y));
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    const T total = warp_fold<fold_sum>(sum[m]);
    if (lane == 0) p.store(b, (I)m, n, total);
  }
}

// Few rows, right operand contiguous along n: a block of 32 columns, PARTS parts of k.
template <class P, int ROWS, int PARTS>
DEVICE void product_columns(const P& p) {
  typedef typename P::T T;
  typedef typename P::I I;
  SHARED(T, part, PARTS * 32);
  const I blocks = (I)((P::N + 31) / 32);
  const I b = (I)blockIdx.x / blocks, n = (I)blockIdx.x % blocks * 32 + threadIdx.x;
  T sum[ROWS];
#pragma unroll
  for (int m = 0; m < ROWS; ++m) sum[m] = (T)0;
  if (n < (I)P::N) {
#pragma unroll 4
    for (I k = threadIdx.y; k < (I)P::K; k += PARTS) {
      const T y = p.right(b, k, n);
#pragma unroll
      for (int m = 0; m < ROWS; ++m) sum[m] = f_add(sum[m], f_mul(p.left(b, (I)m, k), y));
    }
  }
#pragma unroll
  for (int m = 0; m < ROWS; ++m) {
    __syncthreads();
    part[threadIdx.y * 32 + threadIdx.x] = sum[m];
    __syncthreads();
    if (threadIdx.y == 0 && n < (I)P::N) {
      T total = (T)0;
#pragma unroll
      for (int i = 0; i < PARTS; ++i) total = f_add(total, part[i * 32 + threadIdx.x]);
      p.store(b, (I)m, n, total);
    }
  }
}

// Halves H on tensor cores: 128 threads make a tile of 64 x 64, each warp 32 x 32 of it, 32 of k at a time.
template <class P, class H, bool LEFT_ALONG_K, bool RIGHT_ALONG_K>
DEVICE void product_mma(const P& p) {
  typedef typename P::I I;
  // Rows of 32 halves and 8 more, so that a fragment's rows fall into different banks.
  const int PITCH = 40;
  SHARED(u16, left, 64 * 40);
  SHARED(u16, right, 64 * 40);
  const I columns = (I)((P::N + 63) / 64), rows = (I)((P::M + 63) / 64);
  I tile = (I)blockIdx.x;
  const I n0 = tile % columns * 64;
  tile /= columns;
  const I m0 = tile % rows * 64, b = tile / rows;
  const int thread = threadIdx.x, lane = thread & 31, group = lane >> 2, place = lane & 3;
  const int wm = (thread >> 5) / 2 * 32, wn = (thread >> 5) % 2 * 32;
  float sum[2][4][4];
#pragma unroll
  for (int i = 0; i < 32; ++i) sum[i / 16][i / 4 % 4][i % 4] = 0.0f;
  for (I k0 = 0; k0 < (I)P::K; k0 += 32) {
#pragma unroll 4
    for (int i = thread; i < 64 * 32; i += 128) {
      const int k = LEFT_ALONG_K ? i % 32 : i / 64, m = LEFT_ALONG_K ? i / 32 : i % 64;
      left[m * PITCH + k] =
          m0 + m < (I)P::M && k0 + k < (I)P::K ? narrow(p.left(b, m0 + m, k0 + k), H()) : (u16)0;
    }
#pragma unroll 4
    for (int i = thread; i < 64 * 32; i += 128) {
      const int k = RIGHT_ALONG_K ? i % 32 : i / 64, n = RIGHT_ALONG_K ? i / 32 : i % 64;
      right[n * PITCH + k] =
          n0 + n < (I)P::N && k0 + k < (I)P::K ? narrow(p.right(b, k0 + k, n0 + n), H()) : (u16)0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
      u32 x[2][4], y[4][2];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const int m = wm + i * 16 + group + r % 2 * 8, at = k + place * 2 + r / 2 * 8;
          x[i][r] = *(const u32*)&left[m * PITCH + at];
        }
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int r = 0; r < 2; ++r)
          y[j][r] = *(const u32*)&right[(wn + j * 8 + group) * PITCH + k + place * 2 + r * 8];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(sum[i][j], x[i], y[j], H());
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const I m = m0 + wm + i * 16 + group + r / 2 * 8, n = n0 + wn + j * 8 + place * 2 + r % 2;
        if (m < (I)P::M && n < (I)P::N) p.store(b, m, n, sum[i][j][r]);
      }
}
