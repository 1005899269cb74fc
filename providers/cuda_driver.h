/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door to CUDA's driver library, which is loaded at run time (dlopen), so
 * the same libckpt runs where there is no GPU. Symbols have the names that
 * cuda.h gives them (_v2 and so on). Internal.
 */
#ifndef CKPT_PROVIDERS_CUDA_DRIVER_H
#define CKPT_PROVIDERS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>

#include "providers/compiler.h"

#define CUDA_FUNCTIONS(F)           \
	F(cuInit)                   \
	F(cuDeviceGet)              \
	F(cuDeviceGetCount)         \
	F(cuDevicePrimaryCtxRetain) \
	F(cuCtxPushCurrent)         \
	F(cuCtxPopCurrent)          \
	F(cuStreamCreate)           \
	F(cuStreamSynchronize)      \
	F(cuStreamWaitEvent)        \
	F(cuEventCreate)            \
	F(cuEventRecord)            \
	F(cuEventSynchronize)       \
	F(cuMemcpyDtoHAsync)        \
	F(cuMemHostAlloc)           \
	F(cuMemHostRegister)        \
	F(cuMemHostUnregister)      \
	F(cuPointerGetAttribute)

#define CUDA_DECLARE(f) __typeof__(&f) p_##f;

/* The process's. Set by the first cuda_load(), then immutable. */
struct cuda_driver {
	CUDA_FUNCTIONS(CUDA_DECLARE)
	bool loaded;
	int n_devices;
};
extern struct cuda_driver drv;

/* How many devices there are. -ENODEV: no driver, or one that lacks what we
 * call. Any thread, any number of times. */
MUST_CHECK int cuda_load(void);
/* 0, -ENOMEM, -EINVAL, -ENODEV, -EIO. */
MUST_CHECK int cuda_error(CUresult r);

#endif
