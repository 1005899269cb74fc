/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended attributes. user.ckpt.state and user.ckpt.seq tell how far a file
 * or tree has come; they are not listed, so that cp -a and rsync -X do not try
 * to set them, and cannot be set.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "fs/event.h"
#include "fs/hidden.h"

#define XATTR_VALUE_MAX 65536
#define XATTR_NAMES_MAX 65536
#define OUR_PREFIX "user.ckpt."
#define TRUSTED_PREFIX "trusted."

static bool has_prefix(const char *name, const char *prefix)
{
	return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* As on a local disk; nothing of system. (ACLs and the like) is kept. */
static int may_use(uint64_t ino, const char *name)
{
	if (!has_prefix(name, "user.") && !has_prefix(name, "trusted.") &&
	    !has_prefix(name, "security."))
		return -EOPNOTSUPP;
	if (ino_is_hidden(ino))
		return -ENODATA;
	return strlen(name) <= META_NAME_MAX ? 0 : -ERANGE;
}

static int may_change(uint64_t ino, const char *name)
{
	int err = may_use(ino, name);

	if (err)
		return err == -ENODATA ? -EPERM : err;
	return has_prefix(name, OUR_PREFIX) ? -EPERM : 0;
}

/* ---- ours ------------------------------------------------------------- */

static int tree_state(struct fs *fs, uint64_t ino, struct file_state *out)
{
	struct tree_state tree;
	int err = engine_tree_state(fs->engine, ino, &tree);

	if (err)
		return err;
	*out = (struct file_state){ .level = tree.level,
				    .writing = tree.n_writing > 0,
				    .seq = tree.seq };
	return 0;
}

static int our_value(struct fs *fs, uint64_t ino, const char *name, char *buf,
		     size_t len)
{
	struct inode_rec rec;
	struct file_state st;
	int err = view_inode(fs->view, ino, &rec);

	if (!err)
		err = S_ISDIR(rec.mode)
			      ? tree_state(fs, ino, &st)
			      : engine_file_state(fs->engine, ino, &st);
	if (err)
		return err;
	if (strcmp(name, OUR_PREFIX "state") == 0)
		snprintf(buf, len, "%s",
			 st.writing ? "writing" : level_name(st.level));
	else if (strcmp(name, OUR_PREFIX "seq") == 0)
		snprintf(buf, len, "%" PRIu64, st.seq);
	else
		return -ENODATA;
	return 0;
}

/* ---- reading ---------------------------------------------------------- */

/* size 0 asks how long it is. */
static void reply_value(fuse_req_t req, const void *value, size_t len,
			size_t size)
{
	if (!size)
		fuse_reply_xattr(req, len);
	else if (len > size)
		reply_result(req, -ERANGE);
	else
		fuse_reply_buf(req, value, len);
}

static void get_ours(fuse_req_t req, uint64_t ino, const char *name,
		     size_t size)
{
	char value[64];
	int err = our_value(fs_of(req), ino, name, value, sizeof(value));

	if (err)
		reply_result(req, err);
	else
		reply_value(req, value, strlen(value), size);
}

static void get_stored(fuse_req_t req, uint64_t ino, const char *name,
		       size_t size)
{
	CLEANUP(free_p) void *buf = NULL;
	size_t len = size < XATTR_VALUE_MAX ? size : XATTR_VALUE_MAX;
	int err;

	if (len)
		buf = malloc(len);
	if (len && !buf)
		err = -ENOMEM;
	else
		err = view_xattr(fs_of(req)->view, ino, name, buf, &len);
	if (err)
		reply_result(req, err);
	else
		reply_value(req, buf, len, size);
}

void op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size)
{
	int err = may_use(ino, name);

	if (err)
		reply_result(req, err);
	else if (has_prefix(name, OUR_PREFIX))
		get_ours(req, ino, name, size);
	else
		get_stored(req, ino, name, size);
}

struct list {
	char *buf; /* XATTR_NAMES_MAX */
	size_t len;
	bool root; /* trusted. is for root */
};

static int list_name(void *arg, const char *name, const void *value,
		     size_t value_len)
{
	struct list *l = arg;
	size_t n = strlen(name) + 1;

	(void)value;
	(void)value_len;
	if (has_prefix(name, TRUSTED_PREFIX) && !l->root)
		return 0;
	if (l->len + n > XATTR_NAMES_MAX)
		return -E2BIG;
	memcpy(l->buf + l->len, name, n);
	l->len += n;
	return 0;
}

