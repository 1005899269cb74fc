/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of the capture side, CLOCK_MONOTONIC, which its condition variables
 * also wait by.
 */
#ifndef CKPT_PROVIDERS_CLOCK_H
#define CKPT_PROVIDERS_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t capture_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

/* As the system wants it. */
static inline struct timespec capture_timespec(int64_t ns)
{
	return (struct timespec){ ns / 1000000000, ns % 1000000000 };
}

#endif
