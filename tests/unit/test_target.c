/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing past the page cache where a filesystem will not, will not all of it,
 * or fails: nothing is lost, and no error is. Linked with --wrap=pwrite64 and
 * --wrap=close (CMakeLists.txt).
 */
#include "providers/target.h"

#include <sys/stat.h>

#include "providers/cleanup.h"

#include "check.h"

#define MIB ((size_t)1 << 20)
#define LEN (2 * MIB + 777)
#define OFF 123 /* no whole page begins there */

static enum { AS_IT_IS, REFUSES, STOPS_SHORT, FAILS, FAILS_AT_CLOSE } disk;

ssize_t __real_pwrite64(int fd, const void *buf, size_t len, off_t off);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off);
int __real_close(int fd);
int __wrap_close(int fd);

static bool can; /* here; an old tmpfs, for one, cannot */

static bool is_direct(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && flags & O_DIRECT;
}

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t len, off_t off)
{
	if (is_direct(fd) && (disk == REFUSES || disk == FAILS)) {
		errno = disk == FAILS ? EIO : EINVAL;
		return -1;
	}
	if (is_direct(fd) && disk == STOPS_SHORT) {
		/* Each write ends within a page, later ones before one. */
		if (len < MIB)
			return 100;
		len = MIB / 2;
		return __real_pwrite64(fd, buf, len, off) == (ssize_t)len
			       ? (ssize_t)len + 100
			       : -1;
	}
	return __real_pwrite64(fd, buf, len, off);
}

int __wrap_close(int fd)
{
	bool fails = disk == FAILS_AT_CLOSE && is_direct(fd);
	int r = __real_close(fd);

	if (!fails)
		return r;
	errno = EDQUOT;
	return -1;
}

/* What the file holds in the end, or the error. */
static int save(const char *path, const char *bytes)
{
	CLEANUP(free_p) void *buffer = NULL;
	struct target t;
	char *at;
	int r;

	CHECK(!posix_memalign(&buffer, pool_slack(), LEN + pool_slack()));
	CHECK_EQ(target_init(&t, path), 0);
	CHECK_EQ(target_open(&t, OFF + LEN, true), 0);
	can = t.direct_fd >= 0;
	at = target_staged_at(buffer, OFF);
	memcpy(at, bytes, LEN);
	r = target_write_staged(&t, at, LEN, OFF);
	if (r == 0)
		r = target_commit(&t, OFF + LEN);
	if (r < 0)
		target_abort(&t);
	target_fini(&t);
	return r;
}

static void check_file(const char *path, const char *bytes)
{
	int fd = open(path, O_RDONLY);
	char *got = malloc(LEN);
	struct stat st;

	CHECK(got && fd >= 0 && !fstat(fd, &st));
	CHECK_EQ(st.st_size, OFF + LEN);
	CHECK_EQ(pread(fd, got, LEN, OFF), LEN);
	CHECK(!memcmp(got, bytes, LEN));
	close(fd);
	free(got);
}

int main(void)
{
	char path[PATH_MAX + 8], *bytes = malloc(LEN);

	CHECK(bytes);
	for (size_t i = 0; i < LEN; i++)
		bytes[i] = (char)(i * 2654435761u >> 13);
	snprintf(path, sizeof(path), "%s/file", check_tmpdir());

	for (disk = AS_IT_IS; disk <= STOPS_SHORT; disk++) {
		CHECK_EQ(save(path, bytes), 0);
		check_file(path, bytes);
		CHECK(!unlink(path));
	}
	disk = FAILS;
	CHECK(save(path, bytes) == -EIO || !can);
	CHECK(access(path, F_OK) || !can);
	disk = FAILS_AT_CLOSE;
	CHECK(save(path, bytes) == -EDQUOT || !can);
	CHECK(access(path, F_OK) || !can);
	disk = AS_IT_IS;
	free(bytes);
	return 0;
}
