/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A remote store that holds plain objects at plain names (DESIGN.md
 * section 4.7). One const struct remote_ops a kind: dir (any POSIX
 * directory); s3 comes later. Paths are relative to the remote's root,
 * '/'-separated, without "." and "..". Everything of ours that is not an
 * object lies under `.ckptfs/` at the root and is never listed.
 *
 * The identity of a version on a remote, struct remote_version, is unique
 * over all nodes: 32 hex digits of the mount's UUID, '-', 16 of the local
 * version id.
 *
 * Threads: any; calls block. Errors -errno; -EIO, -ETIMEDOUT, -ENOTCONN,
 * -ESTALE, -ENOSPC, -EACCES are for the caller to retry with backoff; a call
 * may hang as long as the store does (only attach() and probe() do not).
 */
#ifndef CKPT_ENGINE_REMOTE_H
#define CKPT_ENGINE_REMOTE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "metadata/metadata.h"

#define REMOTE_PREFIX ".ckptfs"
#define REMOTE_IDENTITY_LEN 49 /* without the NUL */
#define REMOTE_ID_ROOM 64      /* a store's marker, with the NUL */

struct remote;

/* An object held open for reading. */
struct remote_object;

/* What travels beside the bytes of an object. */
struct remote_attr {
	uint32_t mode, uid, gid; /* mode with type */
	int64_t mtime_ns;
	uint64_t size;
	char identity[64]; /* version; "" : put there by others */
	uint32_t n_chunks; /* 0: unverified */
	uint32_t *crcs;    /* owned; remote_attr_fini() */
	uint32_t n_xattrs;
	struct remote_xattr {
		char *name;
		void *value;
		size_t len;
	} * xattrs;   /* owned */
	char *target; /* symlinks; owned */
};
void remote_attr_fini(struct remote_attr *a);
/* All bytes of it are covered by checksums. */
bool remote_attr_verified(const struct remote_attr *a);
/* Sets or replaces one xattr; value is copied. -ENOMEM */
MUST_CHECK int remote_attr_set_xattr(struct remote_attr *a, const char *name,
				     const void *value, size_t len);
void remote_attr_del_xattr(struct remote_attr *a, const char *name);
/* Same names and values, in any order. */
bool remote_attr_same_xattrs(const struct remote_attr *a,
			     const struct remote_attr *b);

/*
 * What a copy record knows an object by (its `object`): the identity of its
 * version or, if others put it there, its size and mtime: who has neither
 * changed takes it for the same content. metadata/FORMAT.md has the form.
 */
void remote_object_of(const struct remote_attr *a, char out[64]);
/* A file of others that will have another mtime soon: either fits. */
void remote_object_of_others(uint64_t size, int64_t mtime_ns, int64_t or_ns,
			     char out[64]);
bool remote_object_is_of_others(const char *object);
/* Is it this one? "", of a record made when these were not noted yet, fits
 * any file of others. */
bool remote_object_fits(const char *object, const struct remote_attr *a);

struct remote_ops {
	const char *scheme; /* dir */

	/*
	 * Connect, or check that we still are. id in: "" (first use: finds or
	 * makes the store's marker) or what the marker must be from now on;
	 * out: what it is. Until attach() succeeded once, and as long as the
	 * marker is not the one that was there, all else fails with -ENOTCONN.
	 * Bounded in time. why gets one line on failure.
	 */
	int (*attach)(struct remote *r, char id[REMOTE_ID_ROOM], char *why,
		      size_t why_len);

