/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How bytes come to a directory remote. A version is written under
 * .ckptfs/staged/, checked on the way, dressed with its attributes and label,
 * synced, given its sidecar, and only then called staged/<identity>. Placing
 * it is one rename, so a listing never shows a part of it.
 *
 *   staged/<identity>.tmp… → (fsync) → versions/<identity> → staged/<identity>
 *   → (rename) the object's name → (sync()) the directories
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/fd_io.h"
#include "engine/remote_dir.h"
#include "engine/tier.h"
#include "metadata/fault.h"

#define WRITE_BEHIND (32u << 20) /* start writing back this often */
#define DROP_ABOVE (1u << 20)    /* longer ones do not stay in the page cache */
#define STALE_S (24 * 3600)      /* temporary names older than this go */
#define UUID_DIGITS 32
#define PART_LEN 128

/* ---- bytes ------------------------------------------------------------ */

static bool is_zero(const uint8_t *p, size_t len)
{
	return !len || (!p[0] && !memcmp(p, p + 1, len - 1));
}

/* Chunks of zeros stay holes. */
static int copy_chunks(int src, int dst, const struct remote_attr *a,
		       uint8_t *buf, _Atomic uint64_t *progress)
{
	for (uint64_t off = 0, i = 0; off < a->size; off += CHUNK_LEN, i++) {
		size_t len = a->size - off < CHUNK_LEN ? (size_t)(a->size - off)
						       : CHUNK_LEN;
		int err = pread_all(src, buf, len, off);

		if (!err && a->n_chunks && crc32c(0, buf, len) != a->crcs[i])
			err = -EBADMSG;
		if (!err && !is_zero(buf, len))
			err = pwrite_all(dst, buf, len, off);
		if (err)
			return err;
		if (off && off % WRITE_BEHIND == 0)
			(void)sync_file_range(dst, (off_t)(off - WRITE_BEHIND),
					      WRITE_BEHIND,
					      SYNC_FILE_RANGE_WRITE);
		if (progress)
			*progress += len;
	}
	return 0;
}

static int copy_bytes(int src, int dst, const struct remote_attr *a,
		      _Atomic uint64_t *progress)
{
	CLEANUP(free_p) uint8_t *buf = NULL;
	int err;

	if (a->n_chunks && a->n_chunks != N_CHUNKS(a->size))
		return -EINVAL;
	if (posix_memalign((void **)&buf, 4096, CHUNK_LEN))
		return -ENOMEM;
	err = copy_chunks(src, dst, a, buf, progress);
	if (!err && ftruncate(dst, (off_t)a->size))
		err = -errno;
	return err;
}

/* ---- stage ------------------------------------------------------------ */

static int fill_part(struct remote_dir *d, struct dir_root *root,
		     const char *part, const struct remote_attr *attr, int src,
		     _Atomic uint64_t *progress)
{
	char tag[TAG_LEN];
	CLEANUP(close_p)
	int fd = openat(root->staged, part,
			O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
			0600);
	int err;

	if (fd < 0)
		return -errno;
	err = staged_new_tag(attr->identity, tag);
	if (!err)
		err = copy_bytes(src, fd, attr, progress);
	if (!err)
		err = FAULT("remote.dress", -ENOSPC);
	if (!err)
		err = staged_dress(d, root, fd, part, attr->identity, tag,
				   attr);
	if (!err && attr->size > DROP_ABOVE)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	return err;
}

/* The last step of staging: it is whole. */
static int part_done(struct remote_dir *d, struct dir_root *root,
		     const char *part, const struct remote_attr *attr, int err)
{
	if (!err && renameat(root->staged, part, root->staged, attr->identity))
		err = -errno;
	if (err)
		staged_remove(d, root, part);
	else
		staged_note(d, attr);
	return err;
}

/* A name of its own for each try: a thread that a daemon left hanging in the
 * store may go on with the same version when another has begun. */
static void part_name(struct remote_dir *d, const struct remote_attr *attr,
		      char part[PART_LEN])
{
	char temp[64];

	temp_name(d, temp);
	snprintf(part, PART_LEN, "%s.%s", attr->identity, temp);
}