void op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size)
{
	CLEANUP(free_p) char *buf = malloc(XATTR_NAMES_MAX);
	struct list l = { .buf = buf, .root = fuse_req_ctx(req)->uid == 0 };
	int err = 0;

	if (!buf)
		err = -ENOMEM;
	else if (!ino_is_hidden(ino))
		err = view_xattrs(fs_of(req)->view, ino, list_name, &l);
	if (err)
		reply_result(req, err);
	else
		reply_value(req, buf, l.len, size);
}

/* ---- changing --------------------------------------------------------- */

static int sum_names(void *arg, const char *name, const void *value,
		     size_t value_len)
{
	(void)value;
	(void)value_len;
	*(size_t *)arg += strlen(name) + 1;
	return 0;
}

/* Door held. Is name there as flags want it, and may it be added? */
static int check_set(struct fs *fs, uint64_t ino, const char *name, int flags)
{
	size_t len = 0, sum = strlen(name) + 1;
	int err = view_xattr(fs->view, ino, name, NULL, &len);

	if (!err)
		return flags & XATTR_CREATE ? -EEXIST : 0;
	if (err != -ENODATA)
		return err;
	if (flags & XATTR_REPLACE)
		return -ENODATA;
	err = view_xattrs(fs->view, ino, sum_names, &sum);
	if (err)
		return err;
	return sum <= XATTR_NAMES_MAX ? 0 : -ENOSPC;
}

static int check_remove(struct fs *fs, uint64_t ino, const char *name)
{
	size_t len = 0;

	return view_xattr(fs->view, ino, name, NULL, &len);
}

/* Door held. */
static int put_change(struct fs *fs, struct txn *t, uint64_t ino,
		      struct event *ev)
{
	struct inode_rec rec;
	int err = view_inode(fs->view, ino, &rec);

	if (err)
		return err;
	rec.ctime_ns = fs_now_ns();
	if (ev->kind == EVENT_SETXATTR)
		txn_put_xattr(t, ino, ev->name, ev->value, ev->value_len);
	else
		txn_del_xattr(t, ino, ev->name);
	txn_put_inode(t, &rec);
	return event_of_inode(fs, t, ev, &rec);
}

static int commit_change(struct fs *fs, uint64_t ino, struct event *ev,
			 int flags)
{
	struct txn *t = engine_txn_begin(fs->engine);
	uint64_t seq;
	int err;

	if (ev->kind == EVENT_SETXATTR)
		err = check_set(fs, ino, ev->name, flags);
	else
		err = check_remove(fs, ino, ev->name);
	if (!err)
		err = put_change(fs, t, ino, ev);
	if (err) {
		engine_txn_abort(fs->engine, t);
		return err;
	}
	return engine_txn_commit(fs->engine, t, &seq);
}

void op_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		 const char *value, size_t size, int flags)
{
	struct event ev = { .kind = EVENT_SETXATTR,
			    .name = name,
			    .value = value,
			    .value_len = size };
	int err = may_change(ino, name);

	if (!err && size > XATTR_VALUE_MAX)
		err = -E2BIG;
	if (!err)
		err = commit_change(fs_of(req), ino, &ev, flags);
	reply_result(req, err);
}

void op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name)
{
	struct event ev = { .kind = EVENT_REMOVEXATTR, .name = name };
	int err = may_change(ino, name);

	if (!err)
		err = commit_change(fs_of(req), ino, &ev, 0);
	reply_result(req, err);
}

int inode_kill_caps(struct fs *fs, uint64_t ino)
{
	static const char caps[] = "security.capability";
	struct event ev = { .kind = EVENT_REMOVEXATTR, .name = caps };
	struct inode_rec rec;
	size_t len = 0;
	int err = view_xattr(fs->view, ino, caps, NULL, &len);

	if (!err)
		err = view_inode(fs->view, ino, &rec);
	if (err || !S_ISREG(rec.mode))
		return err == -ENODATA ? 0 : err;
	err = commit_change(fs, ino, &ev, 0);
	if (!err)
		attr_changed(fs, ino); /* its ctime */
	return err == -ENODATA ? 0 : err;
}
