/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flusher threads: each takes the oldest version that is not on NVMe yet.
 * How bytes move is flush.c's.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/thread.h"
#include "metadata/log_message.h"

#define BACKOFF_MIN_NS INT64_C(100000000)
#define BACKOFF_MAX_NS INT64_C(5000000000)
#define N_STABLE_TRIES 3

/* Its flush may turn out to be this version's as well. */
static bool waits_for_base(const struct version *v)
{
	const struct version *b = v->base;

	return b && (b->state == VERSION_RUNNING ||
		     (b->state == VERSION_QUEUED && !b->gone));
}

static struct version *next_work_locked(struct versions *vs, int64_t now,
					int64_t *wait_ns)
{
	struct version *v;

	*wait_ns = -1;
	TAILQ_FOREACH(v, &vs->queue, in_order)
	{
		if (v->state == VERSION_QUEUED && !v->logging &&
		    !waits_for_base(v))
			return v;
		if (v->state != VERSION_FAILED)
			continue;
		if (v->retry_ns <= now)
			return v;
		if (*wait_ns < 0 || v->retry_ns - now < *wait_ns)
			*wait_ns = v->retry_ns - now;
	}
	return NULL;
}

static struct version *take_work(struct versions *vs)
{
	struct version *v = NULL;
	int64_t wait_ns;

	mutex_lock(&vs->lock);
	while (!vs->stop) {
		v = next_work_locked(vs, now_mono_ns(), &wait_ns);
		if (v)
			break;
		if (wait_ns < 0)
			pthread_cond_wait(&vs->work, &vs->lock.m);
		else
			cond_wait_ns(&vs->work, &vs->lock, wait_ns);
	}
	if (v) {
		v->state = VERSION_RUNNING;
		version_hold_locked(v);
	}
	mutex_unlock(&vs->lock);
	return v;
}

static bool changed_since(int fd, const struct stat *before)
{
	struct stat st;

	return fstat(fd, &st) || st.st_size != before->st_size ||
	       st.st_ctim.tv_sec != before->st_ctim.tv_sec ||
	       st.st_ctim.tv_nsec != before->st_ctim.tv_nsec;
}

/* A snapshot is copied again while it changes under the copy. */
static int run_stable(const struct flush_job *job)
{
	struct stat st;
	int r = 0;

	for (int i = 0; i < N_STABLE_TRIES; i++) {
		if (fstat(job->src_fd, &st))
			return -errno;
		r = flush_run(job);
		if (r < 0 || job->final || !changed_since(job->src_fd, &st))
			break;
	}
	return r;
}

/* Nobody else can find it any more. */
static bool may_give_locked(const struct version *b)
{
	return b->gone && !b->recorded && b->state == VERSION_FLUSHED &&
	       b->file == b->id;
}

/* The base was flushed, nobody needs its file any more, and it holds the very
 * bytes: the file is v's. */
static bool take_file_of_base(struct engine *e, struct version *v, int fd)
{
	struct versions *vs = &e->versions;
	struct version *b = v->base;
	uint32_t n = (uint32_t)N_CHUNKS(v->size);
	bool taken;

	mutex_lock(&vs->lock);
	taken = may_give_locked(b) && b->size == v->size;
	mutex_unlock(&vs->lock);
	if (!taken || checksum_verify(fd, v->size, b->crcs, n, NULL))
		return false;
	mutex_lock(&vs->lock);
	taken = may_give_locked(b);
	if (taken) {
		b->gave_file = v->took_file = true;
		v->file = b->file;
		free(v->crcs);
		v->crcs = MOVE(b->crcs);
	}
	mutex_unlock(&vs->lock);
	if (taken) /* what was set aside for it */
		stream_drop(e, v->id);
	return taken;
}

static void base_done(struct engine *e, struct version *v)
{
	struct version *b;

	mutex_lock(&e->versions.lock);
	b = v->base;
	v->base = NULL;
	mutex_unlock(&e->versions.lock);
	if (b)
		version_unhold(e, b);
}

static void set_crcs(struct engine *e, struct version *v, uint32_t *crcs,
		     uint64_t file)
{
	mutex_lock(&e->versions.lock);
	free(v->crcs);
	v->crcs = crcs;
	v->file = file;
	mutex_unlock(&e->versions.lock);
}

