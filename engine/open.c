/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening files: how an inode becomes writable without touching its sealed
 * content (DESIGN.md sections 4.3, 4.5).
 *
 * A sealed version that is opened for writing gets
 *   - a fresh backing file, if nobody holds the inode and its content is not
 *     wanted (O_TRUNC), short, or on NVMe;
 *   - else its own backing file in place, after the sealed content has a copy
 *     of its own elsewhere. For that its flush may have to be waited for;
 *     no lock is held meanwhile, only opens of that inode wait.
 * Before the OPEN is answered, the accepted database says that the inode is
 * unsealed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "engine/core.h"
#include "engine/version.h"

/* ---- becoming writable ------------------------------------------------ */

int inode_log_unsealed_locked(struct engine *e, struct inode *in, uint64_t base)
{
	struct unsealed_rec u = { .ino = in->ino,
				  .backing = in->backing->id,
				  .where = in->backing->where,
				  .base = base };
	struct txn *t = txn_begin(e->meta);
	uint64_t seq;

	txn_put_unsealed(t, &u);
	return txn_commit(t, &seq);
}

void inode_begin_write_locked(struct engine *e, struct inode *in)
{
	in->next_version = meta_new_version(e->meta);
	in->nvme_room = 0;
	in->streamed = false;
	in->lease_size = 0;
	in->written = true;
	in->sealed.valid = false;
	in->mark.valid = false;
	in->snapshot_ns = now_mono_ns();
	watch_add(e, in);
}

/* A fresh backing file, with the version's content up to copy_len. -EBADMSG:
 * that is not what was sealed. */
static int fresh_backing(struct engine *e, struct inode *in, uint64_t version,
			 uint64_t copy_len) MUST_HOLD(in->lock);
static int fresh_backing(struct engine *e, struct inode *in, uint64_t version,
			 uint64_t copy_len)
{
	CLEANUP(free_p) uint32_t *crcs = NULL;
	CLEANUP(close_p) int fd = -1;
	struct backing *b;
	int r;

	r = choose_backing(e, copy_len, O_RDWR, &b, &fd);
	if (r < 0)
		return r;
	/* Not known yet: of bytes that never left DRAM. */
	if (copy_len && version_crcs(e, version, copy_len, &crcs))
		crcs = NULL;
	if (copy_len)
		r = copy_content(in->ro_fd, fd, copy_len, crcs);
	if (r < 0) {
		backing_put(e, b);
		return r;
	}
	return inode_use_backing_locked(e, in, b);
}

static int move_to_writable(struct engine *e, struct inode *in,
			    const struct inode_rec *rec, bool trunc)
	MUST_HOLD(in->lock);
static int move_to_writable(struct engine *e, struct inode *in,
			    const struct inode_rec *rec, bool trunc)
{
	bool held = in->n_handles > 0;
	bool nvme;
	int r;

	if (!held && (trunc || rec->size == 0))
		return fresh_backing(e, in, 0, 0);
	if (in->fetch) {
		r = finish_fetch_locked(e, in, rec);
		if (r < 0)
			return r;
	}
	if (!in->backing)
		return -EIO;
	nvme = in->backing->where == BACKING_NVME;
	if (!held && (nvme || rec->size < COPY_BELOW))
		return fresh_backing(e, in, rec->version, rec->size);
	r = version_preserve(e, rec->version, in->backing);
	if (r < 0)
		return r;
	backing_set_version(e, in->backing, 0);
	return 0;
}

static int prepare_write_locked(struct engine *e, struct inode *in,
				struct inode_rec *rec, bool trunc,
				uint64_t *wait_for) MUST_HOLD(in->lock);
