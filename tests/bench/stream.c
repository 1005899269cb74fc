/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One timed pass over one large file, for scripts/bench:
 *
 *   stream write|read|mmap FILE BYTES CALL HELD
 *
 * moves BYTES in calls of CALL bytes and prints the seconds from open to
 * close. HELD bytes of memory are touched before and freed right when the
 * clock starts: where the hypervisor takes free memory back, what follows
 * else measures the first touch of new memory and nothing more.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
	fprintf(stderr, "stream: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* Memory with a page behind every address; NULL for 0 bytes. */
static void *touched(size_t len)
{
	void *p;

	if (!len)
		return NULL;
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		 -1, 0);
	if (p == MAP_FAILED)
		die("mmap");
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 0x5a, len);
	return p;
}

static void do_write(const char *path, uint64_t bytes, char *buf, size_t call)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	uint64_t off;
	ssize_t n;

	if (fd < 0)
		die(path);
	for (off = 0; off < bytes; off += (uint64_t)n) {
		uint64_t left = bytes - off;

		n = write(fd, buf, left < call ? (size_t)left : call);
		if (n < 0)
			die("write");
	}
	if (close(fd))
		die("close");
}

static void do_read(const char *path, uint64_t bytes, char *buf, size_t call)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t off;
	ssize_t n;

	if (fd < 0)
		die(path);
	for (off = 0; off < bytes; off += (uint64_t)n) {
		n = read(fd, buf, call);
		if (n < 0)
			die("read");
		if (n == 0)
			break;
	}
	if (off != bytes) {
		errno = EIO;
		die("the file is shorter");
	}
	close(fd);
}

static void do_mmap(const char *path, uint64_t bytes, char *buf, size_t call)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *p;

	if (fd < 0)
		die(path);
	p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	close(fd);
	for (uint64_t off = 0; off < bytes; off += call)
		memcpy(buf, p + off,
		       bytes - off < call ? (size_t)(bytes - off) : call);
	munmap(p, bytes);
}

static uint64_t number(const char *s)
{
	char *end;
	uint64_t n = strtoull(s, &end, 10);

	if (*end || end == s) {
		fprintf(stderr, "stream: %s is not a number\n", s);
		exit(2);
	}
	return n;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(const char *, uint64_t, char *, size_t);
	} ops[] = {
		{ "write", do_write },
		{ "read", do_read },
		{ "mmap", do_mmap },
	};

	for (size_t i = 0; argc == 6 && i < 3; i++) {
		uint64_t bytes, call, held;
		char *buf, *hot;
		double began;

		if (strcmp(argv[1], ops[i].name) != 0)
			continue;
		bytes = number(argv[3]);
		call = number(argv[4]);
		held = number(argv[5]);
		buf = touched(call);
		hot = touched(held);
		if (hot)
			munmap(hot, held);
		began = now_s();
		ops[i].run(argv[2], bytes, buf, call);
		printf("%.9f\n", now_s() - began);
		return 0;
	}
	fputs("usage: stream write|read|mmap FILE BYTES CALL HELD\n", stderr);
	return 2;
}