/*
 * A spilled file of which a sync failed is copied, out of the page cache: what
 * it was when it was known must come out.
 */
static int check_doubt(struct version *v, const uint32_t *crcs)
{
	if (!v->doubt.failed ||
	    !memcmp(v->crcs, crcs, N_CHUNKS(v->size) * sizeof(*crcs)))
		return 0;
	v->doubt.known = false;
	return -EIO;
}

/* Only its flusher writes v->doubt. */
static int flush_from(struct engine *e, struct version *v, struct backing *b,
		      int fd, struct flush_have *have)
{
	bool spilled = b->where == BACKING_NVME;
	bool in_place = spilled && v->final && !v->doubt.failed;
	CLEANUP(free_p)
	uint32_t *crcs = calloc(N_CHUNKS(v->size) + 1, sizeof(*crcs));
	struct flush_job job = {
		.src_fd = fd,
		.size = v->size,
		.final = v->final && !spilled, /* else SIGBUS by a bad disk */
		.dst = e->nvme,
		.dst_id = v->id,
		.in_place = in_place,
		.doubt = &v->doubt,
		.throttle = e->throttle,
		.progress = &e->flushed_bytes,
		.crcs = crcs,
		.have = have,
	};
	int r;

	if (!crcs)
		return -ENOMEM;
	if (v->doubt.failed && !v->doubt.known)
		return -EIO;
	r = run_stable(&job);
	if (r == 0)
		r = check_doubt(v, crcs);
	if (r == 0)
		set_crcs(e, v, MOVE(crcs), in_place ? b->id : v->id);
	else if (in_place && v->doubt.known)
		set_crcs(e, v, MOVE(crcs), 0);
	return r;
}

static int flush_version(struct engine *e, struct version *v, struct backing *b)
{
	struct tier *src = backing_tier(e, b->where);
	CLEANUP(flush_have_fini) struct flush_have have = { 0 };
	CLEANUP(close_p) int fd = -1;
	int r;

	r = src->ops->open(src, b->id, O_RDONLY, &fd);
	if (r < 0)
		return r;
	if (v->base && b->where == BACKING_DRAM && take_file_of_base(e, v, fd))
		return 0;
	stream_end(e, v->id, &have);
	return flush_from(e, v, b, fd, &have);
}

static void flush_failed_locked(struct version *v, int r)
{
	v->state = VERSION_FAILED;
	v->error = r;
	v->backoff_ns = v->backoff_ns ? v->backoff_ns * 2 : BACKOFF_MIN_NS;
	if (v->backoff_ns > BACKOFF_MAX_NS)
		v->backoff_ns = BACKOFF_MAX_NS;
	v->retry_ns = now_mono_ns() + v->backoff_ns;
}

static void flush_finish(struct engine *e, struct version *v, int r)
{
	struct versions *vs = &e->versions;
	char path[META_PATH_MAX];
	bool first;

	mutex_lock(&vs->lock);
	first = r < 0 && !v->error;
	if (r < 0)
		flush_failed_locked(v, r);
	else
		v->state = VERSION_FLUSHED;
	if (r == 0)
		v->error = 0;
	pthread_cond_broadcast(&vs->changed);
	mutex_unlock(&vs->lock);
	if (first) {
		if (view_path(meta_accepted(e->meta), v->ino, path))
			snprintf(path, sizeof(path), "inode %lu",
				 (unsigned long)v->ino);
		message_error("cannot flush '%s': %s", path, strerror(-r));
	}
	version_unhold(e, v);
	follow_kick(e, false);
}

void *flusher_main(void *arg)
{
	struct engine *e = arg;
	struct version *v;

	thread_lower_priority();
	while ((v = take_work(&e->versions))) {
		struct backing *b;
		int r;

		mutex_lock(&e->versions.lock);
		b = v->backing;
		if (b)
			backing_get(e, b);
		mutex_unlock(&e->versions.lock);
		r = b ? flush_version(e, v, b) : -EIO;
		backing_put(e, b);
		base_done(e, v);
		flush_finish(e, v, r);
	}
	return NULL;
}
