/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starting a thread of the engine: all signals blocked (they are for the
 * thread that waits for them), a name that top -H shows, a small stack.
 */
#ifndef CKPT_ENGINE_THREAD_H
#define CKPT_ENGINE_THREAD_H

#include "metadata/compiler.h"

/* name: at most 15 bytes. -EAGAIN: no resources. Join it. */
MUST_CHECK int thread_start(pthread_t *out, const char *name,
			    void *(*run)(void *arg), void *arg);
/*
 * Lower the calling thread's priority, for work that may wait: nice 5 still
 * gets a quarter of a contended core.
 */
void thread_lower_priority(void);
/* A condition whose timed waits are by CLOCK_MONOTONIC. */
void condition_init(pthread_cond_t *cond);

#endif
