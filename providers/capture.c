/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public face of the capture engine: engines and captures as users hold
 * them. What moves bytes is mover.c.
 *
 * Globals, the only ones: the list of engines, which fork and exit need. A
 * forked child gets none of the threads, so it must not use the parent's
 * engine (-ECHILD), and lets go of the files that it inherited: a descriptor
 * in a child would keep them being written.
 */
#include "providers/capture.h"

#include <errno.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "providers/cleanup.h"

#define CHUNK_DEFAULT ((size_t)8 << 20)
#define CHUNK_MAX ((size_t)64 << 20)
#define STAGING_DEFAULT ((size_t)256 << 20)
#define LOOK_NS INT64_C(100000000)

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static TAILQ_HEAD(, ckpt) all = TAILQ_HEAD_INITIALIZER(all);
static unsigned n_closing; /* of the engines in the list; all_lock */
static pthread_cond_t closed = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_ours(const struct ckpt *ck)
{
	return ck->pid == getpid();
}

/* ---- fork and exit ----------------------------------------------------- */

static void before_fork(void)
{
	struct ckpt *ck;

	targets_lock();
	pthread_mutex_lock(&all_lock);
	TAILQ_FOREACH(ck, &all, link)
	pthread_mutex_lock(&ck->lock);
}

static void after_fork(void)
{
	struct ckpt *ck;

	TAILQ_FOREACH(ck, &all, link)
	pthread_mutex_unlock(&ck->lock);
	pthread_mutex_unlock(&all_lock);
	targets_unlock();
}

static void in_child(void)
{
	struct ckpt_capture *cap;
	struct ckpt *ck;

	TAILQ_FOREACH(ck, &all, link)
	{
		TAILQ_FOREACH(cap, &ck->captures, link)
		target_forget(&cap->target);
		pool_forget(ck->pool);
	}
	n_closing = 0;
	after_fork();
}

/* exit() without ckpt_close(): as the options say. */
static void at_exit(void)
{
	struct ckpt *ck;

	for (;;) {
		pthread_mutex_lock(&all_lock);
		TAILQ_FOREACH(ck, &all, link)
		if (is_ours(ck) && !ck->closing)
			break;
		while (!ck && n_closing) /* by another thread */
			pthread_cond_wait(&closed, &all_lock);
		pthread_mutex_unlock(&all_lock);
		if (!ck)
			return;
		(void)!ckpt_close(ck);
	}
}

/* false: another thread closes it, or has. It stays in the list, as its files
 * are open until it has ended. */
static bool begin_close(struct ckpt *ck)
{
	struct ckpt *c;
	bool mine;

	pthread_mutex_lock(&all_lock);
	TAILQ_FOREACH(c, &all, link)
	if (c == ck)
		break;
	mine = c && !c->closing;
	if (mine) {
		c->closing = true;
		n_closing++;
	}
	pthread_mutex_unlock(&all_lock);
	return mine;
}

static void engine_free(struct ckpt *ck);

/* With no fork in between: a child would keep what the pool has open. */
static void end_close(struct ckpt *ck)
{
	pthread_mutex_lock(&all_lock);
	TAILQ_REMOVE(&all, ck, link);
	engine_free(ck);
	n_closing--;
	pthread_cond_broadcast(&closed);
	pthread_mutex_unlock(&all_lock);
}

static void set_up(void)
{
	(void)!pthread_atfork(before_fork, after_fork, in_child);
	(void)!atexit(at_exit);
}

/* ---- the engine -------------------------------------------------------- */

static int fill_options(const struct ckpt_options *given,
			struct ckpt_options *out)
{
	struct sysinfo si;

	memset(out, 0, sizeof(*out));
	if (given && given->options_len > sizeof(*out))
		return -EINVAL; /* made for a newer library */
	if (given)
		memcpy(out, given, given->options_len);
	if (!out->chunk_len)
		out->chunk_len = CHUNK_DEFAULT;
	if (!out->staging_len)
		out->staging_len = STAGING_DEFAULT;
	if (!out->budget_len && !sysinfo(&si))
		out->budget_len = (uint64_t)si.totalram * si.mem_unit / 8;
	if (out->chunk_len % 4096 || out->chunk_len > CHUNK_MAX ||
	    out->staging_len < out->chunk_len || out->at_exit > CKPT_EXIT_ABORT)
		return -EINVAL;
	return 0;
}

static void engine_free(struct ckpt *ck)
{
	pool_free(ck->pool);
	pthread_cond_destroy(&ck->work);
	pthread_cond_destroy(&ck->changed);
	pthread_mutex_destroy(&ck->lock);
	free(ck);
}

static void engine_init(struct ckpt *ck)
{
	pthread_condattr_t attr;

	ck->pid = getpid();
	TAILQ_INIT(&ck->captures);
	STAILQ_INIT(&ck->arrived);
	pthread_mutex_init(&ck->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&ck->work, &attr);
	pthread_cond_init(&ck->changed, &attr);
	pthread_condattr_destroy(&attr);
}

