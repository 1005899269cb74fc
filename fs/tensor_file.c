/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading tensors as .npy files: a header made at open, behind it the image
 * as tensor_gather() makes it. The kernel may cache all of it, as a node's
 * bytes never change; those of tensors in several files only while they are
 * open, because a shard may be replaced and its index not.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "fs/errand.h"
#include "fs/tensor_handle.h"

/* Of deflated tensors that are decoded at once, all handles together; beyond
 * that each read decodes from the start. */
#define IMAGES_MAX (UINT64_C(256) << 20)
#define HELD_MAX 16u

struct tensor_handles {
	struct mutex lock;
	LIST_HEAD(, tensor_handle) list; /* guarded by lock */
	uint64_t image_bytes;            /* guarded by lock */
};

/* ---- handles ---------------------------------------------------------- */

int tensor_handles_new(struct tensor_handles **out)
{
	struct tensor_handles *hs = calloc(1, sizeof(*hs));

	if (!hs)
		return -ENOMEM;
	mutex_init(&hs->lock);
	*out = hs;
	return 0;
}

void tensor_handles_free(struct tensor_handles *hs)
{
	if (!hs)
		return;
	while (!LIST_EMPTY(&hs->list))
		tensor_handle_close(LIST_FIRST(&hs->list));
	mutex_fini(&hs->lock);
	free(hs);
}

int tensor_handle_new(struct tensor_handles *hs, struct tensor_handle **out)
{
	struct tensor_handle *h = calloc(1, sizeof(*h));

	if (!h)
		return -ENOMEM;
	h->list = hs;
	mutex_init(&h->lock);
	mutex_lock(&hs->lock);
	LIST_INSERT_HEAD(&hs->list, h, next);
	mutex_unlock(&hs->lock);
	*out = h;
	return 0;
}

void tensor_handle_close(struct tensor_handle *h)
{
	if (!h)
		return;
	mutex_lock(&h->list->lock);
	LIST_REMOVE(h, next);
	h->list->image_bytes -= h->image_len;
	mutex_unlock(&h->list->lock);
	source_set_free(h->sources);
	tensors_put(h->tensors);
	mutex_fini(&h->lock);
	free(h->head);
	free(h->image);
	free(h);
}

void tensor_release(fuse_req_t req, const struct fuse_file_info *fi)
{
	tensor_handle_close(tensor_handle_of(fi));
	reply_result(req, 0);
}

/* ---- open ------------------------------------------------------------- */

static bool in_own_file(const struct tensor *t)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].file)
			return false;
	return true;
}

static bool is_coded(const struct tensor *t)
{
	for (unsigned i = 0; i < t->n_pieces; i++)
		if (t->pieces[i].coding != TENSOR_PLAIN)
			return true;
	return false;
}

/* Room for a whole image, if it is wanted and there is some. */
static void take_budget(struct tensor_handle *h)
{
	struct tensor_handles *hs = h->list;
	uint64_t len = tensor_len(h->tensor);

	if (!is_coded(h->tensor))
		return;
	mutex_lock(&hs->lock);
	if (len <= IMAGES_MAX - hs->image_bytes) {
		hs->image_bytes += len;
		h->image_len = (size_t)len;
	}
	mutex_unlock(&hs->lock);
}

static int make_header(struct tensor_handle *h)
{
	h->head_len = tensor_npy_header(h->tensor, NULL, 0);
	h->head = malloc(h->head_len);
	if (!h->head)
		return -ENOMEM;
	tensor_npy_header(h->tensor, h->head, h->head_len);
	h->size = h->head_len + tensor_len(h->tensor);
	take_budget(h);
	return 0;
}

/* What is open keeps its bytes, whatever becomes of its file; of a tensor in
 * more files than may be open at once, as many as may. */
static int hold_pieces(struct tensor_handle *h)
{
	const struct tensor *t = h->tensor;
	int err = 0;

	for (unsigned i = 0; !err && i < t->n_pieces && i < HELD_MAX; i++)
		err = source_set_hold(h->sources, t->pieces[i].file);
	return err;
}

static int open_tensor(fuse_req_t req, struct tensor_handle *h,
		       const struct tensor_node *n, bool *keep)
{
	int err;

	h->tensor = tensor_table_find(tensors_table(h->tensors), n->name);
	if (!h->tensor || tensor_file_len(h->tensor) != n->size)
		return -ESTALE; /* the kernel looks it up anew */
	err = tensor_may_read(req, h->tensors, h->tensor);
	if (!err)
		err = tensors_sources(h->tensors, &h->sources);
	if (!err)
		err = hold_pieces(h);
	if (!err)
		err = make_header(h);
	*keep = in_own_file(h->tensor);
	return err;
}

static int open_record(fuse_req_t req, struct tensor_handle *h)
{
	int err = tensor_may_list(req, h->tensors);

	if (!err)
		err = tensor_table_encode(tensors_table(h->tensors), &h->head,
					  &h->head_len);
	h->size = h->head_len;
	return err;
}

