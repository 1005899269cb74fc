/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's driver library: found, or not. */
#include "providers/cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#define STR2(x) #x
#define STR(x) STR2(x) /* after cuda.h's own macros */
#define LOAD(f)                                            \
	do {                                               \
		*(void **)&drv.p_##f = dlsym(lib, STR(f)); \
		if (!drv.p_##f)                            \
			missing = true;                    \
	} while (0);

struct cuda_driver drv;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void drv_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	bool missing = false;

	if (!lib)
		return;
	CUDA_FUNCTIONS(LOAD)
	if (missing || drv.p_cuInit(0) != CUDA_SUCCESS ||
	    drv.p_cuDeviceGetCount(&drv.n_devices) != CUDA_SUCCESS)
		return;
	drv.loaded = true;
}

int cuda_load(void)
{
	pthread_once(&once, drv_load);
	return drv.loaded ? drv.n_devices : -ENODEV;
}

int cuda_error(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
		return -ENODEV;
	default:
		return -EIO;
	}
}
