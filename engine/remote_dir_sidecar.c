/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records under .ckptfs/ (REMOTE-FORMAT.md): versions/<tag> says what an
 * object cannot say of itself, names/<hash of path> what a directory, a
 * symlink, or an object on a filesystem without xattrs cannot.
 *
 * A record is believed only if it is whole (its checksum) and fits the object
 * it is found for (size and mtime): a pair torn by a crash, or a file changed
 * by others, is "unverified", never wrong. So records are written first, with
 * the mtime that is there and the one that will be.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "engine/checksum.h"
#include "engine/fd_io.h"
#include "engine/remote_dir.h"
#include "engine/tier.h"
#include "metadata/bytes.h"
#include "metadata/fault.h"

#define MAGIC "CKPTSIDE"
#define HEAD_LEN 96
#define CRC_AT 12
#define FORMAT 1
#define RECORD_MAX (UINT64_C(64) << 20) /* of 64 TiB */
#define XATTRS_MAX 4096u
#define XATTRS_ROOM (UINT64_C(16) << 20) /* for all of a record */
#define XATTR_LEN_MAX UINT64_C(65797)    /* 6 + 255 + 65536 */
#define BATCH 64

void sidecar_fini(struct sidecar *s)
{
	free(s->path);
	s->path = NULL;
	remote_attr_fini(&s->attr);
}

static void sidecar_finip(struct sidecar *s)
{
	sidecar_fini(s);
}

bool sidecar_fits(const struct sidecar *s, const struct stat *st)
{
	int64_t mtime =
		st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;

	if ((s->attr.mode & S_IFMT) != (st->st_mode & S_IFMT))
		return false;
	if (!S_ISREG(st->st_mode))
		return true;
	return s->attr.size == (uint64_t)st->st_size &&
	       (s->real_mtime[0] == mtime || s->real_mtime[1] == mtime);
}

/* Of all behind the magic but itself. */
static uint32_t checksum_of(const uint8_t *p, size_t len)
{
	return crc32c(crc32c(0, p + 8, CRC_AT - 8), p + CRC_AT + 4,
		      len - CRC_AT - 4);
}

/* ---- encode ----------------------------------------------------------- */

static void encode_head(struct bytes *b, const struct sidecar *s)
{
	const struct remote_attr *a = &s->attr;

	bytes_append(b, MAGIC, 8);
	add_le(b, FORMAT, 2);
	add_le(b, s->flags, 2);
	add_le(b, 0, 4); /* the checksum comes here */
	add_le(b, a->size, 8);
	add_le(b, CHUNK_LEN, 4);
	add_le(b, a->n_chunks, 4);
	add_le(b, (uint64_t)s->real_mtime[0], 8);
	add_le(b, (uint64_t)s->real_mtime[1], 8);
	add_le(b, (uint64_t)a->mtime_ns, 8);
	add_le(b, a->mode, 4);
	add_le(b, a->uid, 4);
	add_le(b, a->gid, 4);
	add_le(b, a->n_xattrs, 4);
	add_le(b, strlen(s->tag), 2);
	add_le(b, s->path ? strlen(s->path) : 0, 2);
	for (int i = 0; i < 5; i++)
		add_le(b, 0, 4); /* reserved */
}

static int encode(struct bytes *b, const struct sidecar *s)
{
	const struct remote_attr *a = &s->attr;

	encode_head(b, s);
	bytes_append(b, s->tag, strlen(s->tag));
	bytes_append(b, s->path, s->path ? strlen(s->path) : 0);
	for (uint32_t i = 0; i < a->n_xattrs; i++) {
		const struct remote_xattr *x = &a->xattrs[i];

		add_le(b, strlen(x->name), 2);
		add_le(b, x->len, 4);
		bytes_append(b, x->name, strlen(x->name));
		bytes_append(b, x->value, x->len);
	}
	for (uint32_t i = 0; i < a->n_chunks; i++)
		add_le(b, a->crcs[i], 4);
	if (b->failed)
		return -ENOMEM;
	put_le(b->p + CRC_AT, checksum_of(b->p, b->len), 4);
	return 0;
}

/* ---- decode ----------------------------------------------------------- */

