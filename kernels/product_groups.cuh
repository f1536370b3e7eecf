// Products of halves by groups of 128 threads: each makes 64 rows of a tile of BM x BN, 64 of k at a time, out of panels
// in shared memory (groups.cuh) to which copies are on their way meanwhile. P is as in product.cuh; neighbours of the left operand
// are neighbours along k, those of the right one along k or along columns, and both are copied eight at a time.

// An operand on its way to panels: LINES lines of UNITS units of eight halves. Lines are rows, or columns, where neighbours are
// along k, else lines are of k.
template <class P, int LINES, int UNITS, int THREADS, int SUMS, bool RIGHT, bool ALONG_K>
DEVICE void gather_panels(const P& p, unsigned char* to, typename P::I b, typename P::I row0, typename P::I k0) {
  typedef typename P::I I;
  const int ALL = LINES * UNITS, EACH = (ALL + THREADS - 1) / THREADS;
  const I end = RIGHT ? (I)P::N : (I)P::M;
  // What follows of a line is made once for all of k, where the threads' SUMS leave registers for it.
#pragma unroll(!RIGHT || SUMS * THREADS <= 32768 ? EACH : 2)
  for (int part = 0; part < EACH; ++part) {
    const int i = part * THREADS + threadIdx.x, line = i / UNITS, unit = i % UNITS;
    if (ALL % THREADS != 0 && i >= ALL) break;
    const I k = k0 + (ALONG_K ? unit * 8 : line), row = row0 + (ALONG_K ? line : unit * 8);
    bool inside = row < end && k < (I)P::K;
    const u16* from;
    if constexpr (RIGHT) from = p.right_wide(b, k, row, inside);
    else from = p.left_wide(b, row, k, inside);
    copy_later((u16*)(to + unit_at<LINES>(line, unit)), from, inside);
  }
}

template <class P, class H, int BM, int BN, int STAGES, bool RIGHT_ALONG_K> DEVICE void product_groups(const P& p) {
  typedef typename P::I I;
  const int THREADS = BM * 2, LEFT = BM * 128, BYTES = LEFT + BN * 128;
  // Columns of one product, and how many of these a group asks for.
  const int COLUMNS = BN < 128 ? 64 : 128, PARTS = BN / COLUMNS;
  DYNAMIC_SHARED(memory);
  unsigned char* const panels = panels_from(memory);
  const I columns = (I)((P::N + BN - 1) / BN), rows = (I)((P::M + BM - 1) / BM);
  I tile = (I)blockIdx.x;
  const I n0 = tile % columns * BN;
  tile /= columns;
  const I m0 = tile % rows * BM, b = tile / rows;
  const int group = threadIdx.x / 128, blocks = (int)((P::K + 63) / 64);
  auto stage = [&](int block) {
    unsigned char* const to = panels + block % STAGES * BYTES;
    if (block < blocks) {
      gather_panels<P, BM, 8, THREADS, BN / 2, false, true>(p, to, b, m0, (I)block * 64);
      if (RIGHT_ALONG_K) gather_panels<P, BN, 8, THREADS, BN / 2, true, true>(p, to + LEFT, b, n0, (I)block * 64);
      else gather_panels<P, 64, BN / 8, THREADS, BN / 2, true, false>(p, to + LEFT, b, n0, (I)block * 64);
    }
    copies_end();
  };
  float sums[PARTS][COLUMNS / 8][4];
#pragma unroll
  for (int part = 0; part < PARTS; ++part)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[part][i / 4][i % 4] = 0.0f;
#pragma unroll 1
  for (int block = 0; block < STAGES - 2; ++block) stage(block);
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    copies_arrive<STAGES - 3>();
    const unsigned char* const now = panels + block % STAGES * BYTES;
    const Panels left(now + group * 64 * 128, LEFT), right(now + LEFT, RIGHT_ALONG_K ? BN * 128 : 64 * 128);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int part = 0; part < PARTS; ++part) {
        // Columns are lines, or panels of 64.
        const int at = RIGHT_ALONG_K ? part * COLUMNS * 128 + step * 32 : part * COLUMNS / 64 * (64 * 128) + step * 16 * 128;
        product_of<!RIGHT_ALONG_K>(sums[part], left.moved(step * 32), right.moved(at), true, H());
      }
    products_end();
    // Products of the block before the last one have been waited for by all before the barrier.
    stage(block + STAGES - 2);
    products_wait<1>();
  }
  products_wait<0>();
#pragma unroll
  for (int part = 0; part < PARTS; ++part) made(sums[part]);
  const int row = group * 64 + threadIdx.x / 32 % 4 * 16 + (threadIdx.x & 31) / 4;
#pragma unroll
  for (int part = 0; part < PARTS; ++part) {
    store_rows<false, COLUMNS / 8>(p, sums[part], b, m0 + row, n0 + part * COLUMNS);
    store_rows<true, COLUMNS / 8>(p, sums[part], b, m0 + row + 8, n0 + part * COLUMNS);
  }
}
