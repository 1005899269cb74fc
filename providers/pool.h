/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The staging pool: buffers of one chunk each, for what cannot be copied
 * straight into its file. Bounded in this process by its length, and in all
 * processes of this user on this node together by a budget: the pool grows by
 * shares of SHARE_LEN, each a byte of a file in /dev/shm that it has locked,
 * so that a share comes back by itself when its process dies. A process with
 * one share goes on by itself, so nobody waits in a circle. Where that file is
 * another user's, or none can be made, there is no budget.
 *
 * Memory is kept while anything is captured and given back by pool_rest().
 * Threads: any.
 */
#ifndef CKPT_PROVIDERS_POOL_H
#define CKPT_PROVIDERS_POOL_H

#include "providers/compiler.h"

struct pool;

/* So much more than a chunk is in a buffer, for a place within a page that is
 * that of the file: a page. */
static inline size_t pool_slack(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* chunk_len: of a buffer, less its slack; len: most bytes, with it; budget_len:
 * see above.
 * -ENOMEM */
MUST_CHECK int pool_new(size_t chunk_len, size_t len, uint64_t budget_len,
			struct pool **out);
void pool_free(struct pool *p); /* NULL allowed; all buffers are back */

/*
 * One buffer, page-aligned, the caller's until pool_put().
 *
 *   -EAGAIN  none came free within timeout_ms
 *   -ENOMEM  none could be made, and none is in use that could come free
 */
MUST_CHECK int pool_take(struct pool *p, int timeout_ms, void **out);
void pool_put(struct pool *p, void *buf);

/* Nothing is captured now: memory and shares go back. */
void pool_rest(struct pool *p);

/* The most bytes that were in use at once since the last call. */
uint64_t pool_peak(struct pool *p);

/* In a forked child: the parent's shares are not this process's. */
void pool_forget(struct pool *p);

#endif