int dir_stage(struct remote *r, const struct remote_attr *attr, int fd,
	      _Atomic uint64_t *progress)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	char part[PART_LEN];
	int err = root_get(d, &root);

	if (err || staged_is_there(root, attr))
		return err;
	part_name(d, attr, part);
	err = fill_part(d, root, part, attr, fd, progress);
	return part_done(d, root, part, attr, err);
}

static void unstage(struct remote_dir *d, struct dir_root *root,
		    const char *identity)
{
	staged_remove(d, root, identity);
	staged_forget(d, identity);
}

int dir_unstage(struct remote *r, const char *identity)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	int err = root_get(d, &root);

	if (!err)
		unstage(d, root, identity);
	return err;
}

/* Temporary names carry the second they were made in. */
static bool is_stale(const char *name)
{
	unsigned long long made;

	return !strncmp(name, "tmp-", 4) &&
	       (made = strtoull(name + 4, NULL, 16)) != 0 &&
	       made + STALE_S < (unsigned long long)time(NULL);
}

static void unstage_name(struct remote_dir *d, struct dir_root *root,
			 const char *name, const char *uuid)
{
	char identity[64];
	size_t len = strlen(name);

	if (is_stale(name)) {
		staged_remove(d, root, name);
	} else if (len >= REMOTE_IDENTITY_LEN &&
		   !strncmp(name, uuid, UUID_DIGITS)) {
		snprintf(identity, sizeof(identity), "%.*s",
			 REMOTE_IDENTITY_LEN, name);
		staged_remove(d, root, name);
		staged_forget(d, identity);
	}
}

int dir_unstage_all(struct remote *r, const char *uuid)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	const struct dirent *e;
	int fd, err = root_get(d, &root);
	DIR *dir;

	if (err)
		return err;
	fd = openat(root->staged, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		err = -errno;
		if (fd >= 0)
			close(fd);
		return err;
	}
	while ((e = readdir(dir)))
		unstage_name(d, root, e->d_name, uuid);
	closedir(dir);
	return 0;
}

/* ---- restage ---------------------------------------------------------- */

/*
 * Another name for the inode, under a new label; the old name goes soon, and
 * till then shares it. (With labels in names/ the old name keeps its own.) A
 * file of others is known by its mtime: one that shall have another is copied.
 */
static int share_part(struct remote_dir *d, struct dir_root *root,
		      const struct place *from, const char *from_path,
		      const char *part, const struct remote_attr *attr)
{
	CLEANUP(close_p) int fd = -1;
	struct before was;
	char tag[TAG_LEN];
	int err = before_look(d, root, from, from_path, &was);

	if (!err)
		err = staged_new_tag(attr->identity, tag);
	if (!err)
		err = staged_expect(root, was.tag, &was.st, attr->mtime_ns);
	if (err)
		return err == -ENOENT ? -EOPNOTSUPP : err;
	if (linkat(from->parent, from->name, root->staged, part, 0))
		return -EOPNOTSUPP;
	fd = open_anyway(root->staged, part,
			 O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fd;
	err = staged_dress(d, root, fd, part, attr->identity, tag, attr);
	if (!err && !was.by_name)
		sidecar_remove(root, was.tag); /* of the label it had */
	return err;
}

int dir_restage(struct remote *r, const struct remote_attr *attr,
		const char *from)
{
	struct remote_dir *d = remote_dir(r);
	CLEANUP(root_putp) struct dir_root *root = NULL;
	CLEANUP(place_close) struct place p = { .parent = -1 };
	char part[PART_LEN];
	struct stat st;
	int err = root_get(d, &root);

	if (err || staged_is_there(root, attr))
		return err;
	err = from ? place_open(root, from, &p) : -ENOENT;
	if (!err && fstatat(p.parent, p.name, &st, AT_SYMLINK_NOFOLLOW))
		err = -errno;
	if (!err &&
	    (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != attr->size))
		err = -ENOENT;
	if (err)
		return err;
	part_name(d, attr, part);
	err = share_part(d, root, &p, from, part, attr);
	if (err == -EOPNOTSUPP)
		err = staged_copy(d, root, &p, attr, part, attr->identity);
	return part_done(d, root, part, attr, err);
}
