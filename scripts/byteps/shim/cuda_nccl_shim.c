// CUDA and NCCL for BytePS on a host without a GPU. "Device" memory is host memory, and everything is done when the
// call returns, so streams and events have nothing to wait for. One process per communicator: BytePS is then started
// with BYTEPS_PCIE_SWITCH_SIZE=1 and reduces over the processes of a host itself. A larger communicator is refused.
#include <cuda_runtime.h>
#include <nccl.h>
#include <string.h>

// A handle must differ from NULL; nothing is behind it.
static char handle;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument (CUDA shim of byteps_thc)";
}

cudaError_t cudaSetDevice(int device) { return device < 0 ? cudaErrorInvalidValue : cudaSuccess; }

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  (void)flags;
  *stream = (cudaStream_t)&handle;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  (void)priority;
  return cudaStreamCreateWithFlags(stream, flags);
}

static cudaError_t check_handle(const void* object) { return object == &handle ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return check_handle(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return check_handle(stream); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  *event = (cudaEvent_t)&handle;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  return check_handle(event);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return check_handle(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return check_handle(event); }

cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned flags) {
  (void)bytes, (void)flags;
  return address ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostUnregister(void* address) { return address ? cudaSuccess : cudaErrorInvalidValue; }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  (void)flags;
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  (void)kind;
  memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error"
                               : "the NCCL shim of byteps_thc joins no processes: set BYTEPS_PCIE_SWITCH_SIZE=1";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  (void)id, (void)rank;
  *comm = (ncclComm_t)&handle;
  return ranks == 1 ? ncclSuccess : ncclInvalidUsage;
}

ncclResult_t ncclGroupStart(void) { return ncclSuccess; }
ncclResult_t ncclGroupEnd(void) { return ncclSuccess; }

// BytePS calls these for communicators of several processes only, and ncclCommInitRank has refused those.
ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  (void)send, (void)receive, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclInvalidUsage;
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  (void)root;
  return ncclReduceScatter(send, receive, count, type, op, comm, stream);
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return ncclReduceScatter(send, receive, count, type, ncclSum, comm, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  (void)root;
  return ncclReduceScatter(send, receive, count, type, ncclSum, comm, stream);
}
