/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the capture engine share: the engine, its captures, and the
 * copies in flight. capture.c is the public face, mover.c the threads.
 *
 *	NEW → SUBMITTED → captured → complete
 *	          ↘ failed (error): ended when nobody works on it any more
 *
 * One lock for all (struct ckpt). It is not held over a provider's calls, I/O,
 * or waiting for a device.
 */
#ifndef CKPT_PROVIDERS_CAPTURE_H
#define CKPT_PROVIDERS_CAPTURE_H

#include <stdbool.h>
#include <sys/queue.h>

#include "providers/clock.h"
#include "providers/composite.h"
#include "providers/pool.h"
#include "providers/target.h"

#define N_IN_FLIGHT 16 /* device copies at once */
#define N_MOVERS 6

struct ckpt_capture {
	TAILQ_ENTRY(ckpt_capture) link; /* of ck->captures */
	struct ckpt *ck;
	char *path;
	struct ckpt_provider *root;
	pthread_mutex_t opening; /* target_open() runs once */
	struct target target;

	/* guarded by ck->lock, all below */
	bool placed; /* its submission has begun: nothing can be added */
	bool submitted, opened;
	bool kind_done[CKPT_KINDS];
	unsigned busy;      /* movers that are at it */
	unsigned in_flight; /* device copies that have not arrived */
	unsigned unwritten; /* that arrived, but are not in the file */
	bool has_check;     /* a provider's check() comes before captured */
	bool has_device;    /* perhaps */
	bool naming;        /* its file gets its name: too late to cancel */
	bool captured;      /* the state may change */
	bool ended;         /* complete or failed; providers are released */
	bool complete;
	bool held; /* the user has not freed it */
	bool told; /* its error was returned to somebody */
	int error; /* the first */
	char text[640];
	uint64_t known_len;
	struct ckpt_stats stats;
};

/* A device copy: from copy() until its bytes are in the file. */
struct copy {
	STAILQ_ENTRY(copy) next; /* ck->arrived */
	struct ckpt_capture *cap;
	struct placed_chunk at;
	void *dst;
	void *buffer; /* of the pool, dst lies in it; NULL: in the file */
	int err;
};

struct ckpt {
	struct ckpt_options options; /* immutable, all set */
	pid_t pid;
	struct pool *pool;
	TAILQ_ENTRY(ckpt) link; /* of all engines of the process */
	bool closing;           /* by a thread; guarded by the list's lock */

	pthread_mutex_t lock;
	pthread_cond_t work;    /* for movers */
	pthread_cond_t changed; /* for users */
	/* All that are held, are not ended, or failed and nobody was told; the
	 * submitted ones in the order of their submission, at the end. */
	TAILQ_HEAD(, ckpt_capture) captures;
	STAILQ_HEAD(, copy) arrived;
	bool stopping;
	pthread_t movers[N_MOVERS];
	unsigned n_movers;
};

/* mover.c */
MUST_CHECK int movers_start(struct ckpt *ck);
void movers_stop(struct ckpt *ck);

/* capture_fail.c */
/* Notes the first error, in words; wakes who must know. */
void capture_fail_locked(struct ckpt_capture *cap, int err, const char *what);

/* capture.c */
/* Out of the list, and gone. It has ended, or was never submitted. */
void capture_destroy(struct ckpt_capture *cap);

#endif
