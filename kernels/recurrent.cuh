// Recurrent layers: a block takes one sequence in one direction, its threads the hidden units, step by
// step, with the state in shared memory. S is the type in memory, T that of computation.
//
// CELL: 0 rnn, 1 lstm, 2 gru, 3 gru whose reset comes after the product. Weights stand as in ONNX.

template <class T, class S> DEVICE T row_dot(const S* weights, const T* x, int count) {
  T sum = (T)0;
  for (int i = 0; i < count; ++i) sum += get(weights[i]) * x[i];
  return sum;
}

template <class T, class S> DEVICE T row_dot_of(const S* weights, const S* x, int count) {
  T sum = (T)0;
  for (int i = 0; i < count; ++i) sum += get(weights[i]) * get(x[i]);
  return sum;
}

template <class T, class S, int CELL, bool REVERSE, bool BOTH_WAYS>
DEVICE void recurrent(const S* x, const S* w, const S* r, const S* bias, const S* initial, const S* cells,
                      S* all, S* last, S* last_cell, int time, int batch, int features, int hidden) {
  DYNAMIC_SHARED(memory);
  T* state = (T*)memory;
  T* next = state + hidden;
  T* cell = next + hidden;
  const int gates = CELL == 0 ? 1 : CELL == 1 ? 4 : 3;
  const int d = (int)blockIdx.x / batch, n = (int)blockIdx.x % batch, directions = BOTH_WAYS ? 2 : 1;
  const bool backwards = REVERSE || d == 1;
  const i64 start = ((i64)d * batch + n) * hidden;
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
    state[j] = get(initial[start + j]);
    cell[j] = CELL == 1 ? get(cells[start + j]) : (T)0;
  }
  __syncthreads();
  for (int step = 0; step < time; ++step) {
    const int t = backwards ? time - 1 - step : step;
    const S* input = x + ((i64)t * batch + n) * features;
#define ROW(gate) ((i64)d * gates * hidden + (gate) * hidden + j)
#define BIAS(gate, of) get(bias[((i64)2 * d + (of)) * gates * hidden + (gate) * hidden + j])
#define FROM_INPUT(gate) (row_dot_of<T>(w + ROW(gate) * features, input, features) + BIAS(gate, 0))
#define FROM_STATE(gate, h) (row_dot<T>(r + ROW(gate) * hidden, h, hidden) + BIAS(gate, 1))
    if (CELL >= 2) {
      // The reset gate, and what the state is damped to.
      for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
        const T reset = f_sigmoid(FROM_INPUT(1) + FROM_STATE(1, state));
        cell[j] = CELL == 2 ? reset * state[j] : reset;
      }
      __syncthreads();
    }
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
      T value;
      if (CELL == 0) {
        value = f_tanh(FROM_INPUT(0) + FROM_STATE(0, state));
      } else if (CELL == 1) {
        const T i = f_sigmoid(FROM_INPUT(0) + FROM_STATE(0, state));
        const T o = f_sigmoid(FROM_INPUT(1) + FROM_STATE(1, state));
        const T f = f_sigmoid(FROM_INPUT(2) + FROM_STATE(2, state));
        const T c = f * cell[j] + i * f_tanh(FROM_INPUT(3) + FROM_STATE(3, state));
        cell[j] = c;
        value = o * f_tanh(c);
      } else {
        const T update = f_sigmoid(FROM_INPUT(0) + FROM_STATE(0, state));
        const T inner = CELL == 2 ? FROM_STATE(2, cell) : cell[j] * FROM_STATE(2, state);
        value = ((T)1 - update) * f_tanh(FROM_INPUT(2) + inner) + update * state[j];
      }
      next[j] = value;
    }
    __syncthreads();
    for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
      state[j] = next[j];
      put(all[(((i64)t * directions + d) * batch + n) * hidden + j], next[j]);
    }
    __syncthreads();
  }
  for (int j = threadIdx.x; j < hidden; j += blockDim.x) {
    put(last[start + j], state[j]);
    if (CELL == 1) put(last_cell[start + j], cell[j]);
  }
#undef ROW
#undef BIAS
#undef FROM_INPUT
#undef FROM_STATE
}