static int decode_head(struct reader *r, struct sidecar *s, size_t *tag_len,
		       size_t *path_len, uint32_t *n_xattrs)
{
	struct remote_attr *a = &s->attr;
	uint32_t chunk_len;

	s->flags = (uint32_t)read_le(r, 2);
	(void)read_le(r, 4);
	a->size = read_le(r, 8);
	chunk_len = (uint32_t)read_le(r, 4);
	a->n_chunks = (uint32_t)read_le(r, 4);
	s->real_mtime[0] = (int64_t)read_le(r, 8);
	s->real_mtime[1] = (int64_t)read_le(r, 8);
	a->mtime_ns = (int64_t)read_le(r, 8);
	a->mode = (uint32_t)read_le(r, 4);
	a->uid = (uint32_t)read_le(r, 4);
	a->gid = (uint32_t)read_le(r, 4);
	*n_xattrs = (uint32_t)read_le(r, 4);
	*tag_len = (size_t)read_le(r, 2);
	*path_len = (size_t)read_le(r, 2);
	(void)read_bytes(r, 20);
	if (r->bad || *tag_len >= TAG_LEN || *path_len >= META_PATH_MAX ||
	    *n_xattrs > XATTRS_MAX)
		return -EBADMSG;
	if (a->n_chunks &&
	    (chunk_len != CHUNK_LEN || a->n_chunks != N_CHUNKS(a->size)))
		return -EBADMSG;
	return 0;
}

static int decode_format(const uint8_t *head)
{
	if (memcmp(head, MAGIC, 8) != 0)
		return -EBADMSG;
	return get_le(head + 8, 2) > FORMAT ? -EOPNOTSUPP : 0;
}

/*
 * How long a record can be, by its head: who wrote it may want to see a
 * daemon run out of memory.
 */
static int record_room(const uint8_t head[HEAD_LEN], uint64_t *out)
{
	struct reader r = reader_of(head, HEAD_LEN);
	struct sidecar s = { 0 };
	size_t tag_len, path_len;
	uint32_t n_xattrs;
	uint64_t xattrs, room;
	int err = decode_format(head);

	(void)read_bytes(&r, 10);
	if (!err)
		err = decode_head(&r, &s, &tag_len, &path_len, &n_xattrs);
	if (err)
		return err;
	xattrs = n_xattrs * XATTR_LEN_MAX;
	room = HEAD_LEN + tag_len + path_len + UINT64_C(4) * s.attr.n_chunks +
	       (xattrs < XATTRS_ROOM ? xattrs : XATTRS_ROOM);
	*out = room < RECORD_MAX ? room : RECORD_MAX;
	return 0;
}

static int decode_xattr(struct reader *r, struct remote_attr *a)
{
	size_t name_len = (size_t)read_le(r, 2);
	size_t len = (size_t)read_le(r, 4);
	const uint8_t *name = read_bytes(r, name_len);
	const uint8_t *value = read_bytes(r, len);
	char copy[META_NAME_MAX + 1];

	if (r->bad || !name_len || name_len > META_NAME_MAX ||
	    memchr(name, 0, name_len))
		return -EBADMSG;
	memcpy(copy, name, name_len);
	copy[name_len] = '\0';
	return remote_attr_set_xattr(a, copy, value, len);
}

static int decode_crcs(struct reader *r, struct remote_attr *a)
{
	const size_t n = a->n_chunks;
	const uint8_t *p = read_bytes(r, n * 4);

	if (!p || r->p != r->end)
		return -EBADMSG;
	if (!n)
		return 0;
	a->crcs = calloc(n, sizeof(*a->crcs));
	if (!a->crcs)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		a->crcs[i] = (uint32_t)get_le(p + 4 * i, 4);
	return 0;
}

static int decode_body(struct reader *r, struct sidecar *s)
{
	size_t tag_len = 0, path_len = 0;
	uint32_t n_xattrs = 0;
	const uint8_t *tag, *path;
	int err = decode_head(r, s, &tag_len, &path_len, &n_xattrs);

	if (err)
		return err;
	tag = read_bytes(r, tag_len);
	path = read_bytes(r, path_len);
	if (!tag || !path || memchr(tag, 0, tag_len) ||
	    memchr(path, 0, path_len))
		return -EBADMSG;
	memcpy(s->tag, tag, tag_len);
	s->path = strndup((const char *)path, path_len);
	if (!s->path)
		return -ENOMEM;
	for (uint32_t i = 0; i < n_xattrs && !err; i++)
		err = decode_xattr(r, &s->attr);
	return err ? err : decode_crcs(r, &s->attr);
}

