/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring by io_uring: whoever writes submits, one reaper thread waits for
 * completions, submits again what came back short, and calls done().
 *
 * Two locks, never held together. `lock` guards the slots; it also hands a
 * write over from submitter to reaper (the kernel's own hand-over is invisible
 * to C11 and to TSan). `sq_lock` lets one thread at a time fill the submission
 * queue; it is held while the kernel starts a write, not while that runs.
 * An entry is submitted before sq_lock is given back, so the queue, which is
 * as deep as there are slots, always has a free entry.
 */
#include <errno.h>
#include <liburing.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "engine/ring.h"
#include "engine/thread.h"

#define SUBMIT_TRIES 1000

struct slot {
	struct ring_step step;
	struct slot *next;
};

/* What one entry of the queue says; copied out of the slot under lock. */
struct attempt {
	struct slot *slot; /* NULL: wakes the reaper to end */
	const char *buf;
	size_t len;
	uint64_t off;
	int fd;
	bool wait; /* let a kernel worker wait, not the submitter */
};

struct ring_uring {
	struct ring base;
	struct io_uring uring;
	struct mutex sq_lock;
	struct mutex lock;
	pthread_cond_t freed;
	struct slot *free;  /* guarded by lock */
	unsigned in_flight; /* guarded by lock */
	pthread_t reaper;
	struct slot stop; /* its address tells the reaper to end */
	struct slot slots[];
};

/*
 * Starts what the entry says. An entry that the kernel would not take must not
 * stay behind for the next submit: it becomes a no-op that nobody waits for.
 */
static int submit_entry(struct ring_uring *r, struct io_uring_sqe *sqe)
	MUST_HOLD(r->sq_lock);
static int submit_entry(struct ring_uring *r, struct io_uring_sqe *sqe)
{
	int rc = 0;

	for (int tries = 0; tries < SUBMIT_TRIES; tries++) {
		rc = io_uring_submit(&r->uring);
		if (!io_uring_sq_ready(&r->uring))
			return 0;
		if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
			break;
		sched_yield();
	}
	io_uring_prep_nop(sqe);
	io_uring_sqe_set_data(sqe, NULL);
	return rc < 0 ? rc : -EAGAIN;
}

static int submit_locked(struct ring_uring *r, const struct attempt *a)
	MUST_HOLD(r->sq_lock);
static int submit_locked(struct ring_uring *r, const struct attempt *a)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);

	if (!sqe)
		return -EAGAIN;
	if (a->slot) {
		io_uring_prep_write(sqe, a->fd, a->buf, (unsigned)a->len,
				    a->off);
		io_uring_sqe_set_flags(sqe, a->wait ? IOSQE_ASYNC : 0);
		io_uring_sqe_set_data(sqe, a->slot);
	} else {
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, &r->stop);
	}
	return submit_entry(r, sqe);
}

static int submit(struct ring_uring *r, const struct attempt *a)
{
	int rc;

	mutex_lock(&r->sq_lock);
	rc = submit_locked(r, a);
	mutex_unlock(&r->sq_lock);
	return rc;
}

static struct attempt attempt_locked(struct ring_uring *r, struct slot *s)
	MUST_HOLD(r->lock);
static struct attempt attempt_locked(struct ring_uring *r, struct slot *s)
{
	const struct ring_step *step = &s->step;

	(void)r;
	return (struct attempt){
		.slot = s,
		.buf = (const char *)step->io->buf + step->done,
		.len = ring_step_len(step),
		.off = step->io->off + step->done,
		.fd = step->io->fd,
		.wait = step->stuck,
	};
}

static struct attempt slot_take(struct ring_uring *r, struct tier_io *io)
{
	struct attempt a;
	struct slot *s;

	mutex_lock(&r->lock);
	while (!r->free)
		pthread_cond_wait(&r->freed, &r->lock.m);
	s = r->free;
	r->free = s->next;
	r->in_flight++;
	ring_step_init(&s->step, io);
	a = attempt_locked(r, s);
	mutex_unlock(&r->lock);
	return a;
}

static void slot_put(struct ring_uring *r, struct slot *s)
{
	mutex_lock(&r->lock);
	s->next = r->free;
	r->free = s;
	r->in_flight--;
	pthread_cond_broadcast(&r->freed);
	mutex_unlock(&r->lock);
}

