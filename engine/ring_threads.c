/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring by threads and pwrite(2), for where io_uring is forbidden (many
 * containers) or not built in. One thread for each write in flight.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>

#include "engine/ring.h"
#include "engine/thread.h"

struct slot {
	struct ring_step step;
	struct slot *next;
};

struct ring_threads {
	struct ring base;
	struct mutex lock;
	pthread_cond_t queued; /* there is work, or stopping */
	pthread_cond_t freed;
	struct slot *free;        /* guarded by lock */
	struct slot *head, **end; /* oldest first; guarded by lock */
	unsigned n_free;          /* guarded by lock */
	bool stopping;            /* guarded by lock */
	unsigned depth, n_threads;
	pthread_t *threads;
	struct slot slots[];
};

static struct slot *next_work(struct ring_threads *r)
{
	struct slot *s;

	mutex_lock(&r->lock);
	while (!r->head && !r->stopping)
		pthread_cond_wait(&r->queued, &r->lock.m);
	s = r->head;
	if (s) {
		r->head = s->next;
		if (!r->head)
			r->end = &r->head;
	}
	mutex_unlock(&r->lock);
	return s;
}

static void slot_put(struct ring_threads *r, struct slot *s)
{
	mutex_lock(&r->lock);
	s->next = r->free;
	r->free = s;
	r->n_free++;
	pthread_cond_broadcast(&r->freed);
	mutex_unlock(&r->lock);
}

static void write_all(struct ring_step *step)
{
	struct tier_io *io = step->io;
	ssize_t n;

	do {
		if (step->stuck)
			sched_yield();
		n = pwrite(io->fd, (const char *)io->buf + step->done,
			   ring_step_len(step), (off_t)(io->off + step->done));
	} while (!ring_step_over(step, n < 0 ? -errno : n));
}

static void *work(void *arg)
{
	struct ring_threads *r = arg;
	struct slot *s;

	while ((s = next_work(r))) {
		struct tier_io *io = s->step.io;

		write_all(&s->step);
		slot_put(r, s);
		io->done(io);
	}
	return NULL;
}

static int threads_write(struct ring *ring, struct tier_io *io)
{
	struct ring_threads *r = CONTAINER_OF(ring, struct ring_threads, base);
	struct slot *s;

	mutex_lock(&r->lock);
	while (!r->free)
		pthread_cond_wait(&r->freed, &r->lock.m);
	s = r->free;
	r->free = s->next;
	r->n_free--;
	ring_step_init(&s->step, io);
	s->next = NULL;
	*r->end = s;
	r->end = &s->next;
	pthread_cond_signal(&r->queued);
	mutex_unlock(&r->lock);
	return 0;
}

static void threads_close(struct ring *ring)
{
	struct ring_threads *r = CONTAINER_OF(ring, struct ring_threads, base);

	mutex_lock(&r->lock);
	while (r->n_free < r->depth)
		pthread_cond_wait(&r->freed, &r->lock.m);
	r->stopping = true;
	pthread_cond_broadcast(&r->queued);
	mutex_unlock(&r->lock);
	for (unsigned i = 0; i < r->n_threads; i++)
		pthread_join(r->threads[i], NULL);
	free(r->threads);
	pthread_cond_destroy(&r->queued);
	pthread_cond_destroy(&r->freed);
	mutex_fini(&r->lock);
	free(r);
}

static void ring_init(struct ring_threads *r, unsigned depth)
{
	r->base.ops = &ring_threads_ops;
	r->depth = r->n_free = depth;
	r->end = &r->head;
	mutex_init(&r->lock);
	condition_init(&r->queued);
	condition_init(&r->freed);
	for (unsigned i = 0; i < depth; i++) {
		r->slots[i].next = r->free;
		r->free = &r->slots[i];
	}
}

static int threads_open(unsigned depth, struct ring **out, char *why,
			size_t why_len)
{
	struct ring_threads *r;
	int rc = -ENOMEM;

	r = calloc(1, sizeof(*r) + depth * sizeof(r->slots[0]));
	if (!r)
		return -ENOMEM;
	ring_init(r, depth);
	r->threads = calloc(depth, sizeof(*r->threads));
	while (r->threads && r->n_threads < depth) {
		rc = thread_start(&r->threads[r->n_threads], "ckpt-write", work,
				  r);
		if (rc)
			break;
		r->n_threads++;
	}
	if (!r->n_threads) {
		snprintf(why, why_len, "no threads");
		threads_close(&r->base);
		return rc;
	}
	*out = &r->base; /* fewer threads than wished are slower, not wrong */
	return 0;
}

const struct ring_ops ring_threads_ops = {
	.name = "threads",
	.open = threads_open,
	.write = threads_write,
	.close = threads_close,
};
