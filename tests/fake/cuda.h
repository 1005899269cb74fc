/* SPDX-License-Identifier: Apache-2.0 */
/* How the test sees and steers the imitated driver. */
#ifndef CKPT_TESTS_FAKE_CUDA_H
#define CKPT_TESTS_FAKE_CUDA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct fake_cuda {
	bool fail_register, fail_sync;
	/* The n-th such call from now fails; 0: none. */
	atomic_int fail_copy, fail_push, fail_record;
	/* While set, recording in the caller's stream, or what is on ours,
	 * takes. */
	atomic_bool hold_record, hold_copies;
	atomic_int n_held; /* who is held up now */
	int n_registered;  /* now */
	int n_copies;
	atomic_int n_syncs; /* entered */
};
extern struct fake_cuda fake_cuda;

/* "Device memory" (readable, so that the test can fill it). */
void *fake_cuda_alloc(size_t len);

#endif
