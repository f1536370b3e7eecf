// Attention in tiles by groups of 128 threads, for halves: P is as in attention.cuh. Each group makes 64 rows. While the products of
// one block of keys run, their threads weigh the scores of the next: scores of block i + 1 and the weighted sum of block i are asked
// for together, and the former alone is waited for (Shah et al., "FlashAttention-3", 2024, 3.2).

// Elements of a head in whole panels, whole steps of a product.
template <i64 SIZE> struct Paneled {
  static const int WIDTH = (int)((SIZE + 63) / 64 * 64), STEPS = (int)((SIZE + 15) / 16), TILES = WIDTH / 8;
};

// Products that are waited for from here on run until a row's weights are there. A compiler knows of no reason for that order, and
// would wait first, when nothing is left to do meanwhile: it moves nothing over a branch, even one that is never taken.
DEVICE void weighed_before(const RowSums& sums) {
#ifndef CPU_SHIM
  if (__any_sync(FULL_WARP, sums.sum[0] < 0.0f || sums.sum[1] < 0.0f)) asm volatile("trap;");
#endif
}

// BLOCK keys at a time.
template <class P, int GROUPS, int BLOCK> DEVICE void attention_groups(const P& p) {
  typedef typename P::S H;
  typedef Paneled<P::SIZE> K;
  typedef Paneled<P::VALUES> V;
  const int THREADS = GROUPS * 128, SIDE = GROUPS * 64;
  const int KEY_BYTES = BLOCK * K::WIDTH * 2, VALUE_BYTES = BLOCK * V::WIDTH * 2;
  DYNAMIC_SHARED(memory);
  unsigned char* const queries = panels_from(memory);
  unsigned char* const keys = queries + SIDE * K::WIDTH * 2;
  unsigned char* const values = keys + 2 * KEY_BYTES;
  // The last rows of a causal head meet the most keys: they begin first.
  const BlockTile at(P::HEADS, P::ROWS, true, SIDE);
  const i64 b = at.b, h = at.h;
  const int group = threadIdx.x / 128, lane = threadIdx.x & 31, place = lane & 3, warp = threadIdx.x / 32 % 4;
  const i64 first = at.first + group * 64, row0 = first + warp * 16 + (lane >> 2);
  const i64 last = at.first + SIDE - 1 < P::ROWS ? at.first + SIDE - 1 : P::ROWS - 1, end = keys_seen(p, last);
  const int blocks = (int)((end + BLOCK - 1) / BLOCK);
  // What the group's first row sees, all of its rows do.
  const i64 seen_by_all = keys_seen(p, first);
  auto stage_keys = [&](int block) {
    const i64 k0 = (i64)block * BLOCK;
    if (block < blocks)
      stage_panels<BLOCK, K::WIDTH, THREADS>(keys + block % 2 * KEY_BYTES, end - k0, (int)P::SIZE,
                                           [&](int row) { return p.key(b, h, k0 + row); });
  };
  auto stage_values = [&](int block) {
    const i64 k0 = (i64)block * BLOCK;
    stage_panels<BLOCK, V::WIDTH, THREADS>(values + block % 2 * VALUE_BYTES, end - k0, (int)P::VALUES,
                                         [&](int row) { return p.value(b, h, k0 + row); });
  };
  float s[BLOCK / 8][4], out[V::TILES][4];
  u32 weights[BLOCK / 16][4];
  RowSums sums;
  const Panels own(queries + group * 64 * 128, SIDE * 128);
  // Asks for the scores of a block.
  auto score = [&](int block) {
    const Panels all(keys + block % 2 * KEY_BYTES, BLOCK * 128);
#pragma unroll
    for (int i = 0; i < K::STEPS; ++i)
      product_of<false>(s, own.moved(i / 4 * (SIDE * 128) + i % 4 * 32), all.moved(i / 4 * (BLOCK * 128) + i % 4 * 32), i > 0, H());
    products_end();
  };
  // Asks for a block's values to be added up by their weights.
  auto weigh = [&](int block) {
    const Panels all(values + block % 2 * VALUE_BYTES, BLOCK * 128);
#pragma unroll
    for (int i = 0; i < BLOCK / 16; ++i) product_of<true>(out, weights[i], all.moved(i * 16 * 128), true, H());
    products_end();
  };
  // Scores become weights, and `scale` is what the sums so far are multiplied with.
  auto take = [&](int block, float (&scale)[2]) {
    const i64 k0 = (i64)block * BLOCK;
    const bool whole = k0 + BLOCK <= seen_by_all;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Rows that are not there have the mask of the last one.
      const i64 mine = row0 + r * 8, row = mine < P::ROWS ? mine : P::ROWS - 1;
      if (whole) {
#pragma unroll
        for (int j = 0; j < BLOCK / 4; ++j) {
          float& score = s[j / 2][r * 2 + j % 2];
          score = p.score(b, h, row, k0 + j / 2 * 8 + place * 2 + j % 2, score);
        }
      } else {
        const int seen = seen_of(p, row, k0, BLOCK);
#pragma unroll
        for (int j = 0; j < BLOCK / 4; ++j) {
          const int key = j / 2 * 8 + place * 2 + j % 2;
          float& score = s[j / 2][r * 2 + j % 2];
          score = key < seen ? p.score(b, h, row, k0 + key, score) : limits<float>::low();
        }
      }
    }
    sums.take(s, scale);
  };
  // What was copied is there for all threads' products.
  auto arrived = [&] {
    copies_wait<0>();
    written_for_products();
    __syncthreads();
  };
  auto pack = [&] {
#pragma unroll
    for (int i = 0; i < BLOCK / 16; ++i) packed(weights[i], s[2 * i], s[2 * i + 1], H());
  };
  cleared(out);
  if (blocks > 0) {
    stage_panels<SIDE, K::WIDTH, THREADS>(queries, P::ROWS - at.first, (int)P::SIZE,
                                          [&](int row) { return p.query(b, h, at.first + row); });
    stage_keys(0);
    copies_end();
    arrived();
    products_begin();
    score(0);
    stage_keys(1);
    stage_values(0);
    copies_end();
    products_wait<0>();
    made(s);
    float scale[2];
    take(0, scale);
    pack();
    for (int block = 1; block < blocks; ++block) {
      arrived();
      products_begin();
      score(block);
      weigh(block - 1);
      // Whoever read what lies there has been waited for before the barrier.
      stage_keys(block + 1);
      stage_values(block);
      copies_end();
      products_wait<1>();
      made(s);
      take(block, scale);
      weighed_before(sums);
      products_wait<0>();
      made(out);
#pragma unroll
      for (int j = 0; j < V::TILES * 4; ++j) out[j / 4][j % 4] *= scale[j / 2 % 2];
      pack();
    }
    arrived();
    products_begin();
    weigh(blocks - 1);
    products_wait<0>();
    made(out);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const i64 row = row0 + r * 8;
    if (row >= P::ROWS) continue;
    bool broken;
    const float scale = row_scale<P>(sums.sum[r], broken);
    if (broken) {
#pragma unroll
      for (int j = 0; j < V::TILES * 2; ++j) out[j / 2][r * 2 + j % 2] = P::ZEROS ? 0.0f : not_a_number_f();
    }
    write_row<true>(p.result(b, h, row), out, r, broken ? 1.0f : scale, (int)P::VALUES);
  }
}