int sidecar_decode(const void *rec, size_t len, struct sidecar *out)
{
	CLEANUP(sidecar_finip) struct sidecar s = { 0 };
	const uint8_t *p = rec;
	struct reader r = reader_of(rec, len);
	int err;

	if (len < HEAD_LEN)
		return -EBADMSG;
	err = decode_format(p);
	if (err)
		return err;
	if (get_le(p + CRC_AT, 4) != checksum_of(p, len))
		return -EBADMSG;
	(void)read_bytes(&r, 10);
	err = decode_body(&r, &s);
	if (err)
		return err;
	*out = s;
	s = (struct sidecar){ 0 };
	return 0;
}

/* ---- files ------------------------------------------------------------ */

/* What could not be read again is not written. */
static int encode_whole(struct bytes *b, const struct sidecar *s)
{
	uint64_t room = 0;
	int err = encode(b, s);

	if (!err && record_room(b->p, &room))
		err = -E2BIG;
	return err ? err : b->len > room ? -E2BIG : 0;
}

/* Nobody else writes this name: one writer a tag, and one publisher. */
static int record_write(struct dir_root *root, int dir, const char *name,
			const struct sidecar *s)
{
	CLEANUP(bytes_fini) struct bytes b = { 0 };
	char temp[TAG_LEN + 8];
	int fd, err = encode_whole(&b, s);

	if (err)
		return err;
	snprintf(temp, sizeof(temp), ".new-%s", name);
	fd = openat(dir, temp,
		    O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
		    0644);
	if (fd < 0)
		return -errno;
	err = pwrite_all(fd, b.p, b.len, 0);
	if (!err && fsync(fd))
		err = -errno;
	close(fd);
	if (!err)
		err = FAULT("sidecar.write", -EIO);
	if (!err && renameat(dir, temp, dir, name))
		err = -errno;
	if (err)
		(void)unlinkat(dir, temp, 0);
	return err ? err : dirty_add(root->d, dir);
}

static int record_check_len(int fd, uint64_t len)
{
	uint8_t head[HEAD_LEN];
	uint64_t room = 0;
	int err;

	if (len < HEAD_LEN)
		return -EBADMSG;
	err = pread_all(fd, head, sizeof(head), 0);
	if (!err)
		err = record_room(head, &room);
	if (err)
		return err;
	return len > room ? -EBADMSG : 0;
}

