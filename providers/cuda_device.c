/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device's batches, pinned buffers and thread. The thread waits for a
 * batch's event (never for one copy), undoes what made the targets fit, and
 * says that the copies have arrived.
 */
#include "providers/cuda_device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "providers/cleanup.h"

#define DEVICES_MAX 64
#define N_BOUNCE 16
#define N_LINES 64

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static struct device *devices[DEVICES_MAX]; /* guarded by devices_lock */

static void give_bounce(struct device *d, struct bounce *b)
{
	pthread_mutex_lock(&d->lock);
	SLIST_INSERT_HEAD(&b->of->idle, b, next);
	pthread_cond_broadcast(&d->returned);
	pthread_mutex_unlock(&d->lock);
}

static void finish_detour(struct device *d, struct detour *t, bool copied)
{
	if (!t->by)
		return;
	if (copied)
		memcpy(t->dst, t->by->buf, t->len);
	give_bounce(d, t->by);
}

static void finish_op(struct device *d, struct op *op, int err)
{
	for (int i = 0; i < 2; i++)
		finish_detour(d, &op->detour[i], !err);
	if (op->pinned)
		(void)drv.p_cuMemHostUnregister(op->pinned);
	op->done(op->arg, err);
	free(op);
}

static int batch_new(struct batch **out)
{
	struct batch *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return -ENOMEM;
	STAILQ_INIT(&b->ops);
	r = cuda_error(drv.p_cuEventCreate(
		&b->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
	if (r < 0) {
		free(b);
		return r;
	}
	*out = b;
	return 0;
}

int cuda_batch_get(struct device *d, struct batch **out)
{
	struct batch *b;

	pthread_mutex_lock(&d->lock);
	b = STAILQ_FIRST(&d->idle);
	if (b)
		STAILQ_REMOVE_HEAD(&d->idle, next);
	pthread_mutex_unlock(&d->lock);
	if (!b)
		return batch_new(out);
	*out = b;
	return 0;
}

static void batch_put_locked(struct device *d, struct batch *b)
{
	b->err = 0;
	STAILQ_INSERT_HEAD(&d->idle, b, next);
}

void cuda_batch_put(struct device *d, struct batch *b)
{
	pthread_mutex_lock(&d->lock);
	batch_put_locked(d, b);
	pthread_mutex_unlock(&d->lock);
}

void cuda_batch_add(struct device *d, struct op *op, struct batch *batch)
{
	pthread_mutex_lock(&d->lock);
	if (!d->filling)
		d->filling = batch;
	else
		batch_put_locked(d, batch);
	STAILQ_INSERT_TAIL(&d->filling->ops, op, next);
	pthread_mutex_unlock(&d->lock);
}

void cuda_kick_batch(struct device *d, int err)
{
	struct batch *b;

	pthread_mutex_lock(&d->lock);
	b = MOVE(d->filling);
	pthread_mutex_unlock(&d->lock);
	if (!b)
		return;
	if (err == 0)
		err = cuda_error(drv.p_cuEventRecord(b->event, d->stream));
	b->err = err;
	pthread_mutex_lock(&d->lock);
	STAILQ_INSERT_TAIL(&d->batches, b, next);
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
}

/* Nothing of the batch is on the stream any more when this returns. */
static int batch_wait(struct device *d, struct batch *b)
{
	int r = b->err;

	if (r == 0)
		r = cuda_error(drv.p_cuEventSynchronize(b->event));
	if (r < 0)
		(void)drv.p_cuStreamSynchronize(d->stream);
	return r;
}

static struct batch *take_batch(struct device *d)
{
	struct batch *b;

	pthread_mutex_lock(&d->lock);
	while (STAILQ_EMPTY(&d->batches))
		pthread_cond_wait(&d->work, &d->lock);
	b = STAILQ_FIRST(&d->batches);
	STAILQ_REMOVE_HEAD(&d->batches, next);
	pthread_mutex_unlock(&d->lock);
	return b;
}

/* Lives as long as the process, as the context does. */
static void *device_main(void *arg)
{
	struct device *d = arg;
	struct op *op;

	(void)drv.p_cuCtxPushCurrent(d->ctx);
	for (;;) {
		struct batch *b = take_batch(d);
		int r = batch_wait(d, b);

		while ((op = STAILQ_FIRST(&b->ops))) {
			STAILQ_REMOVE_HEAD(&b->ops, next);
			finish_op(d, op, op->err ? op->err : r);
		}
		pthread_mutex_lock(&d->lock);
		batch_put_locked(d, b);
		pthread_mutex_unlock(&d->lock);
	}
	return NULL;
}

static int device_make(struct device *d, int number)
{
	CUdevice dev;
	CUcontext old;
	CUresult r;

	r = drv.p_cuDeviceGet(&dev, number);
	if (!r)
		r = drv.p_cuDevicePrimaryCtxRetain(&d->ctx, dev);
	if (!r)
		r = drv.p_cuCtxPushCurrent(d->ctx);
	if (r)
		return cuda_error(r);
	r = drv.p_cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = drv.p_cuEventCreate(&d->before, CU_EVENT_DISABLE_TIMING);
	(void)drv.p_cuCtxPopCurrent(&old);
	if (r)
		return cuda_error(r);
	return -pthread_create(&d->thread, NULL, device_main, d);
}

static int device_new(int number, struct device **out)
{
	struct device *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	pthread_mutex_init(&d->order, NULL);
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->work, NULL);
	pthread_cond_init(&d->returned, NULL);
	STAILQ_INIT(&d->batches);
	STAILQ_INIT(&d->idle);
	d->chunks = (struct bounces){ .len = BOUNCE_LEN, .n_max = N_BOUNCE };
	d->lines = (struct bounces){ .len = PAGE, .n_max = N_LINES };
	r = device_make(d, number);
	if (r < 0) {
		free(d);
		return r;
	}
	pthread_detach(d->thread);
	*out = d;
	return 0;
}

int cuda_device_get(int number, struct device **out)
{
	int r = cuda_load();

	if (number < 0 || number >= r || number >= DEVICES_MAX)
		return -ENODEV;
	r = 0;
	pthread_mutex_lock(&devices_lock);
	if (!devices[number])
		r = device_new(number, &devices[number]);
	if (r == 0)
		*out = devices[number];
	pthread_mutex_unlock(&devices_lock);
	return r;
}

/* ---- pinned buffers ---------------------------------------------------- */

/* The context is current. NULL: no memory. */
static struct bounce *make_bounce(struct bounces *of)
{
	struct bounce *b = calloc(1, sizeof(*b));

	if (b &&
	    drv.p_cuMemHostAlloc(&b->buf, of->len, CU_MEMHOSTALLOC_PORTABLE)) {
		free(b);
		b = NULL;
	}
	if (b)
		b->of = of;
	return b;
}

/* One that is idle or may be made (make), or NULL. */
static struct bounce *idle_locked(struct bounces *of, bool *make)
{
	struct bounce *b = SLIST_FIRST(&of->idle);

	if (b)
		SLIST_REMOVE_HEAD(&of->idle, next);
	*make = !b && of->n_made < of->n_max;
	of->n_made += *make;
	return b;
}

int cuda_take_bounce(struct device *d, struct bounces *of, struct bounce **out)
{
	struct bounce *b;
	bool make;

	pthread_mutex_lock(&d->lock);
	b = idle_locked(of, &make);
	pthread_mutex_unlock(&d->lock);
	if (make) {
		b = make_bounce(of);
		if (!b) {
			pthread_mutex_lock(&d->lock);
			of->n_made--;
			pthread_mutex_unlock(&d->lock);
			return -ENOMEM;
		}
	}
	if (!b)
		cuda_kick_batch(d, 0);
	pthread_mutex_lock(&d->lock);
	while (!b) {
		b = SLIST_FIRST(&of->idle);
		if (b)
			SLIST_REMOVE_HEAD(&of->idle, next);
		else
			pthread_cond_wait(&d->returned, &d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	*out = b;
	return 0;
}
