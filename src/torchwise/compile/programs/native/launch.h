// The start of a kernel on a GPU, by functions of NVIDIA's driver. Python finds their addresses and the kernel's.
#pragma once
#include <cstdint>

static const int MOST = 256;  // tensors of a region, which the generator keeps

// As in cuda.h, which a machine that only runs kernels may lack: CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  int id;
  alignas(8) unsigned value[16];
};
struct LaunchConfig {
  unsigned grid[3], block[3], shared;
  void* stream;
  LaunchAttribute* attributes;
  unsigned count;
};
static const int CLUSTER_DIMENSION = 4, CLUSTER_SCHEDULING = 5, SPREAD = 1;

struct Launch {
  int (*start)(const LaunchConfig*, void* function, void** parameters, void** extra);  // cuLaunchKernelEx
  int (*get_context)(void** context);                                                  // cuCtxGetCurrent
  int (*get_capture)(void* stream, int* status);                                       // cuStreamIsCapturing
  void *function, *context;
  unsigned programs, threads, shared, cluster;
  uintptr_t masks[MOST];  // bits of each input's address that must be zero, as the code relies on it
  void* constants[MOST];  // tensors that are the same in all calls, and which the region keeps
  int number_of_constants;

  // The memory of a GPU is that of a context, and a thread may have made another device's the current one.
  bool is_possible() const {
    void* current = nullptr;
    return get_context(&current) == 0 && current == context;
  }

  // The driver refuses to tell it of some streams while another one is captured.
  bool is_captured(void* stream) const {
    int status = 0;
    return get_capture(stream, &status) != 0 || status != 0;
  }

  // Start the kernel on its inputs and outputs, the constants, and then a seed and memory for its programs to share, if
  // it has them. Return the driver's error.
  int run(void** pointers, int count, void* seed, void* work, void* stream) const {
    void *values[MOST + 4], *parameters[MOST + 4];
    for (int place = 0; place < count; ++place) values[place] = pointers[place];
    for (int place = 0; place < number_of_constants; ++place) values[count++] = constants[place];
    if (seed) values[count++] = seed;
    if (work) values[count++] = work;
    values[count++] = nullptr;  // Triton's memory for itself, which such a kernel does not use
    values[count++] = nullptr;
    for (int place = 0; place < count; ++place) parameters[place] = values + place;
    LaunchAttribute attributes[2] = {{CLUSTER_DIMENSION, {cluster, 1, 1}}, {CLUSTER_SCHEDULING, {SPREAD}}};
    LaunchConfig config = {{programs * cluster, 1, 1}, {threads, 1, 1}, shared, stream, attributes,
                           cluster > 1 ? 2u : 0u};
    return start(&config, function, parameters, nullptr);
  }
};
