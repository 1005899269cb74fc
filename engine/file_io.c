/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon itself does to the content of an open file: descriptors for
 * served reads and writes, truncate, fallocate, times, stat.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/core.h"
#include "metadata/fault.h"
#include "metadata/log_message.h"

/* A writable descriptor for a moment (served: the one that stays). */
static int writable_fd_locked(struct engine *e, struct inode *in, int *fd)
	MUST_HOLD(in->lock);
static int writable_fd_locked(struct engine *e, struct inode *in, int *fd)
{
	struct tier *t = backing_tier(e, in->backing->where);
	int r;

	if (in->rw_fd >= 0) {
		*fd = in->rw_fd;
		return 0;
	}
	r = t->ops->open(t, in->backing->id, O_RDWR, fd);
	if (r == 0 && in->served)
		in->rw_fd = *fd;
	return r;
}

static void writable_fd_done_locked(struct inode *in, int fd)
	MUST_HOLD(in->lock);
static void writable_fd_done_locked(struct inode *in, int fd)
{
	if (fd != in->rw_fd)
		close(fd);
}

int inode_truncate_locked(struct engine *e, struct inode *in, uint64_t size)
{
	int fd, r;

	r = writable_fd_locked(e, in, &fd);
	if (r < 0)
		return r;
	r = FAULT("file.truncate", -EIO);
	if (r == 0)
		r = ftruncate(fd, (off_t)size) ? -errno : 0;
	writable_fd_done_locked(in, fd);
	if (r == 0) {
		/* It freed the lease behind the new size, too. */
		in->lease_size = size;
		if (in->backing->where == BACKING_NVME && in->nvme_room > size)
			in->nvme_room = size;
		if (in->backing->allocated > size)
			in->backing->allocated = size;
		(void)!lease_exact_locked(e, in, size);
	}
	return r;
}

void inode_set_times_locked(struct inode *in, const struct timespec ts[2])
{
	/* Times can be set through a read-only descriptor. */
	if (in->ro_fd >= 0 && futimens(in->ro_fd, ts))
		message_warning("cannot set times of a backing file: %m");
}

int file_borrow_write(struct engine *e, uint64_t ino, int *fd)
{
	struct inode *in = inode_find(e, ino);
	int r;

	if (!in)
		return -EBADF;
	mutex_lock(&in->lock);
	r = writable_fd_locked(e, in, fd);
	if (r == 0 && *fd != in->rw_fd)
		in->n_borrowed++;
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}

int file_borrow_read(struct engine *e, uint64_t ino, uint64_t off, uint64_t len,
		     bool patient, int *fd)
{
	struct inode *in = inode_find(e, ino);
	struct fetch *fetch = NULL;
	int r = 0;

	if (!in)
		return -EBADF;
	mutex_lock(&in->lock);
	if (in->ro_fd >= 0) {
		*fd = in->ro_fd;
	} else if (in->fetch) {
		fetch = in->fetch; /* stays as long as the handle */
		*fd = fetch_fd(fetch);
	} else {
		r = -EBADF;
	}
	mutex_unlock(&in->lock);
	if (fetch)
		r = fetch_wait(fetch, off, len, patient);
	inode_put(e, in);
	return r;
}

void file_return_fd(struct engine *e, uint64_t ino, bool write, int fd)
{
	struct inode *in;

	if (!write)
		return;
	in = inode_find(e, ino);
	if (!in)
		return;
	mutex_lock(&in->lock);
	if (fd != in->rw_fd) {
		in->n_borrowed--;
		close(fd);
	}
	mutex_unlock(&in->lock);
	inode_put(e, in);
}

/* tmpfs has no ZERO_RANGE: a hole, then room for it. */
static int zero_range(int fd, int mode, off_t off, off_t len)
{
	struct stat st;

	if (!fallocate(fd, mode, off, len))
		return 0;
	if (errno != EOPNOTSUPP || fstat(fd, &st))
		return -errno;
	if (off < st.st_size &&
	    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len))
		return -errno;
	if (fallocate(fd, mode & FALLOC_FL_KEEP_SIZE, off, len))
		return -errno;
	return 0;
}

static int fallocate_fd(int fd, int mode, uint64_t off, uint64_t len)
{
	if (mode & FALLOC_FL_ZERO_RANGE)
		return zero_range(fd, mode, (off_t)off, (off_t)len);
	return fallocate(fd, mode, (off_t)off, (off_t)len) ? -errno : 0;
}

