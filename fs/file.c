/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open files: what the kernel still asks for when reads and writes pass it
 * by. fsync is answered from the engine's callback, never by a thread that
 * waits: a held request costs nothing, a held thread does.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fs/errand.h"
#include "fs/hidden.h"
#include "fs/passthrough.h"

void fill_open(struct fuse_file_info *fi, const struct open_reply *o)
{
	fi->fh = o->fh;
	fi->keep_cache = 0;
	fi->direct_io = o->direct_io;
	passthrough_fill_open(fi, o->backing_id, o->direct_io);
}

/*
 * Earlier than POSIX asks (at the first write), but a passthrough write never
 * comes here, and libfuse does not hand FUSE_WRITE_KILL_SUIDGID on.
 */
int open_kills_priv(struct fs *fs, uint64_t ino, int flags, uid_t uid)
{
	int err;

	if ((flags & O_ACCMODE) == O_RDONLY)
		return 0;
	err = inode_kill_caps(fs, ino);
	return err || uid == 0 ? err : inode_kill_set_id(fs, ino);
}

static bool open_file(const struct errand *w, bool patient)
{
	struct fuse_file_info fi = w->fi;
	struct fs *fs = fs_of(w->req);
	struct open_reply o;
	int err = open_kills_priv(fs, w->ino, fi.flags,
				  fuse_req_ctx(w->req)->uid);

	if (!err)
		err = file_open(fs->engine, w->ino, fi.flags, patient, &o);
	if (err == -EINPROGRESS)
		return false;
	if (err) {
		reply_result(w->req, err);
		return true;
	}
	fill_open(&fi, &o);
	/* From now on stores may change it; what the kernel keeps is older. */
	if (o.backing_id > 0 && (fi.flags & O_ACCMODE) == O_RDWR)
		attr_changed(fs, w->ino);
	/* -ENOENT: interrupted, the kernel will not release it. */
	if (fuse_reply_open(w->req, &fi))
		file_release(fs->engine, w->ino, o.fh);
	return true;
}

void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (ino_is_hidden(ino))
		hidden_open(req, ino, fi);
	else
		errand_do(&(struct errand){
			.run = open_file, .req = req, .ino = ino, .fi = *fi });
}

void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	int err = 0;

	if (!ino_is_hidden(ino))
		err = file_flush(fs_of(req)->engine, ino, fi->fh);
	reply_result(req, err);
}

void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (ino_is_hidden(ino)) {
		hidden_release(req, ino, fi);
		return;
	}
	file_release(fs_of(req)->engine, ino, fi->fh);
	reply_result(req, 0);
}

static void fsync_done(void *arg, int err)
{
	reply_result(arg, err);
}

static void sync_ino(fuse_req_t req, uint64_t ino)
{
	struct engine *e = fs_of(req)->engine;

	if (ino_is_hidden(ino))
		reply_result(req, 0);
	else
		engine_fsync(e, ino, engine_fsync_level(e), fsync_done, req);
}

void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
	      struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	sync_ino(req, ino);
}

void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi)
{
	(void)datasync;
	(void)fi;
	sync_ino(req, ino);
}

void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		  off_t length, struct fuse_file_info *fi)
{
	int err = -EOPNOTSUPP;

	if (!ino_is_hidden(ino))
		err = file_fallocate(fs_of(req)->engine, ino, fi->fh, mode,
				     (uint64_t)offset, (uint64_t)length);
	reply_result(req, err);
}

/* A file still being fetched has holes that are none: wait for all of it. */
static int seek(struct fs *fs, uint64_t ino, off_t *off, int whence,
		bool patient)
{
	struct inode_rec rec;
	off_t res;
	int fd;
	int err = engine_stat(fs->engine, ino, &rec, NULL);

	if (err)
		return err;
	if ((uint64_t)*off >= rec.size)
		return -ENXIO;
	err = file_borrow_read(fs->engine, ino, (uint64_t)*off,
			       rec.size - (uint64_t)*off, patient, &fd);
	if (err)
		return err;
	res = lseek(fd, *off, whence);
	if (res < 0)
		err = -errno;
	else
		*off = res;
	file_return_fd(fs->engine, ino, false, fd);
	return err;
}

static bool seek_file(const struct errand *w, bool patient)
{
	off_t off = w->off;
	int err = seek(fs_of(w->req), w->ino, &off, w->flags, patient);

	if (err == -EINPROGRESS)
		return false;
	if (err)
		reply_result(w->req, err);
	else
		fuse_reply_lseek(w->req, off);
	return true;
}

void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
	      struct fuse_file_info *fi)
{
	(void)fi;
	if (ino_is_hidden(ino) || (whence != SEEK_DATA && whence != SEEK_HOLE))
		reply_result(req, -EINVAL);
	else
		errand_do(&(struct errand){ .run = seek_file,
					    .req = req,
					    .ino = ino,
					    .off = off,
					    .flags = whence });
}
