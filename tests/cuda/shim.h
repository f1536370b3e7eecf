// Runs kernels in CUDA C on a CPU: a C++17 compiler takes the place of NVRTC, and a fiber that of each
// thread of a block. Blocks run one after the other.
//
// A fiber runs until it must wait for others: at a shuffle for the lanes of its warp, at a barrier for
// its block. Threads run in ascending or in descending order, so that a kernel whose result depends on
// the order (a barrier is missing) shows. Shared memory begins each block filled with not-a-numbers, and
// every argument stands between guards that are looked at afterwards.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#define CPU_SHIM 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __align__(bytes) alignas(bytes)
#define SHARED(T, name, count) T* const name = (T*)shim::shared_array(__COUNTER__, sizeof(T) * (count))
#define DYNAMIC_SHARED(name) unsigned char* const name = shim::dynamic_shared()

struct Index3 { unsigned x = 0, y = 0, z = 0; };

namespace shim {

enum class State { Ready, Warp, Barrier, Done };

// A copy to shared memory that is still to be made: bytes of it, the rest up to `all` as zeros.
struct Copy { void* to; const void* from; unsigned bytes, all, batch; };

struct Thread {
  Index3 index;
  unsigned number = 0;
  State state = State::Done;
  unsigned round = 0;           // shuffles so far: two slots are used in turn
  uint64_t slots[2] = {0, 0};
  std::vector<Copy> copies;     // made when they are waited for, so that a wait that is missing shows
  unsigned batches = 0;
  ucontext_t start;
  jmp_buf place;
  bool started = false;
};

struct Array { int site; size_t bytes; std::vector<unsigned char> memory; };

struct Machine {
  std::vector<Thread> threads;
  Index3 block, block_size, grid_size;
  std::function<void()> body;
  std::vector<Array> arrays;
  std::vector<unsigned char> dynamic;
  Thread* now = nullptr;
  jmp_buf scheduler;
  char* stacks = nullptr;
  const char* kernel = "";
};

inline Machine machine;
constexpr size_t STACK = 128 << 10;

[[noreturn]] inline void fail(const char* what) {
  fprintf(stderr, "kernel %s, block %u: %s\n", machine.kernel, machine.block.x, what);
  exit(3);
}

inline void* shared_array(int site, size_t bytes) {
  for (Array& array : machine.arrays)
    if (array.site == site && array.bytes == bytes) return array.memory.data();
  // Pointers to the arrays' memory stay as they are when the list of arrays grows.
  machine.arrays.push_back({site, bytes, std::vector<unsigned char>(bytes, 0xff)});
  return machine.arrays.back().memory.data();
}

inline unsigned char* dynamic_shared() {
  auto address = (uintptr_t)machine.dynamic.data();
  return (unsigned char*)((address + 63) & ~(uintptr_t)63);
}

// Gives the processor back until the scheduler comes round again.
inline void wait(State state) {
  Thread* own = machine.now;
  own->state = state;
  if (_setjmp(own->place) == 0) _longjmp(machine.scheduler, 1);
}

// A fiber lives as long as the program and runs one block after the other.
inline void fiber() {
  for (;;) {
    machine.body();
    wait(State::Done);
  }
}

inline void resume(Thread& thread) {
  machine.now = &thread;
  if (_setjmp(machine.scheduler) != 0) return;
  if (thread.started) _longjmp(thread.place, 1);
  thread.started = true;
  getcontext(&thread.start);
  thread.start.uc_stack.ss_sp = machine.stacks + STACK * thread.number;
  thread.start.uc_stack.ss_size = STACK;
  thread.start.uc_link = nullptr;
  makecontext(&thread.start, fiber, 0);
  setcontext(&thread.start);
}

// Lets go the lanes of each warp that all wait for one another; true where there were some.
inline bool release_warps(unsigned count) {
  bool any = false;
  for (unsigned first = 0; first < count; first += 32) {
    unsigned waiting = 0, lanes = count - first < 32 ? count - first : 32;
    for (unsigned i = 0; i < lanes; ++i) waiting += machine.threads[first + i].state == State::Warp;
    if (waiting != lanes) continue;
    for (unsigned i = 0; i < lanes; ++i) machine.threads[first + i].state = State::Ready;
    any = true;
  }
  return any;
}

inline void run_block(unsigned count, bool reversed) {
  for (Array& array : machine.arrays) memset(array.memory.data(), 0xff, array.bytes);
  if (!machine.dynamic.empty()) memset(machine.dynamic.data(), 0xff, machine.dynamic.size());
  for (unsigned i = 0; i < count; ++i) {
    machine.threads[i].state = State::Ready;
    machine.threads[i].batches = 0;
  }
  for (;;) {
    bool ran = false;
    for (unsigned i = 0; i < count; ++i) {
      Thread& thread = machine.threads[reversed ? count - 1 - i : i];
      if (thread.state == State::Ready) {
        resume(thread);
        ran = true;
      }
    }
    if (release_warps(count) || ran) continue;
    unsigned at_barrier = 0, done = 0;
    for (unsigned i = 0; i < count; ++i) {
      at_barrier += machine.threads[i].state == State::Barrier;
      done += machine.threads[i].state == State::Done;
    }
    if (done == count) {
      for (unsigned i = 0; i < count; ++i)
        if (!machine.threads[i].copies.empty()) fail("copies that nobody waits for");
      return;
    }
    if (at_barrier != count) fail("not all threads come to a barrier or a shuffle");
    for (unsigned i = 0; i < count; ++i) machine.threads[i].state = State::Ready;
  }
}

// `alone`: no thread waits for another one, and none needs a fiber.
inline void launch(const char* kernel, unsigned grid, Index3 block, unsigned shared, bool reversed, bool alone,
                   std::function<void()> body) {
  const unsigned count = block.x * block.y;
  if (machine.stacks == nullptr) {
    void* stacks = mmap(nullptr, STACK * 1024, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for stacks");
    machine.stacks = (char*)stacks;
    machine.threads.resize(1024);
  }
  if (count > 1024) fail("more than 1024 threads");
  machine.kernel = kernel;
  machine.block_size = {block.x, block.y, 1};
  machine.grid_size = {grid, 1, 1};
  machine.body = std::move(body);
  machine.arrays.clear();
  machine.dynamic.assign(shared == 0 ? 0 : shared + 64, 0xff);
  for (unsigned i = 0; i < count; ++i) {
    machine.threads[i].number = i;
    machine.threads[i].index = {i % block.x, i / block.x, 0};
  }
  for (unsigned i = 0; i < grid; ++i) {
    machine.block = {reversed ? grid - 1 - i : i, 0, 0};
    if (!alone) {
      run_block(count, reversed);
      continue;
    }
    for (unsigned t = 0; t < count; ++t) {
      machine.now = &machine.threads[reversed ? count - 1 - t : t];
      machine.body();
    }
  }
}

template <class T> T exchanged(T value, unsigned from) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
  Thread* own = machine.now;
  const unsigned slot = own->round++ & 1, first = own->number & ~31u;
  memcpy(&own->slots[slot], &value, sizeof(T));
  wait(State::Warp);
  if (first + from >= machine.block_size.x * machine.block_size.y) return value;
  T result;
  memcpy(&result, &machine.threads[first + from].slots[slot], sizeof(T));
  return result;
}

// The values of all lanes of a whole warp.
template <class T> void exchanged_by_all(T value, T (&all)[32]) {
  static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
  Thread* own = machine.now;
  const unsigned slot = own->round++ & 1, first = own->number & ~31u;
  memcpy(&own->slots[slot], &value, sizeof(T));
  wait(State::Warp);
  for (unsigned i = 0; i < 32; ++i) memcpy(&all[i], &machine.threads[first + i].slots[slot], sizeof(T));
}

inline void copy_later(void* to, const void* from, unsigned bytes, unsigned all) {
  if ((uintptr_t)to % all != 0 || (uintptr_t)from % all != 0) fail("a copy is not aligned");
  machine.now->copies.push_back({to, from, bytes, all, machine.now->batches});
}
inline void copies_end() { ++machine.now->batches; }
inline void copies_wait(unsigned left) {
  std::vector<Copy> rest;
  for (const Copy& copy : machine.now->copies) {
    if (copy.batch + left >= machine.now->batches) {
      rest.push_back(copy);
      continue;
    }
    memcpy(copy.to, copy.from, copy.bytes);
    memset((char*)copy.to + copy.bytes, 0, copy.all - copy.bytes);
  }
  machine.now->copies = std::move(rest);
}

}  // namespace shim

