/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening files: from which tier a sealed version is read, and how an inode
 * becomes writable without touching its sealed content (DESIGN.md 4.3, 4.5).
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
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/fd_io.h"
#include "engine/version.h"
#include "metadata/log_message.h"

#define CHARGE_FIRST (UINT64_C(64) << 10) /* of a file of unknown size */
#define NVME_MARGIN (UINT64_C(16) << 20)
#define ROOM_FRESH_NS INT64_C(20000000)

/* ---- room ------------------------------------------------------------- */

int nvme_has_room(struct engine *e, uint64_t want)
{
	int64_t now = now_mono_ns();
	struct tier_room room;
	uint64_t margin;

	/* What was room a moment ago is the database's, once it has given up
	 * its reserve. */
	if (now - e->room_checked_ns > ROOM_FRESH_NS ||
	    !meta_reserve_held(e->meta)) {
		int r = e->nvme->ops->room(e->nvme, &room);

		if (r < 0)
			return r;
		margin = room.total / 16;
		if (margin > NVME_MARGIN)
			margin = NVME_MARGIN;
		e->nvme_avail = room.avail > margin ? room.avail - margin : 0;
		/* What is left of the database's reserve is for what was
		 * accepted. */
		if (!meta_reserve_hold(e->meta))
			e->nvme_avail = 0;
		e->room_checked_ns = now;
	}
	return e->nvme_avail > want ? 0 : -ENOSPC;
}

static uint64_t dram_free(struct engine *e)
{
	struct reserve_state rs;

	reserve_state(e->reserve, &rs);
	rs.charged += rs.promised;
	return rs.limit > rs.charged ? rs.limit - rs.charged : 0;
}

/* Is DRAM amply free for a file of which only `want` bytes are known? */
static bool dram_is_ample(struct engine *e, uint64_t want)
{
	uint64_t ample = e->config.dram / 8, free_len = dram_free(e);

	if (want > ample)
		ample = want;
	if (free_len < ample && backings_tidy(e))
		free_len = dram_free(e);
	return free_len >= ample || dram_evict(e, ample - free_len) == 0;
}

int choose_backing(struct engine *e, uint64_t want, int flags,
		   struct backing **out, int *fd)
{
	uint64_t charge = want > CHARGE_FIRST ? want : CHARGE_FIRST;
	int r;

	if (dram_is_ample(e, want) && dram_take(e, charge) == 0) {
		r = backing_create(e, BACKING_DRAM, charge, flags, out, fd);
		if (r == 0)
			return 0;
		reserve_give(e->reserve, charge);
		if (r != -ENOSPC)
			return r;
	}
	e->n_spilled++;
	return backing_create(e, BACKING_NVME, 0, flags, out, fd);
}

/* For a file that will be `len` bytes long: promised to it in DRAM, or
 * spilled. */
static int choose_expected(struct engine *e, uint64_t len, int flags,
			   struct backing **out, int *fd)
{
	int r;

	if (len <= e->config.dram && dram_is_ample(e, len) &&
	    dram_promise(e, len) == 0) {
		r = backing_create(e, BACKING_DRAM, 0, flags, out, fd);
		if (r == 0) {
			(*out)->promised = len; /* nobody else has it yet */
			(*out)->expected = true;
			return 0;
		}
		reserve_forgo(e->reserve, len);
		if (r != -ENOSPC)
			return r;
	}
	e->n_spilled++;
	return backing_create(e, BACKING_NVME, 0, flags, out, fd);
}

/* ---- finding the bytes of a sealed version ---------------------------- */

static int promote_small(struct engine *e, struct inode *in, uint64_t version,
			 const void *data, size_t len, bool recorded)
	MUST_HOLD(in->lock);
static int promote_small(struct engine *e, struct inode *in, uint64_t version,
			 const void *data, size_t len, bool recorded)
{
	CLEANUP(close_p) int fd = -1;
	struct backing *b;
	int r;

	r = choose_backing(e, len, O_RDWR, &b, &fd);
	if (r < 0)
		return r;
	r = pwrite_all(fd, data, len, 0);
	if (r < 0) {
		backing_put(e, b);
		return r;
	}
	if (recorded && b->where == BACKING_DRAM) {
		backing_set_version(e, b, version);
		backing_recorded(e, version, 0);
	}
	return inode_use_backing_locked(e, in, b);
}

static int promote_recorded_small(struct engine *e, struct inode *in,
				  const struct copy_rec *c) MUST_HOLD(in->lock);