	/*
	 * Stage a version under a name no listing shows; idempotent (already
	 * staged completely: nothing to do). fd is read from 0 to attr->size
	 * and verified against attr->crcs on the way (-EBADMSG).
	 * progress: bytes moved, added to.
	 */
	int (*stage)(struct remote *r, const struct remote_attr *attr, int fd,
		     _Atomic uint64_t *progress);
	/* Give the staged version its name, replacing what is there, with its
	 * attributes. Parents exist. Idempotent: done already is success.
	 * -ENOENT: neither staged nor placed; -EISDIR: a directory is there */
	int (*place)(struct remote *r, const char *path,
		     const struct remote_attr *attr);
	/* Forget a staged version that will not be placed. */
	int (*unstage)(struct remote *r, const char *identity);
	/* Forget all that a mount (first 32 digits of its identities) left
	 * staged. It stages nothing meanwhile. */
	int (*unstage_all)(struct remote *r, const char *uuid);
	int (*mkdir)(struct remote *r, const char *path,
		     const struct remote_attr *attr);
	int (*symlink)(struct remote *r, const char *path,
		       const struct remote_attr *attr);
	/*
	 * Stage a version from an object that is on the remote already and
	 * that will go, or be a second name of the same file: both may share
	 * their bytes. from NULL: only say whether it is staged.
	 *   -ENOENT  no such object; not staged
	 */
	int (*restage)(struct remote *r, const struct remote_attr *attr,
		       const char *from);
	/* A copy of the object, made on the remote side, complete when it
	 * appears at `to`. -ENOENT: from is not there. */
	int (*link)(struct remote *r, const char *from, const char *to);
	/* File, symlink or empty directory; -ENOENT is success. */
	int (*remove)(struct remote *r, const char *path);
	/* from → to, replacing; -ENOENT: from is not there. */
	int (*rename)(struct remote *r, const char *from, const char *to);
	/* -EOPNOTSUPP: the store cannot; nothing has changed */
	int (*exchange)(struct remote *r, const char *a, const char *b);
	/* mode, owner, mtime, xattrs of what is at path. */
	int (*set_attr)(struct remote *r, const char *path,
			const struct remote_attr *attr);
	/* -ENOENT. *out filled, incl. crcs: remote_attr_fini() it. */
	int (*get_attr)(struct remote *r, const char *path,
			struct remote_attr *out);
	/* Entries of a directory, names only ("" is the root). */
	int (*list)(struct remote *r, const char *path,
		    int (*fn)(void *arg, const char *name), void *arg);
	/* Read [off, off+len) of the object; short only at its end. */
	ssize_t (*read)(struct remote *r, const char *path, void *buf,
			size_t len, uint64_t off);
	/*
	 * The same through an object held open: sees one content, also when
	 * it is replaced or removed meanwhile (as far as the store can).
	 * object: what must be there, as a copy record knows it ("": whatever
	 * is).
	 *   -ENOENT  nothing, or something else, is at path
	 */
	int (*open_object)(struct remote *r, const char *path,
			   const char *object, struct remote_object **out);
	/* -EBADMSG: a file of others was changed since it was opened. */
	ssize_t (*read_object)(struct remote_object *o, void *buf, size_t len,
			       uint64_t off);
	void (*close_object)(struct remote_object *o);
	/*
	 * Everything done so far survives a power cut of the remote. all:
	 * also what this attachment did not do itself (a daemon that died),
	 * and what it did before a sync() that failed.
	 */
	int (*sync)(struct remote *r, bool all);
	/* Can it be written (before attach(): could it be)? Bounded in time;
	 * *why (may be set) one line. */
	int (*probe)(struct remote *r, char *why, size_t why_len);
	int (*room)(struct remote *r, uint64_t *total, uint64_t *avail);
	void (*close)(struct remote *r); /* by remote_put() only */
};

struct remote {
	const struct remote_ops *ops;
	char *name; /* as in remote=; without secrets */
	_Atomic unsigned n_holds;
};

/*
 * spec: "dir:/path", or a plain absolute path. Touches nothing but memory:
 * remote_attach() connects. The caller gets the first hold.
 *   -EINVAL  unknown kind; -EOPNOTSUPP: not in this build (s3)
 */
MUST_CHECK int remote_open(const char *spec, struct remote **out);
/* A thread that may hang in a call holds the remote; the last put closes. */
struct remote *remote_hold(struct remote *r);
void remote_put(struct remote *r); /* NULL allowed */

/*
 * ops->attach() with what this mount remembers of the store: at first use
 * (no note) makes or finds the marker and notes it; later the same marker
 * must be there, else the remote counts as down, never as empty. Bounded in
 * time. why: one line on failure.
 *
 *   -ENOTCONN   the marker is gone or another's
 *   -ETIMEDOUT  no answer
 */
MUST_CHECK int remote_attach(struct meta *m, struct remote *r, char *why,
			     size_t why_len);
/* Which one it was: the next attach takes any. */
MUST_CHECK int remote_forget(struct meta *m);

/* The identity of a version of the mount m. */
void remote_identity(const struct meta *m, uint64_t version,
		     char out[REMOTE_IDENTITY_LEN + 1]);

#endif
