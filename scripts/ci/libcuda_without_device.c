// Stands in for NVIDIA's driver where there is none, so that CUDA kernels are compiled up to PTX and loaded: every call succeeds, device memory
// is the host's, and no kernel runs. Each module is written to $CUDA_KERNELS/NNNN.ptx. The device is of compute capability 9.0.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Pointer;

static int handle;
static atomic_int modules;

#define SUCCEEDS(name) \
    int name(void) { return 0; }

#define GIVES_A_HANDLE(name) \
    int name(void **out) { \
        *out = &handle; \
        return 0; \
    }

SUCCEEDS(cuInit)
SUCCEEDS(cuCtxSetCurrent)
SUCCEEDS(cuCtxSynchronize)
SUCCEEDS(cuDevicePrimaryCtxRelease_v2)
SUCCEEDS(cuEventDestroy_v2)
SUCCEEDS(cuEventQuery)
SUCCEEDS(cuEventRecord)
SUCCEEDS(cuEventSynchronize)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuLaunchKernel)
SUCCEEDS(cuLaunchKernelEx)
SUCCEEDS(cuMemcpy2DAsync_v2)
SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuStreamDestroy_v2)
SUCCEEDS(cuStreamQuery)
SUCCEEDS(cuStreamSynchronize)
SUCCEEDS(cuStreamWaitEvent)

GIVES_A_HANDLE(cuCtxGetCurrent)
GIVES_A_HANDLE(cuDevicePrimaryCtxRetain)
GIVES_A_HANDLE(cuEventCreate)
GIVES_A_HANDLE(cuModuleGetFunction)
GIVES_A_HANDLE(cuStreamCreate)
GIVES_A_HANDLE(cuStreamCreateWithPriority)

int cuDriverGetVersion(int *version) {
    *version = 12080;
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return 0;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, size, "no device");
    return 0;
}

int cuDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, size, "0000:00:00.0");
    return 0;
}

int cuDeviceGetUuid_v2(char *uuid, int device) {
    memset(uuid, 0, 16);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = 8ull << 30;
    return 0;
}

int cuMemGetInfo_v2(size_t *available, size_t *all) {
    *available = *all = 8ull << 30;
    return 0;
}

// Numbers are those of CUdevice_attribute.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 1: *value = 1024; break;         // threads of a block
    case 2: case 3: *value = 1024; break; // sides of a block
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break; // sides of a grid
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break; // shared memory of a block
    case 10: *value = 32; break;   // threads of a warp
    case 16: *value = 132; break;  // multiprocessors
    case 75: *value = 9; break;    // compute capability
    case 76: *value = 0; break;
    case 97: *value = 232448; break; // shared memory of a block that asks for it
    default: *value = 0;
    }
    return 0;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return 0;
}

int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    *milliseconds = 1;
    return 0;
}

int cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return cuEventElapsedTime(milliseconds, from, to); }

int cuModuleLoadData(void **module, const char *ptx) {
    const char *folder = getenv("CUDA_KERNELS");
    if (folder) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%04d.ptx", folder, atomic_fetch_add(&modules, 1));
        FILE *file = fopen(path, "w");
        if (!file || fputs(ptx, file) < 0 || fclose(file)) {
            perror(path);
            return 1;
        }
    }
    *module = &handle;
    return 0;
}

static int allocate(void **memory, size_t bytes) {
    *memory = calloc(1, bytes ? bytes : 1);
    return *memory ? 0 : 2;
}

int cuMemAlloc_v2(Pointer *memory, size_t bytes) { return allocate((void **)memory, bytes); }
int cuMemAllocAsync(Pointer *memory, size_t bytes, void *stream) { return allocate((void **)memory, bytes); }
int cuMemAllocHost_v2(void **memory, size_t bytes) { return allocate(memory, bytes); }

int cuMemFree_v2(Pointer memory) {
    free((void *)memory);
    return 0;
}

int cuMemFreeAsync(Pointer memory, void *stream) { return cuMemFree_v2(memory); }
int cuMemFreeHost(void *memory) { return cuMemFree_v2((Pointer)memory); }

int cuMemcpyHtoDAsync_v2(Pointer to, const void *from, size_t bytes, void *stream) {
    memcpy((void *)to, from, bytes);
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, Pointer from, size_t bytes, void *stream) {
    memcpy(to, (void *)from, bytes);
    return 0;
}

int cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t bytes, void *stream) {
    memcpy((void *)to, (void *)from, bytes);
    return 0;
}

int cuMemsetD8Async(Pointer to, unsigned char value, size_t bytes, void *stream) {
    memset((void *)to, value, bytes);
    return 0;
}