/* A node of an older version is found no more by who opens it now. */
static int check_current(struct fs *fs, const struct tensor_node *n)
{
	uint64_t version;
	int err = tensors_current(fs->engine, n->ino, &version);

	if (err)
		return err == -ENOMSG ? -ESTALE : err;
	return version == n->version ? 0 : -ESTALE;
}

static int open_node(fuse_req_t req, uint64_t ino, struct tensor_handle **out,
		     bool *keep)
{
	struct fs *fs = fs_of(req);
	struct tensor_node n = { 0 };
	struct tensor_handle *h = NULL;
	int err = tensor_nodes_get(fs->tensors->nodes, ino, &n);

	*keep = false;
	if (!err)
		err = check_current(fs, &n);
	if (!err)
		err = tensor_handle_new(fs->tensors->handles, &h);
	if (!err)
		err = tensors_open(fs->engine, n.ino, n.version, &h->tensors);
	if (!err)
		err = n.name ? open_tensor(req, h, &n, keep)
			     : open_record(req, h);
	free(n.name);
	if (err) {
		tensor_handle_close(h);
		return tensor_error(err);
	}
	*out = h;
	return 0;
}

static bool open_file(const struct errand *w, bool patient)
{
	struct fuse_file_info fi = w->fi;
	struct tensor_handle *h = NULL;
	bool keep;
	int err;

	if (!patient)
		return false;
	err = open_node(w->req, w->ino, &h, &keep);
	if (err) {
		reply_result(w->req, err);
		return true;
	}
	fi.fh = (uintptr_t)h;
	fi.keep_cache = keep;
	if (fuse_reply_open(w->req, &fi))
		tensor_handle_close(h);
	return true;
}

void tensor_open_file(fuse_req_t req, uint64_t ino, struct fuse_file_info *fi)
{
	if ((fi->flags & O_ACCMODE) != O_RDONLY || fi->flags & O_TRUNC)
		reply_result(req, -EROFS);
	else if (!(ino & TENSOR_NODE_BIT))
		reply_result(req, -EISDIR);
	else
		errand_do(&(struct errand){
			.run = open_file, .req = req, .ino = ino, .fi = *fi });
}

/* ---- read ------------------------------------------------------------- */

static int gather(struct tensor_handle *h, void *buf, size_t len, uint64_t off)
{
	return tensor_gather(h->tensor, source_set_open, h->sources, buf, len,
			     off);
}

/* The whole image, made by who comes first; the others wait for him. */
static int make_image_locked(struct tensor_handle *h) MUST_HOLD(h->lock);
static int make_image_locked(struct tensor_handle *h)
{
	uint8_t *image;
	int err;

	if (h->image)
		return 0;
	image = malloc(h->image_len);
	if (!image)
		return -ENOMEM;
	err = gather(h, image, h->image_len, 0);
	if (err)
		free(image);
	else
		h->image = image;
	return err;
}

static int read_image(struct tensor_handle *h, void *buf, size_t len,
		      uint64_t off)
{
	int err;

	if (!h->image_len)
		return gather(h, buf, len, off);
	mutex_lock(&h->lock);
	err = make_image_locked(h);
	mutex_unlock(&h->lock);
	if (!err)
		memcpy(buf, h->image + off, len);
	return err;
}

static int read_at(struct tensor_handle *h, uint8_t *buf, size_t len,
		   uint64_t off)
{
	size_t n = 0;

	if (off < h->head_len) {
		n = h->head_len - (size_t)off;
		if (n > len)
			n = len;
		memcpy(buf, h->head + off, n);
	}
	return n == len
		       ? 0
		       : read_image(h, buf + n, len - n, off + n - h->head_len);
}

static void reply_read(const struct errand *w)
{
	struct tensor_handle *h = tensor_handle_of(&w->fi);
	CLEANUP(free_p) uint8_t *buf = NULL;
	uint64_t off = (uint64_t)w->off;
	size_t size = w->size;
	int err = 0;

	if (off >= h->size)
		size = 0;
	else if (size > h->size - off)
		size = (size_t)(h->size - off);
	buf = malloc(size ? size : 1);
	if (!buf)
		err = -ENOMEM;
	else if (size)
		err = read_at(h, buf, size, off);
	if (err)
		reply_result(w->req, tensor_error(err) == -ENOENT
					     ? -EIO
					     : tensor_error(err));
	else
		fuse_reply_buf(w->req, (char *)buf, size);
}

static bool read_tensor(const struct errand *w, bool patient)
{
	if (patient)
		reply_read(w);
	return patient;
}

void tensor_read(fuse_req_t req, size_t size, off_t off,
		 const struct fuse_file_info *fi)
{
	errand_do(&(struct errand){ .run = read_tensor,
				    .req = req,
				    .size = size,
				    .off = off,
				    .fi = *fi });
}