static int promote_recorded_small(struct engine *e, struct inode *in,
				  const struct copy_rec *c)
{
	CLEANUP(free_p) void *data = NULL;
	size_t len;
	int r;

	r = meta_small(e->meta, c->version, &data, &len);
	if (r < 0)
		return r;
	if (len != c->size)
		return -EUCLEAN;
	if (c->n_chunks && crc32c(0, data, len) != c->crcs[0])
		return -EBADMSG;
	return promote_small(e, in, c->version, data, len, true);
}

static int use_nvme_copy(struct engine *e, struct inode *in,
			 const struct copy_rec *c) MUST_HOLD(in->lock);
static int use_nvme_copy(struct engine *e, struct inode *in,
			 const struct copy_rec *c)
{
	struct backing *b;

	if (c->kind == COPY_SMALL)
		return promote_recorded_small(e, in, c);
	b = backing_adopt(e, c->file, BACKING_NVME, c->version, 0);
	if (!b)
		return -ENOMEM;
	backing_recorded(e, c->version, c->file);
	return inode_use_backing_locked(e, in, b);
}

/* ---- remote-only ------------------------------------------------------ */

struct fetched {
	struct engine *e;
	uint64_t file;
	struct copy_rec copy;
};

/* All of a version has arrived: it has an NVMe copy from now on. */
static int fetch_done(void *arg, int err, const uint32_t *crcs)
{
	struct fetched *f = arg;
	struct engine *e = f->e;
	struct copy_rec c = f->copy;
	struct version_rec rec;

	if (!err && !view_version(meta_accepted(e->meta), c.version, &rec)) {
		c.tier = COPY_NVME;
		c.kind = COPY_FILE;
		c.file = f->file;
		c.chunk_len = CHUNK_LEN;
		c.n_chunks = (uint32_t)N_CHUNKS(c.size);
		c.crcs = (uint32_t *)crcs; /* borrowed for the call */
		c.verified = true;
		err = e->nvme->ops->sync_names(e->nvme);
		if (!err)
			err = meta_put_copy(e->meta, &c, true);
		e->n_fetched += !err;
	} else if (!err) {
		(void)!e->nvme->ops->remove(e->nvme, f->file);
	}
	if (err)
		message_error("cannot fetch version %016lx: %s",
			      (unsigned long)c.version, strerror(-err));
	free(f);
	return err;
}

static int start_fetch(struct engine *e, struct inode *in,
		       const struct copy_rec *c) MUST_HOLD(in->lock);
static int start_fetch(struct engine *e, struct inode *in,
		       const struct copy_rec *c)
{
	char path[META_PATH_MAX];
	struct fetched *f;
	struct fetch_config config = {
		.path = path, .copy = *c, .dst = e->nvme, .done = fetch_done
	};
	int r;

	if (!e->fetcher)
		return -EIO;
	r = view_path(meta_accepted(e->meta), in->ino, path);
	if (r < 0)
		path[0] = 0;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	config.dst_id = meta_new_version(e->meta);
	config.arg = f;
	*f = (struct fetched){ .e = e, .file = config.dst_id, .copy = *c };
	f->copy.crcs = NULL;
	r = fetch_start(e->fetcher, &config, &in->fetch);
	if (r < 0 || fetch_dst_id(in->fetch) != config.dst_id)
		free(f);
	return r;
}

/* The inode has no content at hand: find its sealed version's. */
static int attach_locked(struct engine *e, struct inode *in,
			 const struct inode_rec *rec) MUST_HOLD(in->lock);
static int attach_locked(struct engine *e, struct inode *in,
			 const struct inode_rec *rec)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	CLEANUP(free_p) void *small = NULL;
	struct backing *b;
	size_t len;
	int r;

	if (!rec->version)
		return promote_small(e, in, 0, "", 0, false);
	b = backing_of_version(e, rec->version);
	if (b)
		return inode_use_backing_locked(e, in, b);
	if (!version_small(e, rec->version, &small, &len))
		return promote_small(e, in, rec->version, small, len, false);
	/* In this order: once it is recorded it is not among those. */
	if (!version_flushed(e, rec->version, &copy))
		return use_nvme_copy(e, in, &copy);
	r = meta_copy(e->meta, rec->version, COPY_NVME, &copy);
	if (!r)
		return use_nvme_copy(e, in, &copy);
	if (r != -ENOENT)
		return r;
	r = meta_copy(e->meta, rec->version, COPY_REMOTE, &copy);
	if (!r)
		return start_fetch(e, in, &copy);
	return r == -ENOENT ? -EIO : r;
}

