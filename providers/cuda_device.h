/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device as the providers of its memory share it: one stream of ours,
 * one thread that waits for it, pinned buffers that are kept. Lives as long as
 * the process. Internal.
 */
#ifndef CKPT_PROVIDERS_CUDA_DEVICE_H
#define CKPT_PROVIDERS_CUDA_DEVICE_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "providers/ckpt.h"
#include "providers/cuda_driver.h"

#define PAGE ((uintptr_t)4096)
#define BOUNCE_LEN ((size_t)8 << 20)

/* Pinned buffers of one length, made when first wanted, then kept. */
struct bounce {
	SLIST_ENTRY(bounce) next;
	struct bounces *of;
	void *buf;
};

struct bounces {
	size_t len;                /* of each; immutable */
	unsigned n_max;            /* immutable */
	SLIST_HEAD(, bounce) idle; /* guarded by the device's lock */
	unsigned n_made;           /* the same */
};

/* One piece of a copy that does not go straight to its place. */
struct detour {
	struct bounce *by; /* NULL: none */
	void *dst;
	size_t len;
};

struct op {
	STAILQ_ENTRY(op) next;
	ckpt_copied *done;
	void *arg;
	void *pinned; /* what was registered, or NULL */
	struct detour detour[2];
	bool started; /* the stream may hold some of it */
	int err;      /* why not all of it was queued */
};

STAILQ_HEAD(op_queue, op);

/* Made when first wanted, then kept. */
struct batch {
	STAILQ_ENTRY(batch) next;
	struct op_queue ops;
	CUevent event;
	int err; /* of recording the event */
};

STAILQ_HEAD(batch_queue, batch);

struct device {
	CUcontext ctx;
	CUstream stream;
	pthread_t thread;

	pthread_mutex_t order; /* alone, and over these CUDA calls only: what
				  was recorded is what is waited for */
	CUevent before; /* behind what the caller's stream has to do; guarded
			   by order */

	pthread_mutex_t lock;
	pthread_cond_t work;     /* a batch was queued */
	pthread_cond_t returned; /* a bounce buffer came back */
	struct batch *filling;   /* not kicked, or NULL; guarded by lock, as
				    below */
	struct batch_queue batches, idle;
	struct bounces chunks, lines;
};

/* -ENODEV: there is none of that number. */
MUST_CHECK int cuda_device_get(int number, struct device **out);

/* An empty batch, the caller's. The context is current. */
MUST_CHECK int cuda_batch_get(struct device *d, struct batch **out);
void cuda_batch_put(struct device *d, struct batch *b);
/* op to what will be kicked next. The batch goes: it is that one, or put
 * back. */
void cuda_batch_add(struct device *d, struct op *op, struct batch *batch);
/* The context is current, or err says why not. Whatever fails here, each copy
 * of the batch is told, by the thread. */
void cuda_kick_batch(struct device *d, int err);

/* What is queued may hold the last buffers: it is kicked, then waited for. The
 * context is current. -ENOMEM. */
MUST_CHECK int cuda_take_bounce(struct device *d, struct bounces *of,
				struct bounce **out);

#endif