static int prepare_write_locked(struct engine *e, struct inode *in,
				struct inode_rec *rec, bool trunc,
				uint64_t *wait_for)
{
	struct timespec ts[2];
	int r;

	if (in->written && in->n_unflushed == 0) {
		/* Closed, but its mark is not settled yet: what was closed is
		 * a version, whatever is written from now on. */
		r = settle_closed_locked(e, in);
		if (r == 0)
			r = view_inode(meta_accepted(e->meta), in->ino, rec);
		if (r < 0)
			return r;
		*wait_for = rec->version;
	}
	if (in->written) {
		/* A snapshot of it may not be flushed yet. */
		return in->backing && in->backing->version == rec->version
			       ? version_preserve(e, rec->version, in->backing)
			       : 0;
	}
	r = nvme_has_room(e, 0);
	if (r < 0)
		return r;
	r = move_to_writable(e, in, rec, trunc);
	if (r < 0)
		return r;
	r = inode_log_unsealed_locked(e, in, rec->version);
	if (r < 0) {
		if (rec->version && in->backing)
			version_take_back(e, rec->version, in->backing);
		if (in->n_handles == 0)
			inode_detach_locked(e, in);
		return r;
	}
	inode_begin_write_locked(e, in);
	if (trunc)
		return 0;
	ts[0] = timespec_of_ns(rec->atime_ns);
	ts[1] = timespec_of_ns(rec->mtime_ns);
	inode_set_times_locked(in, ts);
	return look_at(in, &in->sealed);
}

static void add_handle_locked(struct engine *e, struct inode *in, int flags,
			      struct handle *h, struct open_reply *out)
	MUST_HOLD(in->lock);
static void add_handle_locked(struct engine *e, struct inode *in, int flags,
			      struct handle *h, struct open_reply *out)
{
	handle_add_locked(e, in, flags, h);
	out->fh = h->fh;
	out->backing_id = in->served ? 0 : in->backing_id;
	out->direct_io = in->served || file_is_sync(out->fh);
}

static int open_locked(struct engine *e, struct inode *in, int flags,
		       struct open_reply *out, uint64_t *wait_for)
	MUST_HOLD(in->lock);
static int open_locked(struct engine *e, struct inode *in, int flags,
		       struct open_reply *out, uint64_t *wait_for)
{
	CLEANUP(free_p) struct handle *h = NULL;
	bool writable = (flags & O_ACCMODE) != O_RDONLY;
	bool trunc = flags & O_TRUNC;
	struct inode_rec rec;
	int r;

	r = handle_new(&h);
	if (r < 0)
		return r;
	r = view_inode(meta_accepted(e->meta), in->ino, &rec);
	if (r < 0)
		return r == -ENOENT ? -ESTALE : r;
	*wait_for = rec.version;
	if (!in->backing && !in->fetch) {
		r = attach_locked(e, in, &rec);
		if (r < 0)
			return r;
	}
	if (writable || trunc) {
		bool fresh = !in->written && in->n_handles == 0;

		r = prepare_write_locked(e, in, &rec, trunc, wait_for);
		if (r == 0 && trunc && !fresh)
			r = inode_truncate_locked(e, in, 0);
		if (r < 0)
			return r;
		in->rdwr |= (flags & O_ACCMODE) == O_RDWR;
	}
	add_handle_locked(e, in, flags, MOVE(h), out);
	return 0;
}

/* Whoever drops the last name of ino either sees our entry, or has committed
 * by the time we have been through the door. */
static void pass_the_door(struct engine *e)
{
	txn_abort(txn_begin(e->meta));
}

/* Until the sealed content of in is somewhere else than where it would be
 * written. */
static int wait_for_content(struct engine *e, struct inode *in,
			    uint64_t version, bool patient)
{
	struct fetch *f = NULL;
	int r;

	mutex_lock(&in->lock);
	if (in->fetch)
		f = fetch_get(in->fetch);
	mutex_unlock(&in->lock);
	if (!f)
		return version_wait_flushed(e, version);
	r = fetch_wait_ended(f, patient);
	fetch_put(f);
	return r;
}

