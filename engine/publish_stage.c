/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes move ahead of names: the publisher puts the versions it will need
 * into a queue, a few threads stage them, and the publisher waits for one only
 * when its name is due. Staged is not shown, so order does not matter here.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/checksum.h"
#include "engine/fd_io.h"
#include "engine/publish_parts.h"
#include "engine/tier.h"
#include "engine/version.h"

/* ---- jobs ------------------------------------------------------------- */

static void job_free(struct stage_job *job)
{
	remote_attr_fini(&job->attr);
	free(job->path);
	free(job->from);
	free(job);
}

int job_new(uint64_t version, const char *path, struct remote_attr *attr,
	    struct stage_job **out)
{
	struct stage_job *job = calloc(1, sizeof(*job));

	if (job)
		job->path = strdup(path);
	if (!job || !job->path) {
		free(job);
		return -ENOMEM;
	}
	job->version = version;
	job->refs = 1;
	job->attr = *attr;
	*attr = (struct remote_attr){ 0 };
	*out = job;
	return 0;
}

void job_submit(struct publisher *p, struct stage_job *job)
{
	mutex_lock(&p->lock);
	job->state = STAGE_QUEUED;
	TAILQ_INSERT_TAIL(&p->queue, job, next);
	pthread_cond_broadcast(&p->changed);
	mutex_unlock(&p->lock);
}

int job_wait(struct publisher *p, struct stage_job *job)
{
	bool done;

	mutex_lock(&p->lock);
	while (job->state != STAGE_DONE && !p->stop)
		pthread_cond_wait(&p->changed, &p->lock.m);
	done = job->state == STAGE_DONE;
	mutex_unlock(&p->lock);
	return done ? job->err : -ECANCELED;
}

void job_drop(struct publisher *p, struct stage_job *job)
{
	bool last;

	if (!job)
		return;
	mutex_lock(&p->lock);
	if (job->state == STAGE_QUEUED)
		TAILQ_REMOVE(&p->queue, job, next);
	job->state = STAGE_DONE;
	last = --job->refs == 0;
	mutex_unlock(&p->lock);
	if (last)
		job_free(job);
}

static struct stage_job *job_take(struct publisher *p)
{
	struct stage_job *job = NULL;

	mutex_lock(&p->lock);
	while (!p->stop && TAILQ_EMPTY(&p->queue))
		pthread_cond_wait(&p->changed, &p->lock.m);
	if (!p->stop) {
		job = TAILQ_FIRST(&p->queue);
		TAILQ_REMOVE(&p->queue, job, next);
		job->state = STAGE_RUNNING;
		job->refs++;
		p->n_running++;
	}
	mutex_unlock(&p->lock);
	return job;
}

static void job_done(struct publisher *p, struct stage_job *job, int err)
{
	bool last;

	mutex_lock(&p->lock);
	job->err = err;
	job->state = STAGE_DONE;
	last = --job->refs == 0;
	p->n_running--;
	pthread_cond_broadcast(&p->changed);
	mutex_unlock(&p->lock);
	if (last)
		job_free(job);
}

/* ---- attributes of what is staged ------------------------------------- */

static int add_xattr(void *arg, const char *name, const void *value, size_t len)
{
	return remote_attr_set_xattr(arg, name, value, len);
}

static struct remote_attr attr_of_rec(const struct inode_rec *rec)
{
	return (struct remote_attr){
		.mode = rec->mode,
		.uid = rec->uid,
		.gid = rec->gid,
		.mtime_ns = rec->mtime_ns,
		.size = S_ISREG(rec->mode) ? rec->size : 0,
	};
}

int attr_of(const struct view *v, const struct inode_rec *rec,
	    struct remote_attr *out)
{
	struct remote_attr a = attr_of_rec(rec);
	int err = view_xattrs(v, rec->ino, add_xattr, &a);

	if (err && err != -ENOENT) {
		remote_attr_fini(&a);
		return err;
	}
	*out = a;
	return 0;
}

int attr_of_seal(const struct view *v, const struct event *ev,
		 struct remote_attr *out)
{
	struct remote_attr a = attr_of_rec(&ev->rec);
	int err = event_xattrs(ev, add_xattr, &a);

	if (!err) {
		*out = a;
		return 0;
	}
	remote_attr_fini(&a);
	return err == -ENODATA ? attr_of(v, &ev->rec, out) : err;
}

/* ---- bytes ------------------------------------------------------------ */

/* A version without a record of its checksums gets them here. */
static int compute_crcs(int fd, struct remote_attr *a)
{
	CLEANUP(free_p) uint8_t *buf = malloc(CHUNK_LEN);
	const size_t n = (size_t)N_CHUNKS(a->size);
	CLEANUP(free_p) uint32_t *crcs = calloc(n ? n : 1, sizeof(*crcs));

	if (!buf || !crcs)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		uint64_t off = (uint64_t)i * CHUNK_LEN;
		size_t len = a->size - off < CHUNK_LEN ? (size_t)(a->size - off)
						       : CHUNK_LEN;
		int err = pread_all(fd, buf, len, off);

		if (err)
			return err;
		crcs[i] = crc32c(0, buf, len);
	}
	free(a->crcs);
	a->crcs = MOVE(crcs);
	a->n_chunks = (uint32_t)n;
	return 0;
}

