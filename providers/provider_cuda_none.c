/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of provider_cuda.c in a build without the CUDA Toolkit.
 */
#include <errno.h>

#include "providers/ckpt.h"

int ckpt_cuda(const void *device_bytes, size_t len, int device, void *stream,
	      struct ckpt_provider **out)
{
	(void)device_bytes;
	(void)len;
	(void)device;
	(void)stream;
	(void)out;
	return -EOPNOTSUPP;
}
