/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An imitated device: one thread that copies what is queued, chunk by chunk,
 * no faster than its rate, as a DMA engine does; what was not kicked does not
 * start. It stands where a GPU would, so that everything that waits for a
 * device can be tested without one.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/queue.h>

#include "providers/ckpt.h"
#include "providers/cleanup.h"
#include "providers/clock.h"

/* Copied, then slept for, a piece at a time: like a DMA, it does not keep the
 * memory bus busy all at once. */
#define PIECE_LEN ((size_t)1 << 20)

struct request {
	STAILQ_ENTRY(request) next;
	const void *src;
	void *dst;
	size_t len;
	ckpt_copied *done;
	void *arg;
};

struct ckpt_slow_device {
	uint64_t bytes_per_s; /* immutable */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t work;
	STAILQ_HEAD(request_queue, request) queue; /* guarded by lock */
	bool stop;                                 /* guarded by lock */
	int64_t free_ns; /* the thread's: idle from then on */
};

struct slow {
	struct ckpt_provider base;
	struct ckpt_slow_device *device;
	const uint8_t *bytes;
	size_t len, at;
	struct request_queue batch; /* not kicked yet */
};

static const struct ckpt_provider_ops slow_ops;

static void sleep_until(int64_t ns)
{
	struct timespec ts = capture_timespec(ns);

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) ==
	       EINTR)
		;
}

static void copy_at_rate(struct ckpt_slow_device *d, const struct request *q)
{
	int64_t now = capture_now_ns();

	if (d->free_ns < now)
		d->free_ns = now;
	for (size_t at = 0; at < q->len;) {
		size_t len = q->len - at < PIECE_LEN ? q->len - at : PIECE_LEN;

		memcpy((char *)q->dst + at, (const char *)q->src + at, len);
		at += len;
		d->free_ns +=
			(int64_t)((double)len * 1e9 / (double)d->bytes_per_s);
		sleep_until(d->free_ns);
	}
}

static struct request *take(struct ckpt_slow_device *d)
{
	struct request *q;

	pthread_mutex_lock(&d->lock);
	while (STAILQ_EMPTY(&d->queue) && !d->stop)
		pthread_cond_wait(&d->work, &d->lock);
	q = STAILQ_FIRST(&d->queue);
	if (q)
		STAILQ_REMOVE_HEAD(&d->queue, next);
	pthread_mutex_unlock(&d->lock);
	return q;
}

static void *device_main(void *arg)
{
	struct ckpt_slow_device *d = arg;
	struct request *q;

	while ((q = take(d))) {
		copy_at_rate(d, q);
		q->done(q->arg, 0);
		free(q);
	}
	return NULL;
}

int ckpt_slow_device_new(uint64_t bytes_per_s, struct ckpt_slow_device **out)
{
	struct ckpt_slow_device *d;
	int r;

	if (!bytes_per_s)
		return -EINVAL;
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->bytes_per_s = bytes_per_s;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->work, NULL);
	STAILQ_INIT(&d->queue);
	r = pthread_create(&d->thread, NULL, device_main, d);
	if (r) {
		free(d);
		return -r;
	}
	*out = d;
	return 0;
}

void ckpt_slow_device_free(struct ckpt_slow_device *d)
{
	if (!d)
		return;
	pthread_mutex_lock(&d->lock);
	d->stop = true;
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	pthread_cond_destroy(&d->work);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

struct ckpt_provider *ckpt_slow(struct ckpt_slow_device *device,
				const void *bytes, size_t len)
{
	struct slow *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct slow){ .base.ops = &slow_ops,
			    .device = device,
			    .bytes = bytes,
			    .len = len };
	STAILQ_INIT(&s->batch);
	return &s->base;
}

static uint64_t slow_size(const struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct slow, base)->len;
}

static int slow_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		     struct ckpt_chunk *out)
{
	struct slow *s = CONTAINER_OF(p, struct slow, base);
	size_t left;

	if (kind != CKPT_DEVICE || s->at == s->len)
		return 0;
	left = s->len - s->at;
	*out = (struct ckpt_chunk){ .off = s->at,
				    .len = left < max ? left : max };
	s->at += out->len;
	return 1;
}

static int slow_copy(struct ckpt_provider *p, const struct ckpt_chunk *c,
		     void *dst, ckpt_copied *done, void *arg)
{
	struct slow *s = CONTAINER_OF(p, struct slow, base);
	struct request *q = malloc(sizeof(*q));

	if (!q)
		return -ENOMEM;
	*q = (struct request){ .src = s->bytes + c->off,
			       .dst = dst,
			       .len = c->len,
			       .done = done,
			       .arg = arg };
	STAILQ_INSERT_TAIL(&s->batch, q, next);
	return 0;
}

/* Cannot fail: a request is already all that the device needs. */
static int slow_kick(struct ckpt_provider *p)
{
	struct slow *s = CONTAINER_OF(p, struct slow, base);
	struct ckpt_slow_device *d = s->device;

	pthread_mutex_lock(&d->lock);
	STAILQ_CONCAT(&d->queue, &s->batch);
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

static void slow_release(struct ckpt_provider *p)
{
	free(CONTAINER_OF(p, struct slow, base));
}

static const struct ckpt_provider_ops slow_ops = {
	.name = "slow",
	.size = slow_size,
	.next = slow_next,
	.copy = slow_copy,
	.kick = slow_kick,
	.release = slow_release,
};
