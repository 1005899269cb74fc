/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a sealed version are: which copy an inode is read from,
 * fastest first; and the fetch of one that only the remote has.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/core.h"
#include "engine/fd_io.h"
#include "engine/restore.h"
#include "engine/version.h"
#include "metadata/log_message.h"

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

int attach_locked(struct engine *e, struct inode *in,
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

int finish_fetch_locked(struct engine *e, struct inode *in,
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
