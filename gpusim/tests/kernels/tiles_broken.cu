// Kernels of copied tiles that are each broken once, and right without BROKEN.

typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
#define DEVICE __device__ __forceinline__

struct __align__(64) Map { char bytes[128]; };
extern __shared__ __align__(1024) char shared[];

DEVICE u32 at_shared(const void* p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void begin(u32 bar, u32 arrivals) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory"); }
DEVICE void fence_begun() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void expect(u32 bar, u32 bytes) { asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEVICE void arrive(u32 bar) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory"); }
DEVICE void arrive_expect(u32 bar, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory"); }
DEVICE void wait_phase(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nAGAIN%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE%=;\nbra AGAIN%=;\nDONE%=:\n}" ::"r"(bar), "r"(parity) : "memory");
}
DEVICE void copy2(u32 to, const Map* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
DEVICE void copy3(u32 to, const Map* map, int x, int y, int z, u32 bar) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar) : "memory");
}

#ifdef BROKEN
#define IF_BROKEN(...) __VA_ARGS__
#define IF_RIGHT(...)
#else
#define IF_BROKEN(...)
#define IF_RIGHT(...) __VA_ARGS__
#endif

DEVICE void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Tiles of 16 rows of 32 floats, at the beginning of shared memory; barriers behind room for four of them.
constexpr u32 TILE = 16 * 128, ROOM = 4 * TILE;
DEVICE u32 tile(int i) { return at_shared(shared) + i * TILE; }
DEVICE u32 bar(int i) { return at_shared(shared) + ROOM + 8 * i; }
DEVICE void ready(int bars, u32 arrivals) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < bars; i++) begin(bar(i), arrivals);
    fence_begun();
  }
  __syncthreads();
}
DEVICE void fill(const Map* map, int i, int row) {
  arrive_expect(bar(i), TILE);
  copy2(tile(i), map, 0, row, bar(i));
}
// Each thread reads what another warp's reads too.
DEVICE float add(int i) {
  const float* at = (const float*)(shared + i * TILE);
  float sum = 0;
  for (int j = 0; j < 512; j += 32) sum += at[j + threadIdx.x % 32];
  return sum;
}
#define KERNEL(name) extern "C" __global__ void name(const __grid_constant__ Map map, float* out)

