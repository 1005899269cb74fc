/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver without a GPU, for tests/unit/test_provider_cuda.c: the calls
 * that provider_cuda.c makes, with the rules that a real driver has and that
 * are easily broken. A stream is a thread that does what is queued in order,
 * and slowly. Breaking a rule prints which and aborts:
 *
 *   - copies are to pinned memory only (else a real driver waits for them)
 *   - no page is registered twice, or unregistered while a copy to it waits
 *   - a context is current
 */
#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake/cuda.h"

#define RULE(ok, what)                                            \
	do {                                                      \
		if (!(ok)) {                                      \
			fprintf(stderr, "fake cuda: %s\n", what); \
			abort();                                  \
		}                                                 \
	} while (0)

#define N_RANGES 4096

struct range {
	char *at;
	size_t len;
	unsigned waiting; /* copies to it */
};

struct CUevent_st {
	unsigned pending;
	bool used;
};

struct work {
	struct work *next;
	void *dst;
	const void *src;
	size_t len;
	CUevent event;
	struct range *range;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct work *first, **last = &first;
static struct range pinned[N_RANGES], on_device[N_RANGES];
static bool started;
static __thread int n_current;
struct fake_cuda fake_cuda;

static struct range *find(struct range *list, const void *p, size_t len)
{
	for (int i = 0; i < N_RANGES; i++)
		if (list[i].at && (char *)p >= list[i].at &&
		    (char *)p + len <= list[i].at + list[i].len)
			return &list[i];
	return NULL;
}

static bool overlaps(const void *p, size_t len)
{
	for (int i = 0; i < N_RANGES; i++)
		if (pinned[i].at && (char *)p < pinned[i].at + pinned[i].len &&
		    pinned[i].at < (char *)p + len)
			return true;
	return false;
}

static void add(struct range *list, void *p, size_t len)
{
	int i = 0;

	while (list[i].at)
		RULE(++i < N_RANGES, "too many ranges");
	list[i] = (struct range){ p, len, 0 };
}

static bool fails(atomic_int *nth)
{
	return atomic_load(nth) && atomic_fetch_sub(nth, 1) == 1;
}

static void hold_while(atomic_bool *held)
{
	struct timespec ts = { .tv_nsec = 1000000 };

	if (!atomic_load(held))
		return;
	atomic_fetch_add(&fake_cuda.n_held, 1);
	while (atomic_load(held))
		nanosleep(&ts, NULL);
	atomic_fetch_sub(&fake_cuda.n_held, 1);
}

static void *stream_main(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&lock);
	for (;;) {
		struct work *w;

		while (!first)
			pthread_cond_wait(&changed, &lock);
		w = first;
		pthread_mutex_unlock(&lock);
		if (w->dst) {
			struct timespec ts = { .tv_nsec = 300000 };

			hold_while(&fake_cuda.hold_copies);
			nanosleep(&ts, NULL);
			memcpy(w->dst, w->src, w->len);
		}
		pthread_mutex_lock(&lock);
		if (w->range)
			w->range->waiting--;
		if (w->event)
			w->event->pending--;
		first = w->next;
		if (!first)
			last = &first;
		free(w);
		pthread_cond_broadcast(&changed);
	}
	return NULL;
}

static void queue(struct work w)
{
	struct work *copy = malloc(sizeof(*copy));
	pthread_t thread;

	RULE(copy, "no memory");
	*copy = w;
	copy->next = NULL;
	*last = copy;
	last = &copy->next;
	if (!started)
		RULE(!pthread_create(&thread, NULL, stream_main, NULL),
		     "no thread");
	started = true;
	pthread_cond_broadcast(&changed);
}

void *fake_cuda_alloc(size_t len)
{
	void *p = malloc(len);

	pthread_mutex_lock(&lock);
	add(on_device, p, len);
	pthread_mutex_unlock(&lock);
	return p;
}

CUresult cuInit(unsigned flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *out, int number)
{
	*out = number;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev)
{
	(void)dev;
	*out = (CUcontext)&fake_cuda;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
	(void)ctx;
	if (fails(&fake_cuda.fail_push))
		return CUDA_ERROR_INVALID_CONTEXT;
	n_current++;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
	*out = NULL;
	RULE(n_current-- > 0, "no context to pop");
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
	(void)flags;
	*out = (CUstream)&fake_cuda;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	fake_cuda.n_syncs++;
	pthread_mutex_lock(&lock);
	while (first)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	(void)flags;
	RULE(stream && event->used, "waits for an event that nobody recorded");
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *out, unsigned flags)
{
	(void)flags;
	*out = calloc(1, sizeof(**out));
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy(CUevent event)
{
	free(event);
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	RULE(n_current, "no context is current");
	if (!stream)
		hold_while(&fake_cuda.hold_record);
	else if (fails(&fake_cuda.fail_record))
		return CUDA_ERROR_LAUNCH_FAILED;
	pthread_mutex_lock(&lock);
	event->used = true;
	if (stream) {
		event->pending++;
		queue((struct work){ .event = event });
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
	fake_cuda.n_syncs++;
	pthread_mutex_lock(&lock);
	while (event->pending)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return fake_cuda.fail_sync ? CUDA_ERROR_LAUNCH_FAILED : CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t len,
			   CUstream stream)
{
	const void *from = (const void *)(uintptr_t)src;
	struct range *r;

	(void)stream;
	RULE(n_current, "no context is current");
	pthread_mutex_lock(&lock);
	RULE(find(on_device, from, len), "a copy from beyond device memory");
	if (fails(&fake_cuda.fail_copy)) {
		pthread_mutex_unlock(&lock);
		return CUDA_ERROR_LAUNCH_FAILED;
	}
	r = find(pinned, dst, len);
	RULE(r, "a copy to memory that is not pinned");
	r->waiting++;
	fake_cuda.n_copies++;
	queue((struct work){ .dst = dst, .src = from, .len = len, .range = r });
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **out, size_t len, unsigned flags)
{
	(void)flags;
	RULE(n_current, "no context is current");
	if (posix_memalign(out, 4096, len))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&lock);
	add(pinned, *out, len);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemHostRegister(void *p, size_t len, unsigned flags)
{
	(void)flags;
	RULE(n_current, "no context is current");
	if (fake_cuda.fail_register)
		return CUDA_ERROR_NOT_SUPPORTED;
	pthread_mutex_lock(&lock);
	RULE((uintptr_t)p % 4096 == 0 && len && len % 4096 == 0,
	     "not whole pages");
	RULE(!overlaps(p, len), "registered twice");
	add(pinned, p, len);
	fake_cuda.n_registered++;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *p)
{
	struct range *r;

	RULE(n_current, "no context is current");
	pthread_mutex_lock(&lock);
	r = find(pinned, p, 1);
	RULE(r && r->at == p, "was not registered");
	RULE(!r->waiting, "unregistered under a copy");
	r->at = NULL;
	fake_cuda.n_registered--;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute what,
			       CUdeviceptr ptr)
{
	CUmemorytype type = CU_MEMORYTYPE_DEVICE;
	bool known;

	(void)what;
	pthread_mutex_lock(&lock);
	known = find(on_device, (const void *)(uintptr_t)ptr, 1);
	pthread_mutex_unlock(&lock);
	if (!known)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(out, &type, sizeof(type));
	return CUDA_SUCCESS;
}