static int take_crcs(int fd, struct copy_rec *copy, struct remote_attr *a)
{
	if (copy->verified && copy->size == a->size &&
	    copy->chunk_len == CHUNK_LEN &&
	    copy->n_chunks == N_CHUNKS(a->size)) {
		free(a->crcs);
		a->crcs = MOVE(copy->crcs);
		a->n_chunks = copy->n_chunks;
		copy->n_chunks = 0;
		return 0;
	}
	return compute_crcs(fd, a);
}

static int open_bytes(struct publisher *p, struct stage_job *job, bool slow,
		      int *fd)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	int err = version_open_bytes(p->e, job->version, slow, fd, &copy);

	if (!err && copy.version)
		job->attr.size = copy.size;
	if (!err)
		err = take_crcs(*fd, &copy, &job->attr);
	return err == -ENOENT ? PUB_GONE : err;
}

/* One try. *ours: the error is not the remote's. */
static int stage_once(struct publisher *p, struct stage_job *job, bool slow,
		      bool *ours)
{
	CLEANUP(close_p) int fd = -1;
	int err = open_bytes(p, job, slow, &fd);

	*ours = err != 0;
	if (!err)
		err = remote_enter(p);
	if (err)
		return err;
	return remote_leave(p, p->r->ops->stage(p->r, &job->attr, fd,
						&p->bytes_done));
}

/* Between two tries the bytes are not held: they may go meanwhile, and then
 * nobody wants them there. */
static int stage_from(struct publisher *p, struct stage_job *job, bool slow)
{
	struct attempt a = { .path = job->path };
	bool ours;
	int err;

	do {
		err = stage_once(p, job, slow, &ours);
	} while (!ours && attempt_again(p, &a, &err));
	if (ours)
		goes_on(p, &a);
	return err;
}

static int stage_bytes(struct publisher *p, struct stage_job *job)
{
	int err = stage_from(p, job, false);

	return err == -EBADMSG ? stage_from(p, job, true) : err;
}

/* Takes what the object says of its own bytes. */
static void take_found(struct stage_job *job, struct remote_attr *found)
{
	free(job->attr.crcs);
	job->attr.crcs = MOVE(found->crcs);
	job->attr.n_chunks = found->n_chunks;
	found->n_chunks = 0;
}

static int look_for_placed(struct publisher *p, struct stage_job *job)
{
	CLEANUP(remote_attr_fini) struct remote_attr found = { 0 };
	int err = ON_REMOTE(p, job->path,
			    p->r->ops->get_attr(p->r, job->path, &found));

	if (err == -ECANCELED)
		return err;
	if (err || strcmp(found.identity, job->attr.identity) != 0 ||
	    !remote_attr_verified(&found))
		return 0;
	take_found(job, &found);
	job->placed = true;
	return 0;
}

/* The bytes are on the remote already, under another name or staged. */
static int restage(struct publisher *p, struct stage_job *job)
{
	CLEANUP(remote_attr_fini) struct remote_attr found = { 0 };
	int err = ON_REMOTE(p, job->from,
			    p->r->ops->get_attr(p->r, job->from, &found));

	if (!err && found.size != job->attr.size)
		err = -ENOENT;
	if (!err)
		take_found(job, &found);
	return err ? err
		   : ON_REMOTE(p, job->path,
			       p->r->ops->restage(p->r, &job->attr, job->from));
}

/* Was on the remote: a step that a daemon died in may have come so far with
 * what was its only copy. */
static int find_staged(struct publisher *p, struct stage_job *job)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	struct remote_attr *a = &job->attr;
	int err = meta_copy(p->m, job->version, COPY_REMOTE, &copy);

	if (err)
		return err == -ENOENT ? PUB_GONE : err;
	err = ON_REMOTE(p, job->path, p->r->ops->restage(p->r, a, NULL));
	if (err)
		return is_unlike(err) ? PUB_GONE : err;
	if (copy.verified && copy.size == a->size) {
		free(a->crcs);
		a->crcs = MOVE(copy.crcs);
		a->n_chunks = copy.n_chunks;
		copy.n_chunks = 0;
	}
	return 0;
}

static int run(struct publisher *p, struct stage_job *job)
{
	int err = 0;

	if (job->repeated)
		err = look_for_placed(p, job);
	if (err || job->placed)
		return err;
	err = job->from ? restage(p, job) : -ENOENT;
	if (is_unlike(err))
		err = stage_bytes(p, job);
	return err == PUB_GONE ? find_staged(p, job) : err;
}

void *stager_main(void *arg)
{
	struct publisher *p = arg;
	struct stage_job *job;

	while ((job = job_take(p)))
		job_done(p, job, run(p, job));
	return NULL;
}
