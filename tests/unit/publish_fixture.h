/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the tests of remotes, publish and restore: content with its checksums,
 * short ways to look at a remote's plain directory, and (with
 * PUBLISH_FIXTURE_META) a mount's namespace that logs events as fs/ does.
 */
#ifndef CKPT_TESTS_UNIT_PUBLISH_FIXTURE_H
#define CKPT_TESTS_UNIT_PUBLISH_FIXTURE_H

#include <stdbool.h>
#include <sys/mman.h>
#include <sys/xattr.h>
#include <time.h>

#include "engine/checksum.h"
#include "engine/remote.h"
#include "engine/remote_dir.h"
#include "engine/tier.h"
#include "tests/unit/check.h"

#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif
#ifndef WITH_TSAN
#define WITH_TSAN 0 /* 1: a forked process must not start threads */
#endif

#define NS INT64_C(1000000000)
#define UUID0 "0123456789abcdef0123456789abcdef"

__attribute__((unused)) static int content_fd(uint64_t seed, size_t size)
{
	int fd = memfd_create("content", MFD_CLOEXEC);
	uint64_t x = seed * 2654435761u + 1;
	char *buf = malloc(size + 8);

	CHECK(fd >= 0 && buf);
	for (size_t i = 0; i < size; i += 8) {
		x = x * UINT64_C(6364136223846793005) + seed;
		memcpy(buf + i, &x, 8);
	}
	CHECK_EQ(pwrite(fd, buf, size, 0), size);
	free(buf);
	return fd;
}

__attribute__((unused)) static uint32_t *content_crcs(int fd, size_t size,
						      uint32_t *n)
{
	size_t count = N_CHUNKS(size);
	uint32_t *crcs = calloc(count + 1, 4);
	char *buf = malloc(CHUNK_LEN);

	CHECK(crcs && buf);
	for (size_t i = 0; i < count; i++) {
		size_t off = i * CHUNK_LEN;
		size_t len = size - off < CHUNK_LEN ? size - off : CHUNK_LEN;

		CHECK_EQ(pread(fd, buf, len, (off_t)off), len);
		crcs[i] = crc32c(0, buf, len);
	}
	free(buf);
	*n = (uint32_t)count;
	return crcs;
}

/* An attribute record of version `id` with content. */
__attribute__((unused)) static struct remote_attr attr_with(uint64_t id, int fd,
							    size_t size)
{
	struct remote_attr a = {
		.mode = S_IFREG | 0640,
		.uid = getuid(),
		.gid = getgid(),
		.mtime_ns = 1600000000 * NS + 123456789,
		.size = size,
	};

	snprintf(a.identity, sizeof(a.identity), "%s-%016llx", UUID0,
		 (unsigned long long)id);
	a.crcs = content_crcs(fd, size, &a.n_chunks);
	return a;
}

__attribute__((unused)) static struct remote_attr dir_attr(uint32_t mode)
{
	return (struct remote_attr){ .mode = S_IFDIR | mode,
				     .uid = getuid(),
				     .gid = getgid(),
				     .mtime_ns = 1500000000 * NS };
}

__attribute__((unused)) static bool same_bytes(int fd, const char *path)
{
	struct stat a, b;
	int other = open(path, O_RDONLY);
	char *x, *y;
	bool same;

	if (other < 0 || fstat(fd, &a) || fstat(other, &b))
		return false;
	if (a.st_size != b.st_size) {
		close(other);
		return false;
	}
	x = malloc((size_t)a.st_size + 1);
	y = malloc((size_t)a.st_size + 1);
	CHECK(x && y);
	CHECK_EQ(pread(fd, x, (size_t)a.st_size, 0), a.st_size);
	CHECK_EQ(pread(other, y, (size_t)a.st_size, 0), a.st_size);
	same = !memcmp(x, y, (size_t)a.st_size);
	free(x);
	free(y);
	close(other);
	return same;
}

/* One of several buffers: base/path. */
__attribute__((unused)) static const char *at(const char *base,
					      const char *path)
{
	static _Thread_local char buf[8][PATH_MAX];
	static _Thread_local unsigned n;
	char *out = buf[n++ % 8];

	CHECK(snprintf(out, PATH_MAX, "%s/%s", base, path) < PATH_MAX);
	return out;
}

__attribute__((unused)) static bool exists(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

__attribute__((unused)) static unsigned n_entries(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	unsigned n = 0;

	while (d && (e = readdir(d)))
		n += e->d_name[0] != '.' || strlen(e->d_name) > 2;
	if (d)
		closedir(d);
	return n;
}

__attribute__((unused)) static void write_text(const char *path,
					       const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	CHECK(fd >= 0);
	CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

__attribute__((unused)) static struct remote *attached(const char *dir)
{
	char id[REMOTE_ID_ROOM] = "", why[256] = "";
	struct remote *r;

	CHECK_EQ(remote_open(dir, &r), 0);
	CHECK_EQ(r->ops->attach(r, id, why, sizeof(why)), 0);
	return r;
}

#endif