int file_open(struct engine *e, uint64_t ino, int flags, bool patient,
	      struct open_reply *out)
{
	struct inode *in;
	uint64_t wait_for = 0;
	bool fresh;
	int r = 0;

	/* What was closed before is sealed before what is written from now
	 * on, also if we die before either has its seal. */
	if ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)
		r = settle(e);
	if (r < 0)
		return r;
	r = inode_get(e, ino, &fresh, &in);
	if (r < 0)
		return r;
	if (fresh)
		pass_the_door(e);
	for (;;) {
		mutex_lock(&in->lock);
		r = open_locked(e, in, flags, out, &wait_for);
		mutex_unlock(&in->lock);
		if (r != -EAGAIN)
			break;
		r = wait_for_content(e, in, wait_for, patient);
		if (r < 0)
			break;
	}
	inode_put(e, in);
	return r;
}

/* ---- new files -------------------------------------------------------- */

/* One descriptor will do where the kernel writes through it, though it is
 * read-only; a served file needs one of each kind. */
static int new_backing(struct engine *e, struct inode *in, uint64_t expected)
	MUST_HOLD(in->lock);
static int new_backing(struct engine *e, struct inode *in, uint64_t expected)
{
	struct backing *b;
	int fd, r;

	if (e->passthrough)
		return choose_for_new(e, expected, O_RDONLY, &in->backing,
				      &in->ro_fd);
	r = choose_for_new(e, expected, O_RDWR, &b, &fd);
	if (r < 0)
		return r;
	r = inode_use_backing_locked(e, in, b);
	if (r < 0)
		close(fd);
	else
		in->rw_fd = fd;
	return r;
}

static int create_locked(struct engine *e, struct inode *in, int flags,
			 uint64_t expected, struct open_reply *out)
	MUST_HOLD(in->lock);
static int create_locked(struct engine *e, struct inode *in, int flags,
			 uint64_t expected, struct open_reply *out)
{
	struct handle *h;
	int r = handle_new(&h);

	if (r < 0)
		return r;
	r = new_backing(e, in, expected);
	if (r < 0) {
		free(h);
		return r;
	}
	/* A new file needs its first seal, however it was opened. */
	inode_begin_write_locked(e, in);
	in->rdwr = (flags & O_ACCMODE) == O_RDWR;
	add_handle_locked(e, in, flags, h, out);
	return 0;
}

static void cancel_write(struct engine *e, struct inode *in)
{
	mutex_lock(&in->lock);
	in->written = false;
	lease_drop_nvme_locked(e, in);
	watch_remove(e, in);
	mutex_unlock(&in->lock);
}

int file_create(struct engine *e, uint64_t ino, int flags, uint64_t expected,
		struct open_reply *out)
{
	struct inode *in;
	bool fresh;
	int r;

	r = nvme_has_room(e, 0);
	if (r < 0)
		return r;
	r = inode_get(e, ino, &fresh, &in);
	if (r < 0)
		return r;
	mutex_lock(&in->lock);
	r = create_locked(e, in, flags, expected, out);
	mutex_unlock(&in->lock);
	if (r < 0)
		cancel_write(e, in);
	inode_put(e, in);
	return r;
}

void file_log_create(struct engine *e, struct txn *t, uint64_t ino)
{
	struct inode *in = inode_find(e, ino);
	struct unsealed_rec u = { .ino = ino };

	if (!in)
		return;
	/* Set by file_create() in this thread, and nobody else knows ino. */
	u.backing = in->backing->id;
	u.where = in->backing->where;
	txn_put_unsealed(t, &u);
	mutex_lock(&e->inodes.lock);
	in->refs--; /* the handle has one */
	mutex_unlock(&e->inodes.lock);
}

void file_cancel(struct engine *e, uint64_t ino, uint64_t fh)
{
	struct inode *in = inode_find(e, ino);

	if (!in)
		return;
	cancel_write(e, in);
	file_release(e, ino, fh);
	inode_put(e, in);
}