/* A fetched file that is to be written: as an NVMe copy. -EAGAIN: not all of
 * it has arrived. */
static int finish_fetch_locked(struct engine *e, struct inode *in,
			       const struct inode_rec *rec) MUST_HOLD(in->lock);
static int finish_fetch_locked(struct engine *e, struct inode *in,
			       const struct inode_rec *rec)
{
	CLEANUP(copy_rec_fini) struct copy_rec copy = { 0 };
	struct backing *b;
	int r;

	r = fetch_result(in->fetch);
	if (r == 0)
		r = meta_copy(e->meta, rec->version, COPY_NVME, &copy);
	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	b = backing_adopt(e, copy.file, BACKING_NVME, copy.version, 0);
	if (!b)
		return -ENOMEM;
	backing_recorded(e, copy.version, copy.file);
	if (in->n_handles == 0)
		return inode_use_backing_locked(e, in, b);
	in->backing = b;
	return e->nvme->ops->open(e->nvme, b->id, O_RDONLY, &in->ro_fd);
}

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
		if (in->n_handles == 0)
			inode_detach_locked(e, in);
		return r;
	}
	inode_begin_write_locked(e, in);
	if (trunc)
		return 0;
	ts[0] = (struct timespec){ rec->atime_ns / 1000000000,
				   rec->atime_ns % 1000000000 };
	ts[1] = (struct timespec){ rec->mtime_ns / 1000000000,
				   rec->mtime_ns % 1000000000 };
	inode_set_times_locked(in, ts);
	return look_at(in, &in->sealed);
}

static int open_locked(struct engine *e, struct inode *in, int flags,
		       struct open_reply *out, uint64_t *wait_for)
	MUST_HOLD(in->lock);
static int open_locked(struct engine *e, struct inode *in, int flags,
		       struct open_reply *out, uint64_t *wait_for)
{
	bool writable = (flags & O_ACCMODE) != O_RDONLY;
	bool trunc = flags & O_TRUNC;
	struct inode_rec rec;
	int r;

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
	r = handle_add_locked(e, in, flags, &out->fh);
	if (r < 0)
		return r;
	out->backing_id = in->served ? 0 : in->backing_id;
	out->direct_io = in->served || file_is_sync(out->fh);
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
			    uint64_t version)
{
	struct fetch *f = NULL;
	int r;

	mutex_lock(&in->lock);
	if (in->fetch)
		f = fetch_get(in->fetch);
	mutex_unlock(&in->lock);
	if (!f)
		return version_wait_flushed(e, version);
	r = fetch_wait_ended(f);
	fetch_put(f);
	return r;
}

int file_open(struct engine *e, uint64_t ino, int flags, struct open_reply *out)
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
		r = wait_for_content(e, in, wait_for);
		if (r < 0)
			break;
	}
	inode_put(e, in);
	return r;
}

/* ---- new files -------------------------------------------------------- */

static int choose_new(struct engine *e, uint64_t expected, int flags,
		      struct backing **out, int *fd)
{
	return expected > CHARGE_FIRST
		       ? choose_expected(e, expected, flags, out, fd)
		       : choose_backing(e, 0, flags, out, fd);
}

/* One descriptor will do where the kernel writes through it, though it is
 * read-only; a served file needs one of each kind. */
static int new_backing(struct engine *e, struct inode *in, uint64_t expected)
	MUST_HOLD(in->lock);
static int new_backing(struct engine *e, struct inode *in, uint64_t expected)
{
	struct backing *b;
	int fd, r;

	if (e->passthrough)
		return choose_new(e, expected, O_RDONLY, &in->backing,
				  &in->ro_fd);
	r = choose_new(e, expected, O_RDWR, &b, &fd);
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
	int r;

	r = new_backing(e, in, expected);
	if (r < 0)
		return r;
	/* A new file needs its first seal, however it was opened. */
	inode_begin_write_locked(e, in);
	in->rdwr = (flags & O_ACCMODE) == O_RDWR;
	r = handle_add_locked(e, in, flags, &out->fh);
	if (r < 0)
		return r;
	out->backing_id = in->served ? 0 : in->backing_id;
	out->direct_io = in->served || file_is_sync(out->fh);
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
