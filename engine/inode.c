/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of inodes in use: open, being written, or marked. A handle, a
 * mark and the watch of a written inode each hold a reference; with the last
 * one the entry goes, and the record of an orphan with it.
 *
 * All opens of one inode at one time share one backing file and one backing
 * id (DESIGN.md section 4.2): the id is registered with the first handle and
 * given back with the last.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

#define FH_WRITABLE 1u
#define FH_SYNC 4u
#define FH_BITS 8

static struct inode *find_locked(struct engine *e, uint64_t ino)
{
	struct inode *in;

	LIST_FOREACH(in, &e->inodes.by_ino[bucket_of(ino)], by_ino)
	if (in->ino == ino)
		return in;
	return NULL;
}

struct inode *inode_find(struct engine *e, uint64_t ino)
{
	struct inode *in;

	mutex_lock(&e->inodes.lock);
	in = find_locked(e, ino);
	if (in)
		in->refs++;
	mutex_unlock(&e->inodes.lock);
	return in;
}

static struct inode *inode_new(uint64_t ino)
{
	struct inode *in = calloc(1, sizeof(*in));

	if (!in)
		return NULL;
	in->ino = ino;
	in->refs = 1;
	in->ro_fd = in->rw_fd = -1;
	mutex_init(&in->lock);
	LIST_INIT(&in->handles);
	return in;
}

static void inode_free(struct inode *in)
{
	if (!in)
		return;
	mutex_fini(&in->lock);
	free(in);
}

int inode_get(struct engine *e, uint64_t ino, bool *fresh, struct inode **out)
{
	struct inode *spare = inode_new(ino);
	struct inode *in;

	if (!spare)
		return -ENOMEM;
	mutex_lock(&e->inodes.lock);
	in = find_locked(e, ino);
	*fresh = !in;
	if (in) {
		in->refs++;
	} else {
		in = MOVE(spare);
		LIST_INSERT_HEAD(&e->inodes.by_ino[bucket_of(ino)], in, by_ino);
		e->inodes.n++;
	}
	mutex_unlock(&e->inodes.lock);
	inode_free(spare);
	*out = in;
	return 0;
}

bool inode_set_orphan(struct engine *e, uint64_t ino, bool orphan)
{
	struct inode *in;

	mutex_lock(&e->inodes.lock);
	in = find_locked(e, ino);
	if (in)
		in->orphan = orphan;
	mutex_unlock(&e->inodes.lock);
	return in != NULL;
}

/* The last reference of an orphan is gone: so is its record. */
static void orphan_gone(struct engine *e, uint64_t ino)
{
	struct txn *t = txn_begin(e->meta);
	struct inode_rec rec;
	uint64_t seq;
	int r;

	if (view_inode(meta_accepted(e->meta), ino, &rec) || rec.nlink) {
		txn_abort(t);
		return;
	}
	txn_frees(t);
	drop_version(e, t, rec.version);
	txn_del_inode(t, &rec);
	txn_del_orphan(t, ino);
	txn_del_unsealed(t, ino);
	r = commit_and_drop(e, t, &seq);
	if (r < 0)
		message_error("cannot forget unlinked inode %lu: %s",
			      (unsigned long)ino, strerror(-r));
}

void inode_put(struct engine *e, struct inode *in)
{
	bool last;

	if (!in)
		return;
	mutex_lock(&e->inodes.lock);
	last = --in->refs == 0;
	if (last) {
		LIST_REMOVE(in, by_ino);
		e->inodes.n--;
	}
	mutex_unlock(&e->inodes.lock);
	if (!last)
		return;
	mutex_lock(&in->lock);
	inode_detach_locked(e, in);
	mutex_unlock(&in->lock);
	if (in->orphan)
		orphan_gone(e, in->ino);
	inode_free(in);
}

int opened_dir_hold(struct engine *e, uint64_t ino)
{
	struct inode *in;
	bool fresh;

	return inode_get(e, ino, &fresh, &in);
}

void opened_dir_drop(struct engine *e, uint64_t ino)
{
	struct inode *in = inode_find(e, ino);

	if (!in)
		return;
	inode_put(e, in); /* the one that opened_dir_hold() took */
	inode_put(e, in);
}

/* ---- handles ---------------------------------------------------------- */

bool fh_writable(uint64_t fh)
{
	return fh & FH_WRITABLE;
}

bool file_is_writable(uint64_t fh)
{
	return fh_writable(fh);
}

bool file_is_sync(uint64_t fh)
{
	return fh & FH_SYNC;
}

static uint64_t fh_flags(int flags)
{
	uint64_t bits = 0;

	/* O_RDONLY|O_TRUNC changes the content, too. */
	if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)
		bits |= FH_WRITABLE;
	if (flags & (O_SYNC | O_DSYNC))
		bits |= FH_SYNC;
	return bits;
}

static void register_backing(struct engine *e, struct inode *in)
{
	int r;

	if (!e->passthrough || in->fetch) {
		in->served = true;
		return;
	}
	r = e->hooks.open(e->hooks.arg, in->ro_fd, &in->backing_id);
	if (r < 0) {
		message_warning("file served, not passed through: cannot "
				"register its backing file: %s",
				strerror(-r));
		in->served = true;
		in->backing_id = 0;
	}
}