KERNEL(read_before_phase) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  IF_BROKEN(__syncthreads();)
  IF_RIGHT(wait_phase(bar(0), 0);)
  out[threadIdx.x] = add(0);
  IF_BROKEN(wait_phase(bar(0), 0);)
}
KERNEL(waited_by_one) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    fill(&map, 0, 0);
    wait_phase(bar(0), 0);
  }
  IF_RIGHT(__syncthreads();)
  out[threadIdx.x] = add(0);
}
KERNEL(waited_relaxed) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  asm volatile("{\n.reg .pred p;\nAGAIN%=:\n" IF_BROKEN("mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64") IF_RIGHT("mbarrier.try_wait.parity.acquire.cta.shared::cta.b64") " p, [%0], 0;\n@!p bra AGAIN%=;\n}" ::"r"(bar(0)) : "memory");
  out[threadIdx.x] = add(0);
}
KERNEL(overwritten_by_copy) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  float sum = 0;
  for (int i = 0; i < 3; i++) {
    wait_phase(bar(0), i & 1);
    sum += add(0);
    IF_RIGHT(__syncthreads();)
    if (threadIdx.x == 0 && i < 2) fill(&map, 0, 16);
  }
  out[threadIdx.x] = sum;
}
// A barrier in the first round only.
KERNEL(overwritten_later) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  float sum = 0;
  for (int i = 0; i < 3; i++) {
    wait_phase(bar(0), i & 1);
    sum += add(0);
    IF_BROKEN(if (i == 0))
    __syncthreads();
    if (threadIdx.x == 0 && i < 2) fill(&map, 0, 16);
  }
  out[threadIdx.x] = sum;
}
KERNEL(overwritten_by_thread) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  wait_phase(bar(0), 0);
  out[threadIdx.x] = add(0);
  IF_RIGHT(__syncthreads();)
  *(volatile float*)(shared + threadIdx.x * 4) = 1;
}
KERNEL(written_while_it_comes) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  IF_RIGHT(wait_phase(bar(0), 0);)
  *(volatile float*)(shared + threadIdx.x * 4) = 1;
  IF_BROKEN(wait_phase(bar(0), 0);)
}
KERNEL(no_proxy_fence) {
  ready(1, 1);
  ((float*)shared)[threadIdx.x] = 1;
  IF_RIGHT(fence_proxy();)
  __syncthreads();
  if (threadIdx.x == 0) fill(&map, 0, 0);
  wait_phase(bar(0), 0);
  out[threadIdx.x] = add(0);
}
KERNEL(not_initialized) {
  IF_RIGHT(ready(1, 1);)
  if (threadIdx.x == 0) fill(&map, 0, 0);
  wait_phase(bar(0), 0);
}
KERNEL(initialized_without_fence) {
  if (threadIdx.x == 0) {
    begin(bar(0), 1);
    IF_RIGHT(fence_begun();)
  }
  __syncthreads();
  if (threadIdx.x == 0) fill(&map, 0, 0);
  wait_phase(bar(0), 0);
}
KERNEL(initialized_without_barrier) {
  if (threadIdx.x == 0) {
    begin(bar(0), 1);
    fence_begun();
    fill(&map, 0, 0);
  }
  IF_RIGHT(__syncthreads();)
  wait_phase(bar(0), 0);
}
KERNEL(initialized_twice) {
  ready(1, 1);
  IF_RIGHT(if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar(0)) : "memory");)
  ready(1, 1);
}
KERNEL(one_parity) {
  ready(1, 1);
  float sum = 0;
  for (int i = 0; i < 3; i++) {
    if (threadIdx.x == 0) fill(&map, 0, 0);
    wait_phase(bar(0), IF_BROKEN(0) IF_RIGHT(i & 1));
    sum += add(0);
    __syncthreads();
  }
  out[threadIdx.x] = sum;
}
// The second warp looks at a phase when another is complete, and nothing tells it of either.
KERNEL(two_behind) {
  volatile int* flag = (volatile int*)(shared + ROOM + 16);
  if (threadIdx.x == 0) *flag = 0;
  ready(1, 1);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; i++) {
      fill(&map, 0, 0);
      wait_phase(bar(0), i);
    }
    IF_RIGHT(__threadfence_block();)
    *flag = 1;
  }
  if (threadIdx.x >= 32) {
    while (*flag == 0) {}
    IF_RIGHT(__threadfence_block();)
    wait_phase(bar(0), 1);
  }
}
KERNEL(expected_too_late) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    IF_BROKEN(arrive(bar(0));)
    copy2(tile(0), &map, 0, 0, bar(0));
    expect(bar(0), TILE);
    IF_RIGHT(arrive(bar(0));)
  }
  wait_phase(bar(0), 0);
  out[threadIdx.x] = add(0);
}
KERNEL(expected_too_much) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar(0), TILE IF_BROKEN(+16));
    copy2(tile(0), &map, 0, 0, bar(0));
  }
  wait_phase(bar(0), 0);
}
KERNEL(expected_too_little) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar(0), TILE IF_BROKEN(-16));
    copy2(tile(0), &map, 0, 0, bar(0));
  }
  wait_phase(bar(0), 0);
}
KERNEL(too_few_arrive) {
  ready(1, 2);
  if (threadIdx.x < IF_BROKEN(1) IF_RIGHT(2)) arrive(bar(0));
  wait_phase(bar(0), 0);
}
KERNEL(too_many_arrive) {
  ready(1, 64);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(bar(0)), "r"(IF_BROKEN(3) IF_RIGHT(1)) : "memory");
  wait_phase(bar(0), 0);
}
KERNEL(arrives_unaware) {
  ready(1, 64);
  arrive(bar(0));
  IF_RIGHT(wait_phase(bar(0), 0);)
  arrive(bar(0));
  wait_phase(bar(0), 1);
}
KERNEL(misaligned) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar(0), TILE);
    copy2(tile(0) IF_BROKEN(+64), &map, 0, 0, bar(0));
  }
  wait_phase(bar(0), 0);
}
KERNEL(past_the_end) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar(0), TILE);
    copy2(tile(IF_BROKEN(4) IF_RIGHT(3)), &map, 0, 0, bar(0));
  }
  wait_phase(bar(0), 0);
}
KERNEL(nobody_waits) {
  ready(1, 1);
  if (threadIdx.x == 0) fill(&map, 0, 0);
  IF_RIGHT(wait_phase(bar(0), 0);)
}
KERNEL(barrier_overwritten) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    IF_BROKEN(*(volatile float*)(shared + ROOM) = 1;)
    fill(&map, 0, 0);
  }
  wait_phase(bar(0), 0);
}
KERNEL(two_dimensions) {
  ready(1, 1);
  if (threadIdx.x == 0) {
    arrive_expect(bar(0), TILE);
    IF_BROKEN(copy3(tile(0), &map, 0, 0, 0, bar(0));)
    IF_RIGHT(copy2(tile(0), &map, 0, 0, bar(0));)
  }
  IF_RIGHT(wait_phase(bar(0), 0);)
}
DEVICE void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> DEVICE void wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// Rows of 128 bytes that are permuted, as copies of tiles put them there.
DEVICE u64 descriptor(u32 at, u32 leading) { return (u64)((at & 0x3ffff) >> 4) | (u64)(leading >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62; }
struct Bf64 {
  static DEVICE void mul(float* d, u64 a, u64 b, int adds) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;}"
                 : "+f"(d[0]),"+f"(d[1]),"+f"(d[2]),"+f"(d[3]),"+f"(d[4]),"+f"(d[5]),"+f"(d[6]),"+f"(d[7]),"+f"(d[8]),"+f"(d[9]),"+f"(d[10]),"+f"(d[11]),"+f"(d[12]),"+f"(d[13]),"+f"(d[14]),"+f"(d[15]),"+f"(d[16]),"+f"(d[17]),"+f"(d[18]),"+f"(d[19]),"+f"(d[20]),"+f"(d[21]),"+f"(d[22]),"+f"(d[23]),"+f"(d[24]),"+f"(d[25]),"+f"(d[26]),"+f"(d[27]),"+f"(d[28]),"+f"(d[29]),"+f"(d[30]),"+f"(d[31]) : "l"(a),"l"(b),"r"(adds));
  }
};
// A tile of 64 rows of 64 numbers of 16 bits, times itself, while the next one comes.
DEVICE void fill_all(const Map* map) {
  arrive_expect(bar(0), ROOM);
  copy2(tile(0), map, 0, 0, bar(0));
}
KERNEL(product_under_way) {
  ready(1, 1);
  if (threadIdx.x == 0) fill_all(&map);
  float d[32];
  for (int i = 0; i < 2; i++) {
    wait_phase(bar(0), i);
    fence();
    Bf64::mul(d, descriptor(tile(0), 16), descriptor(tile(0), 16), i);
    commit();
    IF_RIGHT(wait<0>();)
    __syncthreads();
    if (threadIdx.x == 0 && i == 0) fill_all(&map);
    IF_BROKEN(wait<0>();)
  }
  out[threadIdx.x] = d[0];
}
KERNEL(product_before_phase) {
  ready(1, 1);
  if (threadIdx.x == 0) fill_all(&map);
  float d[32];
  IF_RIGHT(wait_phase(bar(0), 0);)
  fence();
  Bf64::mul(d, descriptor(tile(0), 16), descriptor(tile(0), 16), 0);
  commit();
  wait<0>();
  IF_BROKEN(wait_phase(bar(0), 0);)
  out[threadIdx.x] = d[0];
}
// The first thread asks for tiles; the other warps say when they have read one, all or but the last of them.
KERNEL(freed_too_early) {
  if (threadIdx.x == 0) {
    begin(bar(0), 1);
    begin(bar(1), 3 IF_BROKEN(-1));
    fence_begun();
  }
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 0; i < 3; i++) {
      wait_phase(bar(1), i + 1 & 1);
      fill(&map, 0, 0);
    }
  if (threadIdx.x < 32) return;
  float sum = 0;
  for (int i = 0; i < 3; i++) {
    wait_phase(bar(0), i & 1);
    sum += add(0);
    __syncwarp();
    if (threadIdx.x % 32 == 0 IF_BROKEN(&& threadIdx.x < 96)) arrive(bar(1));
  }
  out[threadIdx.x] = sum;
}
// Its waits are long, and their thread no other's: nothing is wrong with that.
KERNEL(long_wait) {
  ready(2, 1);
  if (threadIdx.x == 0) {
    wait_phase(bar(1), 0);
    fill(&map, 0, 0);
  }
  if (threadIdx.x == 32) {
    float x = 1;
    for (int i = 0; i < 20000; i++) {
      x = x * 0.5f + 1;
      if (i % 100 == 0) ((volatile float*)out)[0] = x;
    }
    IF_RIGHT(arrive(bar(1));)
  }
  wait_phase(bar(0), 0);
}