int ckpt_open(const struct ckpt_options *options, struct ckpt **out)
{
	struct ckpt *ck = calloc(1, sizeof(*ck));
	int r;

	if (!ck)
		return -ENOMEM;
	pthread_once(&once, set_up);
	engine_init(ck);
	r = fill_options(options, &ck->options);
	if (r == 0)
		r = pool_new(ck->options.chunk_len, ck->options.staging_len,
			     ck->options.budget_len, &ck->pool);
	if (r == 0)
		r = movers_start(ck);
	if (r < 0) {
		engine_free(ck);
		return r;
	}
	pthread_mutex_lock(&all_lock);
	TAILQ_INSERT_TAIL(&all, ck, link);
	pthread_mutex_unlock(&all_lock);
	*out = ck;
	return 0;
}

static bool all_ended_locked(const struct ckpt *ck)
{
	struct ckpt_capture *cap;

	TAILQ_FOREACH(cap, &ck->captures, link)
	if (cap->submitted && !cap->ended)
		return false;
	return true;
}

static int end_all(struct ckpt *ck)
{
	struct ckpt_capture *cap;
	int r;

	pthread_mutex_lock(&ck->lock);
	if (ck->options.at_exit == CKPT_EXIT_ABORT)
		TAILQ_FOREACH(cap, &ck->captures, link)
	if (cap->submitted)
		capture_fail_locked(cap, -ECANCELED, "");
	while (!all_ended_locked(ck))
		pthread_cond_wait(&ck->changed, &ck->lock);
	r = 0;
	TAILQ_FOREACH(cap, &ck->captures, link)
	if (!r && cap->error && !cap->told)
		r = cap->error;
	pthread_mutex_unlock(&ck->lock);
	return r;
}

/* A fork looks through the list. */
static struct ckpt_capture *take_first(struct ckpt *ck)
{
	struct ckpt_capture *cap;

	pthread_mutex_lock(&ck->lock);
	cap = TAILQ_FIRST(&ck->captures);
	if (cap)
		TAILQ_REMOVE(&ck->captures, cap, link);
	pthread_mutex_unlock(&ck->lock);
	return cap;
}

int ckpt_close(struct ckpt *ck)
{
	struct ckpt_capture *cap;
	int r;

	if (!ck || !is_ours(ck) || !begin_close(ck))
		return 0;
	r = end_all(ck);
	movers_stop(ck);
	while ((cap = take_first(ck)))
		capture_destroy(cap);
	end_close(ck);
	return r;
}

/* ---- captures ---------------------------------------------------------- */

void capture_destroy(struct ckpt_capture *cap)
{
	if (cap->root)
		cap->root->ops->release(cap->root);
	target_fini(&cap->target);
	pthread_mutex_destroy(&cap->opening);
	free(cap->path);
	free(cap);
}

int ckpt_begin(struct ckpt *ck, const char *path, struct ckpt_capture **out)
{
	struct ckpt_capture *cap;
	int r;

	if (!is_ours(ck))
		return -ECHILD;
	cap = calloc(1, sizeof(*cap));
	if (!cap)
		return -ENOMEM;
	cap->ck = ck;
	cap->held = true;
	pthread_mutex_init(&cap->opening, NULL);
	r = target_init(&cap->target, path);
	cap->path = strdup(path);
	cap->root = ckpt_composite(1);
	if (r == 0 && (!cap->path || !cap->root))
		r = -ENOMEM;
	if (r < 0) {
		capture_destroy(cap);
		return r;
	}
	pthread_mutex_lock(&ck->lock);
	TAILQ_INSERT_TAIL(&ck->captures, cap, link);
	pthread_mutex_unlock(&ck->lock);
	*out = cap;
	return 0;
}

int ckpt_add(struct ckpt_capture *cap, struct ckpt_provider *p)
{
	bool submitted;
	int r = is_ours(cap->ck) ? 0 : -ECHILD;

	if (!p)
		return -ENOMEM;
	if (r == 0) {
		pthread_mutex_lock(&cap->ck->lock);
		submitted = cap->placed;
		pthread_mutex_unlock(&cap->ck->lock);
		if (!submitted)
			return ckpt_composite_add(cap->root, p);
		r = -EBUSY;
	}
	p->ops->release(p);
	return r;
}

int ckpt_submit(struct ckpt_capture *cap)
{
	struct ckpt *ck = cap->ck;
	int r;

	if (!is_ours(ck))
		return -ECHILD;
	pthread_mutex_lock(&ck->lock);
	r = cap->placed ? -EBUSY : 0;
	cap->placed = true;
	pthread_mutex_unlock(&ck->lock);
	if (r == 0)
		r = composite_place(cap->root, &cap->known_len);
	if (r < 0)
		return r;
	pthread_mutex_lock(&ck->lock);
	cap->has_check = composite_has_check(cap->root);
	cap->has_device = composite_has_device(cap->root);
	cap->submitted = true;
	cap->stats.submitted_ns = capture_now_ns();
	/* Served in the order of submission. */
	TAILQ_REMOVE(&ck->captures, cap, link);
	TAILQ_INSERT_TAIL(&ck->captures, cap, link);
	pthread_cond_broadcast(&ck->work);
	pthread_mutex_unlock(&ck->lock);
	return 0;
}