#define threadIdx (shim::machine.now->index)
#define blockIdx (shim::machine.block)
#define blockDim (shim::machine.block_size)
#define gridDim (shim::machine.grid_size)

inline void __syncthreads() { shim::wait(shim::State::Barrier); }
inline void __syncwarp(unsigned = ~0u) { shim::exchanged(0, 0); }
template <class T> T __shfl_sync(unsigned, T value, int lane, int = 32) { return shim::exchanged(value, lane & 31); }
inline unsigned __ballot_sync(unsigned, bool holds) {
  bool lanes[32];
  shim::exchanged_by_all(holds, lanes);
  unsigned all = 0;
  for (unsigned i = 0; i < 32; ++i) all |= (unsigned)lanes[i] << i;
  return all;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
template <class T> T __shfl_xor_sync(unsigned, T value, int lanes, int = 32) {
  return shim::exchanged(value, (shim::machine.now->number & 31) ^ lanes);
}

inline float __uint_as_float(unsigned bits) { float x; memcpy(&x, &bits, 4); return x; }
inline unsigned __float_as_uint(float x) { unsigned bits; memcpy(&bits, &x, 4); return bits; }

// -- the program around kernels: reads launches from a file, writes what their arguments became --------

namespace shim {

struct Entry { const char* name; void (*call)(void** args); };

constexpr size_t GUARD = 256;

inline void read_all(FILE* file, void* to, size_t bytes) {
  if (bytes != 0 && fread(to, 1, bytes, file) != bytes) fail("the request ends early");
}

inline int serve(const Entry* entries, const char* request, const char* response) {
  FILE *in = fopen(request, "rb"), *out = fopen(response, "wb");
  if (in == nullptr || out == nullptr) fail("a file cannot be opened");
  uint32_t launches;
  read_all(in, &launches, 4);
  for (uint32_t i = 0; i < launches; ++i) {
    uint32_t head[7];
    read_all(in, head, sizeof head);
    const uint32_t count = head[6];
    std::vector<std::vector<unsigned char>> memory(count);
    std::vector<uint64_t> sizes(count);
    std::vector<void*> args(count);
    for (uint32_t a = 0; a < count; ++a) {
      read_all(in, &sizes[a], 8);
      memory[a].assign(sizes[a] + 3 * GUARD, 0xa5);
      args[a] = (void*)(((uintptr_t)memory[a].data() + 2 * GUARD - 1) & ~(uintptr_t)(GUARD - 1));
      read_all(in, args[a], sizes[a]);
    }
    const Entry& entry = entries[head[0]];
    Index3 block{head[2], head[3], 1};
    launch(entry.name, head[1], block, head[4], head[5] & 1, head[5] & 2, [&] { entry.call(args.data()); });
    for (uint32_t a = 0; a < count; ++a) {
      auto* begin = (unsigned char*)args[a];
      for (size_t k = 0; k < GUARD / 2; ++k)
        if (begin[sizes[a] + k] != 0xa5 || *(begin - 1 - k) != 0xa5) fail("writes outside an argument");
      fwrite(begin, 1, sizes[a], out);
    }
  }
  fclose(in);
  return fclose(out) == 0 ? 0 : 1;
}

template <class... A, size_t... I> void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel((A)args[I]...);
}
template <class... A> void call(void (*kernel)(A...), void** args) {
  call(kernel, args, std::index_sequence_for<A...>{});
}

}  // namespace shim