static int record_read(int dir, const char *name, struct sidecar *out)
{
	CLEANUP(close_p)
	int fd = openat(dir, name,
			O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	CLEANUP(free_p) uint8_t *p = NULL;
	struct stat st;
	int err;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EBADMSG;
	err = record_check_len(fd, (uint64_t)st.st_size);
	if (err)
		return err;
	p = malloc((size_t)st.st_size + 1);
	if (!p)
		return -ENOMEM;
	err = pread_all(fd, p, (size_t)st.st_size, 0);
	return err ? err : sidecar_decode(p, (size_t)st.st_size, out);
}

int sidecar_write(struct dir_root *root, const struct sidecar *s)
{
	return record_write(root, root->versions, s->tag, s);
}

/* A tag comes from the store: it must not lead anywhere. */
static bool tag_is_name(const char *tag)
{
	return tag[0] && tag[0] != '.' && !strchr(tag, '/');
}

int sidecar_read(struct dir_root *root, const char *tag, struct sidecar *out)
{
	int err;

	if (!tag_is_name(tag))
		return -ENOENT;
	err = record_read(root->versions, tag, out);
	if (!err && strcmp(out->tag, tag)) {
		sidecar_fini(out);
		err = -EBADMSG;
	}
	return err;
}

void sidecar_remove(struct dir_root *root, const char *tag)
{
	if (tag_is_name(tag))
		(void)unlinkat(root->versions, tag, 0);
}

/* ---- records by path -------------------------------------------------- */

static void name_of(const char *path, char out[17])
{
	uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	for (const char *p = path; *p; p++)
		h = (h ^ (uint8_t)*p) * UINT64_C(0x100000001b3);
	snprintf(out, 17, "%016llx", (unsigned long long)h);
}

int name_write(struct dir_root *root, const struct sidecar *s)
{
	char name[17];
	int dir, err = root_names(root, true, &dir);

	if (err)
		return err;
	name_of(s->path, name);
	return record_write(root, dir, name, s);
}

int name_read(struct dir_root *root, const char *path, struct sidecar *out)
{
	char name[17];
	int dir, err = root_names(root, false, &dir);

	if (err)
		return err;
	name_of(path, name);
	err = record_read(dir, name, out);
	if (!err && strcmp(out->path, path)) {
		sidecar_fini(out);
		err = -ENOENT;
	}
	return err;
}

/* A record that came back after a power cut would win over the object. */
int name_remove(struct dir_root *root, const char *path)
{
	char name[17];
	int dir, err = root_names(root, false, &dir);

	if (err)
		return err == -ENOENT ? 0 : err;
	name_of(path, name);
	if (unlinkat(dir, name, 0))
		return errno == ENOENT ? 0 : -errno;
	return dirty_add(root->d, dir);
}

void names_fini(struct names *ns)
{
	for (size_t i = 0; i < ns->n; i++)
		sidecar_fini(&ns->all[i]);
	free(ns->all);
	*ns = (struct names){ 0 };
}

static int names_add(struct dir_root *root, const char *path, struct names *ns)
{
	struct sidecar s = { 0 };
	int err = name_read(root, path, &s);

	if (err == -ENOENT || err == -EBADMSG)
		return 0;
	if (err)
		return err;
	if (ns->n == ns->cap) {
		size_t cap = ns->cap ? 2 * ns->cap : BATCH;
		struct sidecar *all = realloc(ns->all, cap * sizeof(*all));

		if (!all) {
			sidecar_fini(&s);
			return -ENOMEM;
		}
		ns->all = all;
		ns->cap = cap;
	}
	ns->all[ns->n++] = s;
	return 0;
}

/* Paths still to be looked at. */
struct todo {
	char **path;
	size_t n, cap;
};

static void todo_fini(struct todo *t)
{
	while (t->n)
		free(t->path[--t->n]);
	free(t->path);
}

static int todo_push(struct todo *t, const char *dir, const char *name)
{
	char *path = NULL;

	if (t->n == t->cap) {
		size_t cap = t->cap ? 2 * t->cap : BATCH;
		char **all = realloc(t->path, cap * sizeof(*all));

		if (!all)
			return -ENOMEM;
		t->path = all;
		t->cap = cap;
	}
	if (asprintf(&path, "%s%s%s", dir, *dir && *name ? "/" : "", name) < 0)
		return -ENOMEM;
	t->path[t->n++] = path;
	return 0;
}

struct walk {
	struct todo *todo;
	const char *dir;
};

static int walk_entry(void *arg, const char *name)
{
	struct walk *w = arg;

	return todo_push(w->todo, w->dir, name);
}

/* Without records by path there is nothing to look for. */
int names_collect(struct remote_dir *d, struct dir_root *root, const char *path,
		  struct names *out)
{
	CLEANUP(todo_fini) struct todo todo = { 0 };
	struct remote *r = &d->remote;
	int dir, err = root_names(root, false, &dir);

	if (err)
		return err == -ENOENT ? 0 : err;
	err = todo_push(&todo, path, "");
	while (!err && todo.n) {
		CLEANUP(free_p) char *at = todo.path[--todo.n];
		struct walk w = { &todo, at };

		err = names_add(root, at, out);
		if (!err)
			err = r->ops->list(r, at, walk_entry, &w);
		if (err == -ENOTDIR || err == -ENOENT)
			err = 0;
	}
	return err;
}

int names_write(struct dir_root *root, const struct names *ns, const char *from,
		const char *to)
{
	const size_t skip = strlen(from);

	for (size_t i = 0; i < ns->n; i++) {
		struct sidecar moved = ns->all[i];
		int err;

		if (asprintf(&moved.path, "%s%s", to, moved.path + skip) < 0)
			return -ENOMEM;
		err = name_write(root, &moved);
		free(moved.path);
		if (err)
			return err;
	}
	return 0;
}

int names_remove(struct dir_root *root, const struct names *ns)
{
	int err = 0;

	for (size_t i = 0; i < ns->n && !err; i++)
		err = name_remove(root, ns->all[i].path);
	return err;
}