static int fallocate_locked(struct engine *e, struct inode *in, int mode,
			    uint64_t off, uint64_t len) MUST_HOLD(in->lock);
static int fallocate_locked(struct engine *e, struct inode *in, int mode,
			    uint64_t off, uint64_t len)
{
	int fd = -1, r = 0;

	if (!(mode & FALLOC_FL_PUNCH_HOLE))
		r = lease_exact_locked(e, in, off + len);
	if (r == 0)
		r = writable_fd_locked(e, in, &fd);
	if (r != 0)
		return r;
	r = fallocate_fd(fd, mode, off, len);
	writable_fd_done_locked(in, fd);
	return r;
}

int file_fallocate(struct engine *e, uint64_t ino, uint64_t fh, int mode,
		   uint64_t off, uint64_t len)
{
	struct inode *in = inode_find(e, ino);
	int r;

	(void)fh;
	if (!in)
		return -EBADF;
	if (off + len > ENGINE_FILE_MAX || off + len < off) {
		inode_put(e, in);
		return -EFBIG;
	}
	do {
		mutex_lock(&in->lock);
		r = fallocate_locked(e, in, mode, off, len);
		mutex_unlock(&in->lock);
		/* It slows down while there is room to come. */
	} while (r == -ENOSPC &&
		 (version_wait_recorded(e) || leases_reclaim(e)));
	inode_put(e, in);
	return r;
}

static int truncate_open(struct engine *e, uint64_t ino, uint64_t size)
{
	struct inode *in = inode_find(e, ino);
	int r;

	if (!in)
		return -EBADF;
	mutex_lock(&in->lock);
	r = inode_truncate_locked(e, in, size);
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}

int file_truncate(struct engine *e, uint64_t ino, uint64_t fh, uint64_t size,
		  bool patient)
{
	struct open_reply open;
	int flags = O_WRONLY | (size == 0 ? O_TRUNC : 0);
	int r, closed;

	if (size > ENGINE_FILE_MAX)
		return -EFBIG;
	if (fh)
		return truncate_open(e, ino, size);
	r = file_open(e, ino, flags, patient, &open);
	if (r < 0)
		return r;
	r = truncate_open(e, ino, size);
	closed = file_flush(e, ino, open.fh);
	file_release(e, ino, open.fh);
	return r ? r : closed;
}

void file_set_times(struct engine *e, uint64_t ino, const struct timespec ts[2])
{
	struct inode *in = inode_find(e, ino);

	if (!in)
		return;
	mutex_lock(&in->lock);
	if (in->written) {
		inode_set_times_locked(in, ts);
		/* Not a change of content, of what was sealed or marked. */
		if (in->mark.valid && look_at(in, &in->mark))
			in->mark.valid = false;
	}
	mutex_unlock(&in->lock);
	inode_put(e, in);
}

/* What the backing file says of a file being written. The record is right as
 * it is if nothing was written since it was sealed or opened. */
static void stat_backing_locked(struct inode *in, struct inode_rec *out)
	MUST_HOLD(in->lock);
static void stat_backing_locked(struct inode *in, struct inode_rec *out)
{
	struct look now = { .valid = true };
	struct stat st;

	if (!in->written || in->ro_fd < 0 || fstat(in->ro_fd, &st))
		return;
	now.size = (uint64_t)st.st_size;
	now.ctime = st.st_ctim;
	if (look_same(&in->sealed, &now))
		return;
	out->size = now.size;
	out->blocks = content_blocks(in->ro_fd, &st);
	out->mtime_ns = ns_of_timespec(st.st_mtim);
	if (ns_of_timespec(st.st_ctim) > out->ctime_ns)
		out->ctime_ns = ns_of_timespec(st.st_ctim);
}

int engine_stat(struct engine *e, uint64_t ino, struct inode_rec *out,
		bool *keeps)
{
	/* First the table: who leaves it has put his seal into the record. */
	struct inode *in = inode_find(e, ino);
	int r;

	if (keeps)
		*keeps = true;
	if (!in)
		return view_inode(meta_accepted(e->meta), ino, out);
	mutex_lock(&in->lock);
	if (keeps)
		*keeps = !(e->passthrough && in->written && in->rdwr);
	r = view_inode(meta_accepted(e->meta), ino, out);
	if (r == 0 && S_ISREG(out->mode))
		stat_backing_locked(in, out);
	mutex_unlock(&in->lock);
	inode_put(e, in);
	return r;
}
