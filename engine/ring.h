/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes in flight: a bounded number of tier_io at a time, by io_uring or by
 * threads. A ring finishes what a write left undone (short writes, EINTR,
 * EAGAIN) itself: done() sees all of it written, or an error.
 *
 * Threads: write() from any; done() runs on a thread of the ring and must not
 * call write() (it would wait for itself).
 */
#ifndef CKPT_ENGINE_RING_H
#define CKPT_ENGINE_RING_H

#include "engine/tier.h"

#define RING_DEPTH 16 /* of one tier: 64 MiB in chunks */

struct ring;

struct ring_ops {
	const char *name; /* as the status shows it */

	/*
	 * why: one line, written where it fails.
	 *   -errno  the kernel, or this build, does not let us
	 */
	int (*open)(unsigned depth, struct ring **out, char *why,
		    size_t why_len);
	/* As tier_ops.write. -errno: could not be started. */
	int (*write)(struct ring *r, struct tier_io *io);
	/* Waits for what is in flight, then frees r. */
	void (*close)(struct ring *r);
};

struct ring {
	const struct ring_ops *ops;
};

extern const struct ring_ops ring_uring_ops; /* ring_uring.c, or _none.c */
extern const struct ring_ops ring_threads_ops;

/*
 * The best that works here. io: for tier.io, which kind, and why not the
 * better one.
 */
MUST_CHECK int ring_open(unsigned depth, struct ring **out, char *io,
			 size_t io_len);

/* ---- for the two kinds: how far one write has come ---- */

struct ring_step {
	struct tier_io *io;
	size_t done;    /* bytes written, a multiple of 4096 */
	unsigned stuck; /* attempts since the last progress */
};

void ring_step_init(struct ring_step *s, struct tier_io *io);
/* Bytes that the next attempt is to write, from io->buf + done. */
size_t ring_step_len(const struct ring_step *s);
/*
 * Takes the result of an attempt (bytes or -errno). true: it is over and
 * io->res is set; false: try again.
 */
bool ring_step_over(struct ring_step *s, ssize_t res);

#endif
