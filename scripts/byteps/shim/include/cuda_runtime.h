// The part of the CUDA runtime that BytePS calls, with host-memory semantics (cuda_nccl_shim.c). For hosts without a
// GPU.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// A caller prints cudaGetErrorString(error) and stops unless error is one of the first two.
typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorCudartUnloading = 4,
  cudaErrorInvalidValue = 1,
  cudaErrorNotReady = 600,
} cudaError_t;

typedef enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
} cudaMemcpyKind;

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;

enum { cudaStreamNonBlocking = 1 };
enum { cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterMapped = 2 };

const char* cudaGetErrorString(cudaError_t error);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void* address);
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
