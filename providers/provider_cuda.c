/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA device memory. Each device has one stream of its own and one thread
 * that waits for it (cuda_device.h):
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
 * Globals: the driver and the devices, which are the process's.
 */
#include <errno.h>
#include <stdlib.h>

#include "providers/ckpt.h"
#include "providers/cleanup.h"
#include "providers/cuda_device.h"

#define PIN_FROM ((size_t)1 << 20) /* less is cheaper to bounce */

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

static int queue_dma(struct device *d, struct op *op, void *dst,
		     CUdeviceptr src, size_t len)
{
	op->started = true; /* also if it says that it failed: it may tell of
			       an earlier call */
	return cuda_error(drv.p_cuMemcpyDtoHAsync(dst, src, len, d->stream));
}

static int queue_detour(struct device *d, struct op *op, struct detour *t,
			CUdeviceptr src, void *dst, size_t len)
{
	int r;

	if (!len)
		return 0;
	r = cuda_take_bounce(d, len <= PAGE ? &d->lines : &d->chunks, &t->by);
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

/* The context is current. */
static int start_op(struct device *d, struct op *op, CUdeviceptr src, void *dst,
		    size_t len)
{
	struct batch *batch;
	int r = cuda_batch_get(d, &batch);

	if (r < 0)
		return r;
	op->err = queue_op(d, op, src, dst, len);
	if (op->err < 0 && !op->started) {
		cuda_batch_put(d, batch);
		return op->err;
	}
	cuda_batch_add(d, op, batch);
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
	r = cuda_error(drv.p_cuCtxPushCurrent(d->ctx));
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

static int cuda_kick(struct ckpt_provider *p)
{
	struct device *d = cuda_of(p)->device;
	CUcontext old;
	int r = cuda_error(drv.p_cuCtxPushCurrent(d->ctx));

	cuda_kick_batch(d, r);
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
		return cuda_error(r);
	pthread_mutex_lock(&d->order);
	r = drv.p_cuEventRecord(d->before, stream);
	if (!r)
		r = drv.p_cuStreamWaitEvent(d->stream, d->before, 0);
	pthread_mutex_unlock(&d->order);
	(void)drv.p_cuCtxPopCurrent(&old);
	return cuda_error(r);
}

int ckpt_cuda(const void *device_bytes, size_t len, int device, void *stream,
	      struct ckpt_provider **out)
{
	CUdeviceptr src = (CUdeviceptr)(uintptr_t)device_bytes;
	struct device *d;
	struct cuda *cu;
	int r;

	r = cuda_device_get(device, &d);
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