int handle_new(struct handle **out)
{
	int r = FAULT("open.handle", -ENOMEM);

	if (r < 0)
		return r;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

void handle_add_locked(struct engine *e, struct inode *in, int flags,
		       struct handle *h)
{
	if (in->n_handles == 0) {
		register_backing(e, in);
		e->n_open++;
	}
	mutex_lock(&e->inodes.lock);
	h->fh = ++e->inodes.next_fh << FH_BITS | fh_flags(flags);
	in->refs++;
	mutex_unlock(&e->inodes.lock);
	LIST_INSERT_HEAD(&in->handles, h, next);
	in->n_handles++;
	if (fh_writable(h->fh)) {
		in->n_writers++;
		in->n_unflushed++;
	}
}

struct handle *handle_find_locked(struct inode *in, uint64_t fh)
{
	struct handle *h;

	LIST_FOREACH(h, &in->handles, next)
	if (h->fh == fh)
		return h;
	return NULL;
}

/* ---- the backing file ------------------------------------------------- */

static void unregister(struct engine *e, struct inode *in)
{
	if (in->backing_id > 0)
		e->hooks.close(e->hooks.arg, in->backing_id);
	in->backing_id = 0;
	in->served = false;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The last handle has gone (or there is none): io mode and id are free. */
static void last_handle_gone_locked(struct engine *e, struct inode *in)
{
	unregister(e, in);
	close_fd(&in->rw_fd);
}

void inode_detach_locked(struct engine *e, struct inode *in)
{
	last_handle_gone_locked(e, in);
	close_fd(&in->ro_fd);
	if (in->fetch)
		fetch_put(in->fetch);
	in->fetch = NULL;
	backing_put(e, in->backing);
	in->backing = NULL;
}

/* Takes over the reference on b, also on failure. */
int inode_use_backing_locked(struct engine *e, struct inode *in,
			     struct backing *b)
{
	struct tier *t = backing_tier(e, b->where);
	int fd, r;

	r = t->ops->open(t, b->id, O_RDONLY, &fd);
	if (r < 0) {
		backing_put(e, b);
		return r;
	}
	inode_detach_locked(e, in);
	in->backing = b;
	in->ro_fd = fd;
	return 0;
}

void file_release(struct engine *e, uint64_t ino, uint64_t fh)
{
	struct inode *in = inode_find(e, ino);
	struct handle *h;
	bool mark = false, last = false;

	if (!in)
		return;
	mutex_lock(&in->lock);
	h = handle_find_locked(in, fh);
	if (h) {
		LIST_REMOVE(h, next);
		in->n_handles--;
		if (fh_writable(fh)) {
			in->n_writers--;
			if (!h->flushed)
				in->n_unflushed--;
			/* One that was flushed has had its mark; the last
			 * one of all may make the seal final. */
			last = in->n_writers == 0;
			mark = in->written && (!h->flushed || last);
		}
		if (in->n_handles == 0) {
			last_handle_gone_locked(e, in);
			e->n_open--;
		}
	}
	mutex_unlock(&in->lock);
	if (mark)
		mark_add(e, in);
	if (h)
		inode_put(e, in); /* the handle's */
	free(h);
	inode_put(e, in);
}

int file_flush(struct engine *e, uint64_t ino, uint64_t fh)
{
	struct inode *in = inode_find(e, ino);
	struct handle *h;
	struct look now = { 0 };
	bool mark = false;
	int r = 0;

	if (!in)
		return 0;
	mutex_lock(&in->lock);
	h = handle_find_locked(in, fh);
	if (h && fh_writable(fh)) {
		if (!h->flushed)
			in->n_unflushed--;
		h->flushed = true;
		mark = in->written;
	}
	if (h && fh_writable(fh)) { /* it is the writer's to know */
		r = in->error;
		in->error = 0;
	}
	/* What close accepts has its room, whoever fills the disk. */
	if (mark && r == 0 && in->ro_fd >= 0 && !look_at(in, &now) &&
	    !look_same(&in->sealed, &now))
		r = lease_nvme_locked(e, in, now.size);
	mutex_unlock(&in->lock);
	if (mark)
		mark_add(e, in);
	inode_put(e, in);
	return r;
}

/* ---- the watch: inodes being written ---------------------------------- */

void watch_add(struct engine *e, struct inode *in)
{
	bool added = false;

	mutex_lock(&e->watch.lock);
	if (!in->in_watch) {
		TAILQ_INSERT_TAIL(&e->watch.list, in, watched);
		in->in_watch = added = true;
		if (e->watch.asleep)
			pthread_cond_signal(&e->watch.added);
		e->watch.asleep = false;
	}
	mutex_unlock(&e->watch.lock);
	if (!added)
		return;
	e->n_unsealed++;
	mutex_lock(&e->inodes.lock);
	in->refs++;
	mutex_unlock(&e->inodes.lock);
}

void watch_remove(struct engine *e, struct inode *in)
{
	bool removed = false;

	mutex_lock(&e->watch.lock);
	if (in->in_watch) {
		TAILQ_REMOVE(&e->watch.list, in, watched);
		in->in_watch = false;
		removed = true;
	}
	mutex_unlock(&e->watch.lock);
	if (!removed)
		return;
	e->n_unsealed--;
	mutex_lock(&e->inodes.lock);
	in->refs--; /* the caller has one of its own */
	mutex_unlock(&e->inodes.lock);
}

unsigned watch_take(struct engine *e, struct inode **batch, unsigned max)
{
	struct inode *in;
	unsigned n = 0;

	mutex_lock(&e->watch.lock);
	while (n < max && (in = TAILQ_FIRST(&e->watch.list))) {
		if (n && in == batch[0])
			break;
		TAILQ_REMOVE(&e->watch.list, in, watched);
		TAILQ_INSERT_TAIL(&e->watch.list, in, watched);
		batch[n++] = in;
	}
	mutex_lock(&e->inodes.lock);
	for (unsigned i = 0; i < n; i++)
		batch[i]->refs++;
	mutex_unlock(&e->inodes.lock);
	mutex_unlock(&e->watch.lock);
	return n;
}
