/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A version's whole content: checking it against its checksums, and copying
 * it from descriptor to descriptor.
 *
 * With checksums a copy is by hand, chunk by chunk: what was checked is then
 * what was written. Without, the kernel does it if it will.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "engine/checksum.h"
#include "engine/extent.h"
#include "engine/fd_io.h"
#include "engine/flush.h"
#include "metadata/fault.h"

#define BLOCK_LEN 4096u

static uint64_t round_up(uint64_t len)
{
	return (len + BLOCK_LEN - 1) / BLOCK_LEN * BLOCK_LEN;
}

static size_t chunk_len(uint64_t size, uint64_t off)
{
	return size - off < CHUNK_LEN ? (size_t)(size - off) : CHUNK_LEN;
}

/*
 * Reads a chunk of len bytes. Asks for whole blocks, for O_DIRECT's sake.
 *   -EBADMSG  the file is too short
 */
static int read_chunk(int fd, void *buf, size_t len, uint64_t off)
{
	size_t want = round_up(len), done = 0;

	while (done < len) {
		ssize_t n = pread(fd, (char *)buf + done, want - done,
				  (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EBADMSG;
		done += (size_t)n;
	}
	return 0;
}

static int chunk_verify(int fd, void *buf, size_t len, uint64_t off,
			uint32_t crc)
{
	int rc = read_chunk(fd, buf, len, off);

	if (rc)
		return rc;
	return crc32c(0, buf, len) == crc ? 0 : -EBADMSG;
}

int checksum_verify(int fd, uint64_t size, const uint32_t *crcs,
		    uint32_t n_chunks, uint32_t *bad_chunk)
{
	CLEANUP(free_p) void *buf = NULL;

	if (n_chunks != N_CHUNKS(size))
		return -EINVAL;
	if (posix_memalign(&buf, BLOCK_LEN, CHUNK_LEN))
		return -ENOMEM;
	for (uint32_t i = 0; i < n_chunks; i++) {
		uint64_t off = (uint64_t)i * CHUNK_LEN;
		int rc = chunk_verify(fd, buf, chunk_len(size, off), off,
				      crcs[i]);

		if (rc == -EBADMSG && bad_chunk)
			*bad_chunk = i;
		if (rc)
			return rc;
	}
	return 0;
}

/* ---- copying ---- */

struct copy {
	int src, dst;
	uint64_t size;
	const uint32_t *crcs; /* or NULL */
	bool stale;           /* dst held something: holes must be punched */
	bool by_hand;         /* the kernel would not */
	bool direct;          /* dst takes whole blocks only */
	struct extent extent; /* of src */
	void *buf;            /* CHUNK_LEN bytes; owned */
};

static int chunk_by_hand(struct copy *c, uint64_t off, size_t len)
{
	size_t whole = c->direct ? round_up(len) : len;
	int rc;

	rc = c->crcs ? chunk_verify(c->src, c->buf, len, off,
				    c->crcs[off / CHUNK_LEN])
		     : read_chunk(c->src, c->buf, len, off);
	if (rc)
		return rc;
	memset((char *)c->buf + len, 0, whole - len);
	return pwrite_all(c->dst, c->buf, whole, off);
}

/* Copies in the kernel. -EOPNOTSUPP: it will not; nothing is known. */
static int chunk_by_kernel(struct copy *c, uint64_t off, size_t len)
{
	off_t from = (off_t)off, to = (off_t)off;
	size_t left = len;

	while (left) {
		ssize_t n =
			copy_file_range(c->src, &from, c->dst, &to, left, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == ENOSPC || errno == EDQUOT))
			return -errno;
		if (n <= 0)
			return -EOPNOTSUPP;
		left -= (size_t)n;
	}
	return 0;
}

/* -EOPNOTSUPP: dst cannot have holes, so zeros must be written. */
static int chunk_hole(struct copy *c, uint64_t off, size_t len)
{
	if (c->crcs && c->crcs[off / CHUNK_LEN] != crc32c_zeros(len))
		return -EBADMSG;
	if (!c->stale)
		return 0;
	return extent_punch(c->dst, off, round_up(len));
}

static int chunk_copy(struct copy *c, uint64_t off)
{
	size_t len = chunk_len(c->size, off);
	enum extent_kind kind = extent_look(&c->extent, c->src, off, len);
	int rc = -EOPNOTSUPP;

	if (kind == EXTENT_HOLE)
		rc = chunk_hole(c, off, len);
	else if (kind == EXTENT_DATA && !c->by_hand && !c->crcs)
		rc = chunk_by_kernel(c, off, len);
	if (rc != -EOPNOTSUPP)
		return rc;
	if (kind == EXTENT_DATA)
		c->by_hand = true;
	return chunk_by_hand(c, off, len);
}

static int size_set(int fd, uint64_t size)
{
	return ftruncate(fd, (off_t)size) ? -errno : 0;
}

static int copy_all(struct copy *c)
{
	struct stat st;
	int rc;

	if (fstat(c->src, &st))
		return -errno;
	if ((uint64_t)st.st_size < c->size)
		return -EBADMSG;
	if (fstat(c->dst, &st))
		return -errno;
	c->stale = st.st_size > 0;
	c->direct = fcntl(c->dst, F_GETFL) & O_DIRECT;
	rc = size_set(c->dst, c->size);
	for (uint64_t off = 0; !rc && off < c->size; off += CHUNK_LEN)
		rc = chunk_copy(c, off);
	if (!rc && c->direct) /* the last block went out in full */
		rc = size_set(c->dst, c->size);
	return rc;
}

/* Shares the whole of src, if the filesystem can and it has that size. */
static int copy_by_reflink(int src_fd, int dst_fd, uint64_t size)
{
	struct stat st;

	if (fstat(src_fd, &st))
		return -errno;
	if ((uint64_t)st.st_size != size)
		return -EOPNOTSUPP;
	if (fstat(dst_fd, &st))
		return -errno;
	/* A clone leaves what dst has behind size. */
	if ((uint64_t)st.st_size > size && ftruncate(dst_fd, (off_t)size))
		return -errno;
	return ioctl(dst_fd, FICLONE, src_fd) ? -errno : 0;
}

int copy_content(int src_fd, int dst_fd, uint64_t size, const uint32_t *crcs)
{
	struct copy c = {
		.src = src_fd,
		.dst = dst_fd,
		.size = size,
		.crcs = crcs,
	};
	CLEANUP(free_p) void *buf = NULL;
	int err = FAULT("content.copy", -EBADMSG);

	if (err)
		return err;
	if (!crcs && !copy_by_reflink(src_fd, dst_fd, size))
		return 0;
	if (posix_memalign(&buf, BLOCK_LEN, CHUNK_LEN))
		return -ENOMEM;
	c.buf = buf;
	return copy_all(&c);
}