static int uring_write(struct ring *ring, struct tier_io *io)
{
	struct ring_uring *r = CONTAINER_OF(ring, struct ring_uring, base);
	struct attempt a = slot_take(r, io);
	int rc = submit(r, &a);

	if (rc)
		slot_put(r, a.slot);
	return rc;
}

/* One attempt came back with res. */
static void complete(struct ring_uring *r, struct slot *s, int res)
{
	struct attempt rest = { 0 };
	struct tier_io *io;
	bool over;
	int rc = 0;

	mutex_lock(&r->lock); /* now we see what the submitter wrote */
	over = ring_step_over(&s->step, res);
	io = s->step.io;
	if (!over)
		rest = attempt_locked(r, s);
	mutex_unlock(&r->lock);

	if (!over) {
		rc = submit(r, &rest);
		if (!rc)
			return;
		io->res = rc;
	}
	/* The slot first: done() may free what holds the ring open. */
	slot_put(r, s);
	io->done(io);
}

static void *reap(void *arg)
{
	struct ring_uring *r = arg;

	for (;;) {
		struct io_uring_cqe *cqe;
		struct slot *s;
		int res;

		if (io_uring_wait_cqe(&r->uring, &cqe)) {
			sched_yield(); /* EINTR; nothing else is known */
			continue;
		}
		s = io_uring_cqe_get_data(cqe);
		res = cqe->res;
		io_uring_cqe_seen(&r->uring, cqe);
		if (s == &r->stop)
			return NULL;
		if (s)
			complete(r, s, res);
	}
}

static void uring_close(struct ring *ring)
{
	struct ring_uring *r = CONTAINER_OF(ring, struct ring_uring, base);
	const struct attempt stop = { .slot = NULL };

	mutex_lock(&r->lock);
	while (r->in_flight)
		pthread_cond_wait(&r->freed, &r->lock.m);
	mutex_unlock(&r->lock);
	while (submit(r, &stop))
		sched_yield();
	pthread_join(r->reaper, NULL);
	io_uring_queue_exit(&r->uring);
	pthread_cond_destroy(&r->freed);
	mutex_fini(&r->lock);
	mutex_fini(&r->sq_lock);
	free(r);
}

static bool can_write(struct io_uring *uring)
{
	struct io_uring_probe *probe = io_uring_get_probe_ring(uring);
	bool can;

	can = probe && io_uring_opcode_supported(probe, IORING_OP_WRITE);
	io_uring_free_probe(probe);
	return can;
}

static int queue_open(struct ring_uring *r, unsigned depth, char *why,
		      size_t why_len)
{
	int rc = io_uring_queue_init(depth, &r->uring, 0);

	if (rc) {
		snprintf(why, why_len, "io_uring_setup: %s", strerror(-rc));
		return rc;
	}
	if (!can_write(&r->uring)) {
		snprintf(why, why_len, "this kernel's io_uring cannot write");
		io_uring_queue_exit(&r->uring);
		return -EOPNOTSUPP;
	}
	(void)io_uring_ring_dontfork(&r->uring);
	return 0;
}

static void ring_init(struct ring_uring *r, unsigned depth)
{
	r->base.ops = &ring_uring_ops;
	mutex_init(&r->sq_lock);
	mutex_init(&r->lock);
	condition_init(&r->freed);
	for (unsigned i = 0; i < depth; i++) {
		r->slots[i].next = r->free;
		r->free = &r->slots[i];
	}
}

static int uring_open(unsigned depth, struct ring **out, char *why,
		      size_t why_len)
{
	CLEANUP(free_p) struct ring_uring *r = NULL;
	int rc;

	r = calloc(1, sizeof(*r) + depth * sizeof(r->slots[0]));
	if (!r)
		return -ENOMEM;
	/* Twice as deep: room for a no-op left behind, and for the stop. */
	rc = queue_open(r, 2 * depth, why, why_len);
	if (rc)
		return rc;
	ring_init(r, depth);
	rc = thread_start(&r->reaper, "ckpt-reap", reap, r);
	if (rc) {
		snprintf(why, why_len, "no thread: %s", strerror(-rc));
		io_uring_queue_exit(&r->uring);
		return rc;
	}
	*out = &MOVE(r)->base;
	return 0;
}

const struct ring_ops ring_uring_ops = {
	.name = "io_uring",
	.open = uring_open,
	.write = uring_write,
	.close = uring_close,
};
