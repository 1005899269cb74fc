/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door: what the rooms of fs/ share. Requests come from libfuse's
 * low-level API; each op_ function answers its request exactly once, from its
 * own thread or later from another one.
 *
 * A FUSE node id is an inode number and a file handle is the engine's, so
 * nothing about a request lives here: lookup remembers nothing, FORGET has
 * nothing to do. Numbers below HIDDEN_END belong to the hidden tree
 * (hidden.h), but for the root's, 1.
 *
 * Threads: every function may run in any thread, many at a time.
 */
#ifndef CKPT_FS_FS_H
#define CKPT_FS_FS_H

#define FUSE_USE_VERSION 312

#include <fuse_lowlevel.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "metadata/metadata.h"

/* Seconds the kernel may keep names and attributes: nobody else changes
 * them. */
#define KEEP_S 86400.0
/* Attributes, if they keep (engine_stat()). */
static inline double attr_keep_s(bool keeps)
{
	return keeps ? KEEP_S : 0;
}
#define FS_BLKSIZE (1024 * 1024)
#define FS_LINK_MAX 65000u

struct options;
struct control;
struct errands;
struct tensor_tree;

/* All immutable once the first request is served. */
struct fs {
	struct engine *engine;
	struct meta *meta;
	const struct view *view; /* the accepted state */
	const struct options *options;
	struct control *control;
	struct expected *expected; /* sizes of new files (capture.h) */
	struct tensor_tree *tensors;
	struct fuse_session *session;
	struct errands *errands; /* errand.h */
	uid_t owner;             /* whoever mounted it */
	gid_t group;
	int64_t started_ns;
	bool want_passthrough; /* ask the kernel for it at INIT */
	bool kernel_passes;    /* INIT: it can */
	bool initialised;      /* INIT was answered */
};

static inline struct fs *fs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/* The table of operations, for fuse_session_new(). */
extern const struct fuse_lowlevel_ops fs_ops;

/* What time stamps are made of: the clock that the kernel stamps with. */
int64_t fs_now_ns(void);

/* err: 0 or -errno */
void reply_result(fuse_req_t req, int err);
/* The record as stat(2) shows it. */
void stat_of_rec(const struct inode_rec *rec, struct stat *out);
/* The answer to a lookup of ino, as it is now. -ENOENT: gone meanwhile. */
MUST_CHECK int entry_of_ino(struct fs *fs, uint64_t ino,
			    struct fuse_entry_param *out);
/* Replies with ino's entry, or with err if it is not 0. */
void reply_entry(fuse_req_t req, uint64_t ino, int err);

/*
 * May a name be made, changed or removed in this directory?
 *
 *   -ENAMETOOLONG  more than 255 bytes
 *   -EPERM         in the hidden tree, or its name in the root
 */
MUST_CHECK int name_may_change(uint64_t parent, const char *name);

/*
 * ino's record has changed by more than the kernel asked for: it forgets the
 * attributes it keeps. Of a number it does not know nothing happens. No
 * pages are dropped, so it waits for no other request.
 */
void attr_changed(struct fs *fs, uint64_t ino);

/* Set-id bits go, as after a write by somebody without CAP_FSETID. */
uint32_t mode_without_priv(uint32_t mode);

/* fs/attr.c */
void op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set,
		struct fuse_file_info *fi);
void op_statfs(fuse_req_t req, fuse_ino_t ino);
/* Set-id bits of ino go, in a transaction, if it has some. */
MUST_CHECK int inode_kill_set_id(struct fs *fs, uint64_t ino);

/* fs/namespace.c */
void op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup);
void op_forget_multi(fuse_req_t req, size_t count,
		     struct fuse_forget_data *forgets);
void op_readlink(fuse_req_t req, fuse_ino_t ino);
void op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	      dev_t rdev);
void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		const char *name);
void op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
	     const char *newname);
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);

/* fs/rename.c */
void op_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
	       fuse_ino_t newparent, const char *newname, unsigned int flags);

/* fs/dir.c */
/*
 * Where a listing ends, when it is asked for what follows off: opendir(3)
 * (off 0) sets *end, which lives as long as the handle, and so does
 * rewinddir(3). The result is the last cookie to be shown.
 */
uint64_t listing_end(const struct fs *fs, _Atomic uint64_t *end, off_t off);
void op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi);
void op_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		    struct fuse_file_info *fi);
void op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

/* fs/xattr.c */
void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 const char *value, size_t size, int flags);
void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
/* File capabilities of ino go, in a transaction, if it has some. */
MUST_CHECK int inode_kill_caps(struct fs *fs, uint64_t ino);

/* fs/create.c */
void op_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
	       struct fuse_file_info *fi);
/* mknod(2) of a regular file. */
void make_file(fuse_req_t req, fuse_ino_t parent, const char *name,
	       mode_t mode);

/* fs/file.c */
void op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
	      struct fuse_file_info *fi);
void op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi);
void op_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		  off_t length, struct fuse_file_info *fi);
void op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
	      struct fuse_file_info *fi);
/* What the kernel must know of an open file. */
void fill_open(struct fuse_file_info *fi, const struct open_reply *o);
/* Opening for writing takes file capabilities from a file, and set-id bits
 * unless root does it: no later write tells who made it. */
MUST_CHECK int open_kills_priv(struct fs *fs, uint64_t ino, int flags,
			       uid_t uid);

/* fs/copy.c */
void op_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
			struct fuse_file_info *fi_in, fuse_ino_t ino_out,
			off_t off_out, struct fuse_file_info *fi_out,
			size_t len, int flags);

/* fs/served.c */
void op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	     struct fuse_file_info *fi);
void op_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *bufv,
		  off_t off, struct fuse_file_info *fi);
/* Replies that n bytes were written, after an fsync if the handle asks for
 * one. */
void reply_written(fuse_req_t req, uint64_t ino, uint64_t fh, size_t n);

/* fs/control.c */
void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned int cmd, void *arg,
	      struct fuse_file_info *fi, unsigned flags, const void *in_buf,
	      size_t in_bufsz, size_t out_bufsz);

#endif
