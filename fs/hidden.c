/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /ckpt/.ckptfs: one directory with files that are made when they are opened,
 * and the tree of tensors (tensor_tree.h), to which requests are handed on.
 */
#include <errno.h>
#include <string.h>

#include "fs/hidden.h"

static const struct hidden_file {
	uint64_t ino;
	const char *name;
	/* NULL: a directory */
	int (*text)(struct fs *fs, char **out, size_t *len);
} files[] = {
	{ HIDDEN_METRICS, "metrics", metrics_text },
	{ TENSOR_ROOT, "tensors", NULL },
};

#define N_FILES (sizeof(files) / sizeof(files[0]))

static const struct hidden_file *file_of(uint64_t ino)
{
	for (size_t i = 0; i < N_FILES; i++)
		if (files[i].ino == ino)
			return &files[i];
	return NULL;
}

bool name_is_hidden(uint64_t parent, const char *name)
{
	return parent == META_ROOT_INO && strcmp(name, HIDDEN_NAME) == 0;
}

int hidden_lookup(uint64_t parent, const char *name, uint64_t *ino)
{
	if (parent == META_ROOT_INO) {
		*ino = HIDDEN_DIR;
		return 0;
	}
	for (size_t i = 0; parent == HIDDEN_DIR && i < N_FILES; i++)
		if (strcmp(files[i].name, name) == 0) {
			*ino = files[i].ino;
			return 0;
		}
	return -ENOENT;
}

int hidden_stat(struct fs *fs, uint64_t ino, struct stat *out)
{
	struct timespec started = timespec_of_ns(fs->started_ns);

	if (ino_is_tensor(ino))
		return tensor_stat(fs, ino, out);
	if (ino != HIDDEN_DIR && !file_of(ino))
		return -ENOENT;
	*out = (struct stat){
		.st_ino = ino,
		.st_mode = ino == HIDDEN_DIR ? S_IFDIR | 0555 : S_IFREG | 0444,
		.st_nlink = ino == HIDDEN_DIR ? 2 : 1,
		.st_uid = fs->owner,
		.st_gid = fs->group,
		.st_blksize = 4096,
		.st_atim = started,
		.st_mtim = started,
		.st_ctim = started,
	};
	return 0;
}

int hidden_readdir(uint64_t ino, uint64_t after, dentry_fn *fn, void *arg)
{
	if (ino != HIDDEN_DIR)
		return -ENOTDIR;
	for (size_t i = 0; i < N_FILES; i++) {
		struct dentry_rec d = { .ino = files[i].ino,
					.cookie = 3 + i,
					.type = files[i].text ? S_IFREG
							      : S_IFDIR };
		int err = d.cookie > after ? fn(arg, files[i].name, &d) : 0;

		if (err)
			return err;
	}
	return 0;
}

struct text {
	size_t len;
	char *data;
};

static void text_free(struct text *t)
{
	if (t)
		free(t->data);
	free(t);
}

void hidden_open(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	const struct hidden_file *f = file_of(ino);
	struct text *t;
	int err = 0;

	if (ino_is_tensor(ino)) {
		tensor_open_file(req, ino, fi);
		return;
	}
	t = calloc(1, sizeof(*t));
	if (!f)
		err = -ENOENT;
	else if ((fi->flags & O_ACCMODE) != O_RDONLY)
		err = -EACCES;
	else if (!t)
		err = -ENOMEM;
	else
		err = f->text(fs_of(req), &t->data, &t->len);
	if (err) {
		text_free(t);
		reply_result(req, err);
		return;
	}
	fi->fh = (uintptr_t)t;
	fi->direct_io = 1; /* its size is known only now */
	if (fuse_reply_open(req, fi))
		text_free(t);
}

static struct text *text_of(const struct fuse_file_info *fi)
{
	return (struct text *)(uintptr_t)fi->fh;
}

void hidden_read(fuse_req_t req, uint64_t ino, size_t size, off_t off,
		 const struct fuse_file_info *fi)
{
	const struct text *t = text_of(fi);
	size_t from;

	if (ino_is_tensor(ino)) {
		tensor_read(req, size, off, fi);
		return;
	}
	from = (size_t)off < t->len ? (size_t)off : t->len;
	if (size > t->len - from)
		size = t->len - from;
	fuse_reply_buf(req, t->data + from, size);
}

void hidden_release(fuse_req_t req, uint64_t ino,
		    const struct fuse_file_info *fi)
{
	if (ino_is_tensor(ino)) {
		tensor_release(req, fi);
		return;
	}
	text_free(text_of(fi));
	reply_result(req, 0);
}
