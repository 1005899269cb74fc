/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA device memory. Each device has one stream of its own and one thread
 * that waits for it:
 *
 *   copy()  makes the target fit for DMA, and queues a copy on the stream
 *   kick()  records an event behind what was queued: a batch
 *   thread  waits for a batch's event (never for one copy), undoes what made
 *           the target fit, and says that the copies have arrived
 *
 * Once anything of a copy may be on the stream, its target belongs to it until
 * the thread has seen the stream come past: an error is kept (in the op, or in
 * its batch) and told by done() then, never by copy() or kick(). A kick needs
 * no memory: a copy brings the batch that it may need.
 *
 * How a target is made fit:
 *   pinned  the pages of [dst, dst + len) are registered for the time of the
 *           copy; what sticks out over whole pages at both ends goes by a
 *           scratch line. The DMA goes straight into the DRAM tier.
 *   bounced short copies, and memory that cannot be registered (a spilled
 *           file's page cache): through pinned buffers that are made once and
 *           kept, copied on by the thread.
 *
 * The driver library is loaded at run time (dlopen), so the same libckpt runs
 * where there is no GPU. Symbols have the names that cuda.h gives them (_v2 and
 * so on). Globals: the driver and the devices, which are the process's.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/queue.h>

#include "providers/ckpt.h"
#include "providers/cleanup.h"

#define DEVICES_MAX 64
#define PAGE ((uintptr_t)4096)
#define PIN_FROM ((size_t)1 << 20) /* less is cheaper to bounce */
#define BOUNCE_LEN ((size_t)8 << 20)
#define N_BOUNCE 16
#define N_LINES 64 /* of a page each */

/* ---- the driver -------------------------------------------------------- */

#define FUNCTIONS(F)                \
	F(cuInit)                   \
	F(cuDeviceGet)              \
	F(cuDeviceGetCount)         \
	F(cuDevicePrimaryCtxRetain) \
	F(cuCtxPushCurrent)         \
	F(cuCtxPopCurrent)          \
	F(cuStreamCreate)           \
	F(cuStreamSynchronize)      \
	F(cuStreamWaitEvent)        \
	F(cuEventCreate)            \
	F(cuEventRecord)            \
	F(cuEventSynchronize)       \
	F(cuMemcpyDtoHAsync)        \
	F(cuMemHostAlloc)           \
	F(cuMemHostRegister)        \
	F(cuMemHostUnregister)      \
	F(cuPointerGetAttribute)

#define STR2(x) #x
#define STR(x) STR2(x) /* after cuda.h's own macros */
#define DECLARE(f) __typeof__(&f) p_##f;
#define LOAD(f)                                            \
	do {                                               \
		*(void **)&drv.p_##f = dlsym(lib, STR(f)); \
		if (!drv.p_##f)                            \
			missing = true;                    \
	} while (0);

static struct {
	FUNCTIONS(DECLARE)
	bool loaded;
	int n_devices;
} drv;
static pthread_once_t drv_once = PTHREAD_ONCE_INIT;

static void drv_load(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	bool missing = false;

	if (!lib)
		return;
	FUNCTIONS(LOAD)
	if (missing || drv.p_cuInit(0) != CUDA_SUCCESS ||
	    drv.p_cuDeviceGetCount(&drv.n_devices) != CUDA_SUCCESS)
		return;
	drv.loaded = true;
}

/* The door of a foreign domain. */
static int error_of(CUresult r)
{
	switch (r) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_INVALID_VALUE:
		return -EINVAL;
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
		return -ENODEV;
	default:
		return -EIO;
	}
}

/* ---- devices ----------------------------------------------------------- */

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
	r = error_of(drv.p_cuEventCreate(
		&b->event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
	if (r < 0) {
		free(b);
		return r;
	}
	*out = b;
	return 0;
}

/* An empty one, the caller's. The context is current. */
static int batch_get(struct device *d, struct batch **out)
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

/* Nothing of the batch is on the stream any more when this returns. */
static int batch_wait(struct device *d, struct batch *b)
{
	int r = b->err;

	if (r == 0)
		r = error_of(drv.p_cuEventSynchronize(b->event));
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
		return error_of(r);
	r = drv.p_cuStreamCreate(&d->stream, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = drv.p_cuEventCreate(&d->before, CU_EVENT_DISABLE_TIMING);
	(void)drv.p_cuCtxPopCurrent(&old);
	if (r)
		return error_of(r);
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

static int device_get(int number, struct device **out)
{
	int r = 0;

	pthread_once(&drv_once, drv_load);
	if (!drv.loaded || number < 0 || number >= drv.n_devices ||
	    number >= DEVICES_MAX)
		return -ENODEV;
	pthread_mutex_lock(&devices_lock);
	if (!devices[number])
		r = device_new(number, &devices[number]);
	if (r == 0)
		*out = devices[number];
	pthread_mutex_unlock(&devices_lock);
	return r;
}

/* ---- copies ------------------------------------------------------------ */

struct cuda {
	struct ckpt_provider base;
	struct device *device;
	CUdeviceptr src;
	size_t len, at;
};

static const struct ckpt_provider_ops cuda_ops;

static struct cuda *cuda_of(struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct cuda, base);
}

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

static void kick_device(struct device *d, int err);

/* What is queued may hold the last buffers: it is kicked, then waited for. */
static int take_bounce(struct device *d, struct bounces *of,
		       struct bounce **out)
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
		kick_device(d, 0);
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

static int queue_dma(struct device *d, struct op *op, void *dst,
		     CUdeviceptr src, size_t len)
{
	op->started = true; /* also if it says that it failed: it may tell of
			       an earlier call */
	return error_of(drv.p_cuMemcpyDtoHAsync(dst, src, len, d->stream));
}

static int queue_detour(struct device *d, struct op *op, struct detour *t,
			CUdeviceptr src, void *dst, size_t len)
{
	int r;

	if (!len)
		return 0;
	r = take_bounce(d, len <= PAGE ? &d->lines : &d->chunks, &t->by);
	if (r < 0)
		return r;
	t->dst = dst;
	t->len = len;
	return queue_dma(d, op, t->by->buf, src, len);
}

/* All of it by a bounce buffer; longer than one: never (chunks are shorter, or
 * are pinned). */
static int queue_bounced(struct device *d, struct op *op, CUdeviceptr src,
			 void *dst, size_t len)
{
	size_t half = len < BOUNCE_LEN ? len : BOUNCE_LEN;
	int r = queue_detour(d, op, &op->detour[0], src, dst, half);

	if (r == 0 && len > half)
		r = queue_detour(d, op, &op->detour[1], src + half,
				 (char *)dst + half, len - half);
	return r;
}

static int queue_pinned(struct device *d, struct op *op, CUdeviceptr src,
			void *dst, size_t len)
{
	uintptr_t from = (uintptr_t)dst, to = from + len;
	uintptr_t first = (from + PAGE - 1) & ~(PAGE - 1),
		  last = to & ~(PAGE - 1);
	int r;

	if (drv.p_cuMemHostRegister((void *)first, last - first,
				    CU_MEMHOSTREGISTER_PORTABLE))
		return -EAGAIN;
	op->pinned = (void *)first;
	r = queue_dma(d, op, (void *)first, src + (first - from), last - first);
	if (r == 0)
		r = queue_detour(d, op, &op->detour[0], src, dst, first - from);
	if (r == 0)
		r = queue_detour(d, op, &op->detour[1], src + (last - from),
				 (void *)last, to - last);
	return r;
}

static int queue_op(struct device *d, struct op *op, CUdeviceptr src, void *dst,
		    size_t len)
{
	int r = -EAGAIN;

	if (len >= PIN_FROM)
		r = queue_pinned(d, op, src, dst, len);
	if (r == -EAGAIN && len <= 2 * BOUNCE_LEN)
		return queue_bounced(d, op, src, dst, len);
	return r == -EAGAIN ? -ENOMEM : r;
}

/* To what will be kicked next. The batch goes: it is that one, or put back. */
static void add_op(struct device *d, struct op *op, struct batch *batch)
{
	pthread_mutex_lock(&d->lock);
	if (!d->filling)
		d->filling = batch;
	else
		batch_put_locked(d, batch);
	STAILQ_INSERT_TAIL(&d->filling->ops, op, next);
	pthread_mutex_unlock(&d->lock);
}

/* The context is current. */
static int start_op(struct device *d, struct op *op, CUdeviceptr src, void *dst,
		    size_t len)
{
	struct batch *batch;
	int r = batch_get(d, &batch);

	if (r < 0)
		return r;
	op->err = queue_op(d, op, src, dst, len);
	if (op->err < 0 && !op->started) {
		pthread_mutex_lock(&d->lock);
		batch_put_locked(d, batch);
		pthread_mutex_unlock(&d->lock);
		return op->err;
	}
	add_op(d, op, batch);
	return 0;
}

static int cuda_copy(struct ckpt_provider *p, const struct ckpt_chunk *c,
		     void *dst, ckpt_copied *done, void *arg)
{
	struct cuda *cu = cuda_of(p);
	struct device *d = cu->device;
	struct op *op = calloc(1, sizeof(*op));
	CUcontext old;
	int r;

	if (!op)
		return -ENOMEM;
	op->done = done;
	op->arg = arg;
	r = error_of(drv.p_cuCtxPushCurrent(d->ctx));
	if (r < 0) {
		free(op);
		return r;
	}
	r = start_op(d, op, cu->src + c->off, dst, c->len);
	if (r < 0)
		free(op); /* holds nothing: it did not start */
	(void)drv.p_cuCtxPopCurrent(&old);
	return r;
}

/* The context is current, or err says why not. Whatever fails here, each copy
 * of the batch is told. */
static void kick_device(struct device *d, int err)
{
	struct batch *b;

	pthread_mutex_lock(&d->lock);
	b = MOVE(d->filling);
	pthread_mutex_unlock(&d->lock);
	if (!b)
		return;
	if (err == 0)
		err = error_of(drv.p_cuEventRecord(b->event, d->stream));
	b->err = err;
	pthread_mutex_lock(&d->lock);
	STAILQ_INSERT_TAIL(&d->batches, b, next);
	pthread_cond_signal(&d->work);
	pthread_mutex_unlock(&d->lock);
}

static int cuda_kick(struct ckpt_provider *p)
{
	struct device *d = cuda_of(p)->device;
	CUcontext old;
	int r = error_of(drv.p_cuCtxPushCurrent(d->ctx));

	kick_device(d, r);
	if (r == 0)
		(void)drv.p_cuCtxPopCurrent(&old);
	return r;
}

static uint64_t cuda_size(const struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct cuda, base)->len;
}

static int cuda_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		     struct ckpt_chunk *out)
{
	struct cuda *cu = cuda_of(p);
	size_t left;

	if (kind != CKPT_DEVICE || cu->at == cu->len)
		return 0;
	left = cu->len - cu->at;
	*out = (struct ckpt_chunk){ .off = cu->at,
				    .len = left < max ? left : max };
	cu->at += out->len;
	return 1;
}

static void cuda_release(struct ckpt_provider *p)
{
	free(cuda_of(p));
}

static const struct ckpt_provider_ops cuda_ops = {
	.name = "cuda",
	.size = cuda_size,
	.next = cuda_next,
	.copy = cuda_copy,
	.kick = cuda_kick,
	.release = cuda_release,
};

/* ---- making one -------------------------------------------------------- */

static int check_pointer(CUdeviceptr ptr)
{
	CUmemorytype type = 0;

	if (drv.p_cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					ptr) ||
	    type != CU_MEMORYTYPE_DEVICE)
		return -EINVAL;
	return 0;
}

