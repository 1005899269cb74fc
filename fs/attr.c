/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes. A size is the engine's business (leases, seals); mode, owner
 * and times are one transaction with one event.
 */
#include <errno.h>

#include "fs/errand.h"
#include "fs/event.h"
#include "fs/hidden.h"

#define TIMES                                                                  \
	(FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_ATIME_NOW | \
	 FUSE_SET_ATTR_MTIME_NOW)
#define OWNERS (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)
#define KILLS (FUSE_SET_ATTR_KILL_SUID | FUSE_SET_ATTR_KILL_SGID)
#define CHANGES \
	(FUSE_SET_ATTR_MODE | OWNERS | TIMES | KILLS | FUSE_SET_ATTR_CTIME)

static void reply_attr(fuse_req_t req, uint64_t ino)
{
	struct inode_rec rec;
	struct stat st;
	bool keeps;
	int err = engine_stat(fs_of(req)->engine, ino, &rec, &keeps);

	if (err) {
		reply_result(req, err);
		return;
	}
	stat_of_rec(&rec, &st);
	fuse_reply_attr(req, &st, attr_keep_s(keeps));
}

void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st;
	int err;

	(void)fi;
	if (!ino_is_hidden(ino)) {
		reply_attr(req, ino);
		return;
	}
	err = hidden_stat(fs_of(req), ino, &st);
	if (err)
		reply_result(req, err);
	else
		fuse_reply_attr(req, &st,
				ino_is_tensor(ino) ? TENSOR_KEEP_S : KEEP_S);
}

struct attr_change {
	const struct stat *attr;
	int to_set;
	int64_t now;
};

static int64_t new_time(const struct attr_change *c, int set, int set_now,
			struct timespec ts, int64_t old)
{
	if (c->to_set & set_now)
		return c->now;
	return c->to_set & set ? ns_of_timespec(ts) : old;
}

static void apply(const struct attr_change *c, struct inode_rec *rec)
{
	if (c->to_set & FUSE_SET_ATTR_MODE)
		rec->mode = (rec->mode & S_IFMT) | (c->attr->st_mode & 07777);
	if (c->to_set & FUSE_SET_ATTR_UID)
		rec->uid = c->attr->st_uid;
	if (c->to_set & FUSE_SET_ATTR_GID)
		rec->gid = c->attr->st_gid;
	/* HANDLE_KILLPRIV_V2: always on chown, else when the kernel says. */
	if (c->to_set & (OWNERS | KILLS) && S_ISREG(rec->mode))
		rec->mode = mode_without_priv(rec->mode);
	rec->atime_ns = new_time(c, FUSE_SET_ATTR_ATIME,
				 FUSE_SET_ATTR_ATIME_NOW, c->attr->st_atim,
				 rec->atime_ns);
	rec->mtime_ns = new_time(c, FUSE_SET_ATTR_MTIME,
				 FUSE_SET_ATTR_MTIME_NOW, c->attr->st_mtim,
				 rec->mtime_ns);
	rec->ctime_ns = c->now;
}

static int commit_change(struct fs *fs, uint64_t ino,
			 const struct attr_change *c)
{
	struct event ev = { .kind = EVENT_SETATTR };
	struct txn *t = engine_txn_begin(fs->engine);
	struct inode_rec rec;
	uint64_t seq;
	int err = view_inode(fs->view, ino, &rec);

	if (!err) {
		apply(c, &rec);
		txn_put_inode(t, &rec);
		err = event_of_inode(fs, t, &ev, &rec);
	}
	if (err) {
		engine_txn_abort(fs->engine, t);
		return err;
	}
	return engine_txn_commit(fs->engine, t, &seq);
}

int inode_kill_set_id(struct fs *fs, uint64_t ino)
{
	static const struct stat nothing;
	struct attr_change c = { .attr = &nothing,
				 .to_set = FUSE_SET_ATTR_KILL_SUID,
				 .now = fs_now_ns() };
	struct inode_rec rec;
	int err = view_inode(fs->view, ino, &rec);

	if (err || !S_ISREG(rec.mode) ||
	    mode_without_priv(rec.mode) == rec.mode)
		return err;
	err = commit_change(fs, ino, &c);
	if (!err)
		attr_changed(fs, ino);
	return err;
}

static struct timespec backing_time(const struct attr_change *c, int set,
				    int set_now, struct timespec ts)
{
	if (c->to_set & set_now)
		return timespec_of_ns(c->now);
	if (c->to_set & set)
		return ts;
	return (struct timespec){ .tv_nsec = UTIME_OMIT };
}

/* Before the transaction: it may seal the file, with the times it has. */
static void tell_backing(struct fs *fs, uint64_t ino,
			 const struct attr_change *c)
{
	struct timespec ts[2] = {
		backing_time(c, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW,
			     c->attr->st_atim),
		backing_time(c, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW,
			     c->attr->st_mtim),
	};

	file_set_times(fs->engine, ino, ts);
}

static bool set_attr(const struct errand *w, bool patient)
{
	struct attr_change c = { .attr = &w->attr,
				 .to_set = w->flags,
				 .now = fs_now_ns() };
	struct fs *fs = fs_of(w->req);
	int err = 0;

	/* HANDLE_KILLPRIV_V2: these are ours to take, whoever asks. */
	if (c.to_set & (FUSE_SET_ATTR_SIZE | OWNERS | KILLS))
		err = inode_kill_caps(fs, w->ino);
	if (!err && c.to_set & FUSE_SET_ATTR_SIZE)
		err = file_truncate(fs->engine, w->ino, w->fi.fh,
				    (uint64_t)c.attr->st_size, patient);
	if (err == -EINPROGRESS)
		return false;
	if (!err && c.to_set & TIMES)
		tell_backing(fs, w->ino, &c);
	if (!err && c.to_set & CHANGES)
		err = commit_change(fs, w->ino, &c);
	if (err)
		reply_result(w->req, err);
	else
		reply_attr(w->req, w->ino);
	return true;
}

void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi)
{
	struct errand w = { .run = set_attr,
			    .req = req,
			    .ino = ino,
			    .attr = *attr,
			    .flags = to_set };

	if (fi)
		w.fi = *fi;
	if (ino_is_hidden(ino))
		reply_result(req, ino_is_tensor(ino) ? -EROFS : -EPERM);
	else
		errand_do(&w);
}

void op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st;
	int err = engine_statfs(fs_of(req)->engine, &st);

	(void)ino;
	if (err) {
		reply_result(req, err);
		return;
	}
	st.f_namemax = META_NAME_MAX;
	fuse_reply_statfs(req, &st);
}
