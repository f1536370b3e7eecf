// What kernels on tensor cores are made of: halves between memory, shared memory and registers, and the product
// of fragments. Behind the shim each has a twin in plain C++ with the same fragments in the same lanes.

// Eight halves: the unit in which they are copied.
typedef vec<8, u16> halves;

// -- copies that threads do not wait for -------------------------------------------------------------

// 16 bytes to shared memory, zeros where they are not `inside`. They are there after `copies_wait`, for
// other threads after a barrier as well. A thread's copies since the last `copies_end` are one batch.
DEVICE void copy_later(u16* to, const u16* from, bool inside) {
#ifdef CPU_SHIM
  shim::copy_later(to, from, inside ? 16 : 0, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
#endif
}

// A number to shared memory, as `copy_later`.
DEVICE void number_later(float* to, const float* from, bool inside) {
#ifdef CPU_SHIM
  shim::copy_later(to, from, inside ? 4 : 0, 4);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? 4 : 0)
               : "memory");
#endif
}

DEVICE void copies_end() {
#ifdef CPU_SHIM
  shim::copies_end();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all batches but the last `LEFT`.
template <int LEFT> DEVICE void copies_wait() {
#ifdef CPU_SHIM
  shim::copies_wait(LEFT);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// ROWS rows of halves to shared memory, by THREADS threads: to[row * PITCH + column]. Zeros from row `known` on
// and from column `size` to WIDTH. WIDE: 16 bytes at a time, later. `from` gives a row's first element.
template <int ROWS, int WIDTH, int PITCH, int THREADS, bool WIDE, class R>
DEVICE void stage(u16* to, i64 known, int size, const R& from) {
  const int STEP = WIDE ? 8 : 1, ALL = ROWS * (WIDTH / STEP), EACH = (ALL + THREADS - 1) / THREADS;
#pragma unroll(WIDE ? EACH : 8)
  for (int part = 0; part < EACH; ++part) {
    const int i = part * THREADS + threadIdx.x;
    if (ALL % THREADS != 0 && i >= ALL) break;
    const int row = i / (WIDTH / STEP), column = i % (WIDTH / STEP) * STEP;
    const bool inside = row < known && column < size;
    const u16* element = (const u16*)from(inside ? row : 0) + (inside ? column : 0);
    if (WIDE) copy_later(to + row * PITCH + column, element, inside);
    else to[row * PITCH + column] = inside ? *element : (u16)0;
  }
}

// -- fragments ---------------------------------------------------------------------------------------
//
// Of mma.m16n8k16 (PTX ISA); a lane's group is lane / 4, its place in the group lane % 4. A left fragment is 16 x 16,
// a right one 16 x 8 (two stand in four registers here), sums are 16 x 8: rows `group` and `group + 8`, columns
// `2 * place` and the next.

// Four matrices of 8 x 8 halves in shared memory: lane l gives row l % 8 of matrix l / 8, on a boundary of 16 bytes;
// register r then holds elements 2 * place and the next of row `group` of matrix r. TURNED: of its transpose.
template <bool TURNED> DEVICE void matrices(u32 (&to)[4], const u16* row) {
#ifdef CPU_SHIM
  const int group = (threadIdx.x & 31) / 4, place = (threadIdx.x & 31) % 4;
  if ((u64)row % 16 != 0) shim::fail("a row of a matrix is not aligned");
  const u16* rows[32];
  shim::exchanged_by_all(row, rows, shim::Meeting::Matrices);
  for (int r = 0; r < 4; ++r) {
    const int two = place * 2;
    to[r] = TURNED ? both(rows[r * 8 + two][group], rows[r * 8 + two + 1][group])
                   : both(rows[r * 8 + group][two], rows[r * 8 + group][two + 1]);
  }
#else
  const u32 at = (u32)__cvta_generic_to_shared(row);
  if (TURNED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
#endif
}

// The left fragment whose first element is `from`, its rows PITCH apart.
template <int PITCH> DEVICE void left_fragment(u32 (&to)[4], const u16* from) {
  const int lane = threadIdx.x & 31;
  matrices<false>(to, from + (lane & 15) * PITCH + (lane >> 4) * 8);
}

// The same where rows in memory are columns of the fragment.
template <int PITCH> DEVICE void left_fragment_turned(u32 (&to)[4], const u16* from) {
  const int lane = threadIdx.x & 31;
  matrices<true>(to, from + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 8);
}

// Two right fragments, of 16 columns, where neighbours in memory are neighbours along what is summed over.
template <int PITCH> DEVICE void right_fragments(u32 (&to)[4], const u16* from) {
  const int lane = threadIdx.x & 31;
  matrices<false>(to, from + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 8);
}

// Two right fragments, of 16 columns, where neighbours in memory are neighbours along the columns.
template <int PITCH> DEVICE void right_fragments_turned(u32 (&to)[4], const u16* from) {
  const int lane = threadIdx.x & 31;
  matrices<true>(to, from + (lane & 15) * PITCH + (lane >> 4) * 8);
}

// Sums of two neighbouring tiles, rounded, as a left fragment of 16 x 16.
template <class H> DEVICE void packed(u32 (&to)[4], const float (&first)[4], const float (&second)[4], H) {
  to[0] = narrow_both(first[0], first[1], H());
  to[1] = narrow_both(first[2], first[3], H());
  to[2] = narrow_both(second[0], second[1], H());
  to[3] = narrow_both(second[2], second[3], H());
}

// sum += left * right for one warp; `right` is the fragment that begins at register FIRST.
#ifdef CPU_SHIM
template <int FIRST, class H> DEVICE void mma(float (&sum)[4], const u32 (&left)[4], const u32 (&right)[4], H) {
  const int group = (threadIdx.x & 31) / 4, place = (threadIdx.x & 31) % 4;
  const u32 own[6] = {left[0], left[1], left[2], left[3], right[FIRST], right[FIRST + 1]};
  const u32* lanes[32];
  shim::exchanged_by_all(&own[0], lanes, shim::Meeting::Product);
  for (int i = 0; i < 4; ++i) {
    const int row = group + (i / 2) * 8, column = place * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      const u32 x = lanes[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> (k % 2 * 16);
      const u32 y = lanes[column * 4 + k % 8 / 2][4 + k / 8] >> (k % 2 * 16);
      H a, b;
      a.bits = (u16)x;
      b.bits = (u16)y;
      sum[i] += widen(a) * widen(b);
    }
  }
  // Registers stay as they are until all lanes have seen them.
  __syncwarp();
}
#else
template <int FIRST> DEVICE void mma(float (&sum)[4], const u32 (&left)[4], const u32 (&right)[4], bf16) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[FIRST]), "r"(right[FIRST + 1]));
}
template <int FIRST> DEVICE void mma(float (&sum)[4], const u32 (&left)[4], const u32 (&right)[4], f16) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[FIRST]), "r"(right[FIRST + 1]));
}
#endif

// A row of 32 columns of four neighbouring tiles of sums: each lane of the four that have it gets 8 neighbours, from
// column 8 * place on. LOWER: the row `group + 8`.
template <bool LOWER> DEVICE void row_neighbours(float (&to)[8], const float (*sum)[4]) {
  const int place = threadIdx.x & 3;
  float own[4][2];
#pragma unroll
  for (int j = 0; j < 8; ++j) own[j / 2][j % 2] = sum[j / 2][(LOWER ? 2 : 0) + j % 2];
  // A transposition of four by four pairs: of neighbours, then of pairs of them.
#pragma unroll
  for (int apart = 1; apart < 4; apart *= 2) {
    const bool second = (place & apart) != 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & apart) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float got = swapped(second ? own[j][i] : own[j | apart][i], apart);
        if (second) own[j][i] = got;
        else own[j | apart][i] = got;
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) to[j] = own[j / 2][j % 2];
}