/* Our stream goes on only behind what the caller's has to do now. */
static int order_behind(struct device *d, CUstream stream)
{
	CUcontext old;
	CUresult r = drv.p_cuCtxPushCurrent(d->ctx);

	if (r)
		return error_of(r);
	pthread_mutex_lock(&d->order);
	r = drv.p_cuEventRecord(d->before, stream);
	if (!r)
		r = drv.p_cuStreamWaitEvent(d->stream, d->before, 0);
	pthread_mutex_unlock(&d->order);
	(void)drv.p_cuCtxPopCurrent(&old);
	return error_of(r);
}

int ckpt_cuda(const void *device_bytes, size_t len, int device, void *stream,
	      struct ckpt_provider **out)
{
	CUdeviceptr src = (CUdeviceptr)(uintptr_t)device_bytes;
	struct device *d;
	struct cuda *cu;
	int r;

	r = device_get(device, &d);
	if (r == 0 && len)
		r = check_pointer(src);
	if (r == 0)
		r = order_behind(d, stream);
	if (r < 0)
		return r;
	cu = calloc(1, sizeof(*cu));
	if (!cu)
		return -ENOMEM;
	*cu = (struct cuda){
		.base.ops = &cuda_ops, .device = d, .src = src, .len = len
	};
	*out = &cu->base;
	return 0;
}
