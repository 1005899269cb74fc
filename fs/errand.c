/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errands and the threads that may wait. A thread is started when something is
 * queued and none is idle, and goes when nothing came for a while.
 */
#include "fs/errand.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "engine/thread.h"

#define MAX_THREADS 128
#define IDLE_S 10

STAILQ_HEAD(errand_queue, errand);

struct errands {
	struct mutex lock;
	pthread_cond_t work, ended;
	struct errand_queue queue; /* guarded by lock, like the rest */
	unsigned n_queued, n_threads, n_idle;
	bool stop;
};

int errands_new(struct errands **out)
{
	struct errands *es = calloc(1, sizeof(*es));

	if (!es)
		return -ENOMEM;
	mutex_init(&es->lock);
	condition_init(&es->work);
	condition_init(&es->ended);
	STAILQ_INIT(&es->queue);
	*out = es;
	return 0;
}

void errands_free(struct errands *es)
{
	if (!es)
		return;
	mutex_lock(&es->lock);
	es->stop = true;
	pthread_cond_broadcast(&es->work);
	while (es->n_threads)
		pthread_cond_wait(&es->ended, &es->lock.m);
	mutex_unlock(&es->lock);
	pthread_cond_destroy(&es->work);
	pthread_cond_destroy(&es->ended);
	mutex_fini(&es->lock);
	free(es);
}

/* ---- one errand ------------------------------------------------------- */

static void errand_free(struct errand *w)
{
	free((char *)w->name);
	free(w);
}

static struct errand *errand_copy(const struct errand *from)
{
	struct errand *w = malloc(sizeof(*w));

	if (!w)
		return NULL;
	*w = *from;
	if (from->name)
		w->name = strdup(from->name);
	if (from->name && !w->name) {
		free(w);
		return NULL;
	}
	return w;
}

/* ---- the threads ------------------------------------------------------ */

/* NULL: nothing came for a while, or will come any more. */
static struct errand *take_locked(struct errands *es) MUST_HOLD(es->lock);
static struct errand *take_locked(struct errands *es)
{
	struct errand *w;
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += IDLE_S;
	es->n_idle++;
	while (!es->n_queued && !es->stop && rc != ETIMEDOUT)
		rc = pthread_cond_timedwait(&es->work, &es->lock.m, &until);
	es->n_idle--;
	w = STAILQ_FIRST(&es->queue);
	if (w) {
		STAILQ_REMOVE_HEAD(&es->queue, next);
		es->n_queued--;
	}
	return w;
}

static void *errands_main(void *arg)
{
	struct errands *es = arg;
	struct errand *w;

	mutex_lock(&es->lock);
	while ((w = take_locked(es))) {
		mutex_unlock(&es->lock);
		(void)!w->run(w, true);
		errand_free(w);
		mutex_lock(&es->lock);
	}
	es->n_threads--;
	pthread_cond_signal(&es->ended);
	mutex_unlock(&es->lock);
	return NULL;
}

/* One more for what is queued, if there may be. false: there is none at all. */
static bool see_to_threads_locked(struct errands *es) MUST_HOLD(es->lock);
static bool see_to_threads_locked(struct errands *es)
{
	pthread_t thread;

	if (es->n_queued <= es->n_idle || es->n_threads == MAX_THREADS)
		return true;
	if (!thread_start(&thread, "errand", errands_main, es)) {
		pthread_detach(thread);
		es->n_threads++;
	}
	return es->n_threads;
}

static bool enqueue(struct errands *es, struct errand *w)
{
	bool queued;

	mutex_lock(&es->lock);
	STAILQ_INSERT_TAIL(&es->queue, w, next);
	es->n_queued++;
	queued = see_to_threads_locked(es);
	if (queued) {
		pthread_cond_signal(&es->work);
	} else {
		STAILQ_REMOVE(&es->queue, w, errand, next);
		es->n_queued--;
	}
	mutex_unlock(&es->lock);
	return queued;
}

void errand_do(const struct errand *from)
{
	struct errand *w;

	if (from->run(from, false))
		return;
	w = errand_copy(from);
	if (w && enqueue(fs_of(w->req)->errands, w))
		return;
	reply_result(from->req, w ? -EAGAIN : -ENOMEM);
	if (w)
		errand_free(w);
}