static bool all_captured_locked(const struct ckpt *ck, int64_t before)
{
	struct ckpt_capture *cap;

	TAILQ_FOREACH(cap, &ck->captures, link)
	{
		if (!cap->submitted || cap->stats.submitted_ns > before)
			continue;
		/* One that failed still reads until nobody is at it. */
		if (cap->error ? !cap->ended : !cap->captured)
			return false;
	}
	return true;
}

static int untold_error_locked(struct ckpt *ck)
{
	struct ckpt_capture *cap;
	int r;

	TAILQ_FOREACH(cap, &ck->captures, link)
	if (cap->error && !cap->told)
		break; /* others are for the next fences */
	if (!cap)
		return 0;
	r = cap->error;
	cap->told = true;
	if (!cap->held && cap->ended) {
		TAILQ_REMOVE(&ck->captures, cap, link);
		capture_destroy(cap);
	}
	return r;
}

int ckpt_fence(struct ckpt *ck)
{
	int64_t now = capture_now_ns();
	int r;

	if (!is_ours(ck))
		return -ECHILD;
	pthread_mutex_lock(&ck->lock);
	while (!all_captured_locked(ck, now))
		pthread_cond_wait(&ck->changed, &ck->lock);
	r = untold_error_locked(ck);
	pthread_mutex_unlock(&ck->lock);
	return r;
}

/* ---- waiting ----------------------------------------------------------- */

/* Until the engine has done its part. */
static int wait_engine(struct ckpt_capture *cap, enum ckpt_level level,
		       int64_t until)
{
	struct ckpt *ck = cap->ck;
	int r = 0;

	pthread_mutex_lock(&ck->lock);
	while (!cap->error &&
	       !(level == CKPT_CAPTURED ? cap->captured : cap->complete)) {
		struct timespec ts = { until / 1000000000, until % 1000000000 };

		if (until && capture_now_ns() >= until) {
			r = -ETIMEDOUT;
			break;
		}
		if (until)
			pthread_cond_timedwait(&ck->changed, &ck->lock, &ts);
		else
			pthread_cond_wait(&ck->changed, &ck->lock);
	}
	if (cap->error) {
		r = cap->error;
		cap->told = true;
	}
	pthread_mutex_unlock(&ck->lock);
	return r;
}

int ckpt_wait(struct ckpt_capture *cap, enum ckpt_level level, int timeout_ms)
{
	int64_t until = 0;
	int r;

	if (!is_ours(cap->ck))
		return -ECHILD;
	if (!cap->submitted || level > CKPT_REMOTE)
		return -EINVAL;
	if (timeout_ms >= 0)
		until = capture_now_ns() + timeout_ms * INT64_C(1000000) + 1;
	r = wait_engine(cap, level, until);
	if (r < 0 || level <= CKPT_DRAM)
		return r;
	while ((r = target_reached(&cap->target, level)) == 0) {
		struct timespec pause = { .tv_nsec = 2000000 };

		if (until && capture_now_ns() >= until)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	return r < 0 ? r : 0;
}

void ckpt_cancel(struct ckpt_capture *cap)
{
	struct ckpt *ck = cap->ck;

	if (!is_ours(ck) || !cap->submitted)
		return;
	pthread_mutex_lock(&ck->lock);
	/* Who cancels knows. */
	if (!cap->ended && !cap->error && !cap->naming)
		cap->told = true;
	capture_fail_locked(cap, -ECANCELED, "");
	while (!cap->ended)
		pthread_cond_wait(&ck->changed, &ck->lock);
	pthread_mutex_unlock(&ck->lock);
}

const char *ckpt_error(struct ckpt_capture *cap)
{
	const char *text = "";

	pthread_mutex_lock(&cap->ck->lock);
	if (cap->error)
		text = cap->text; /* written once */
	pthread_mutex_unlock(&cap->ck->lock);
	return text;
}

void ckpt_get_stats(struct ckpt_capture *cap, struct ckpt_stats *out)
{
	pthread_mutex_lock(&cap->ck->lock);
	*out = cap->stats;
	pthread_mutex_unlock(&cap->ck->lock);
}

void ckpt_capture_free(struct ckpt_capture *cap)
{
	bool gone;

	if (!cap || !is_ours(cap->ck))
		return;
	pthread_mutex_lock(&cap->ck->lock);
	cap->held = false;
	/* One that failed stays until somebody was told. */
	gone = (cap->ended && !(cap->error && !cap->told)) || !cap->submitted;
	if (gone)
		TAILQ_REMOVE(&cap->ck->captures, cap, link);
	pthread_mutex_unlock(&cap->ck->lock);
	if (gone)
		capture_destroy(cap);
}
