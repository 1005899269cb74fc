/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a unit test needs: CHECK, a temporary folder that goes away with the
 * process, and exit code 77 for a skip that says why.
 */
#ifndef CKPT_TESTS_UNIT_CHECK_H
#define CKPT_TESTS_UNIT_CHECK_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char check_dir[PATH_MAX];
static pid_t check_owner;

/* Depth first, not across the mounts that CHECK's user has left. */
__attribute__((unused)) static void check_remove(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *e;
	char sub[PATH_MAX];
	struct stat st;

	while (d && (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name) >=
		    (int)sizeof(sub))
			continue;
		if (!lstat(sub, &st) && S_ISDIR(st.st_mode)) {
			while (!umount2(sub, MNT_DETACH))
				;
			check_remove(sub);
		} else {
			unlink(sub);
		}
	}
	if (d)
		closedir(d);
	rmdir(path);
}

__attribute__((unused)) static void check_remove_dir(void)
{
	if (getpid() != check_owner)
		return;
	/* After a failure other threads may still be writing there. */
	for (int i = 0; i < 20 && !access(check_dir, F_OK); i++)
		check_remove(check_dir);
}

/* Run at the end, the last one first; also after a failure, where exit()
 * would take RocksDB's and libfuse's insides from under running threads. */
static void (*check_cleanups[4])(void);
static int check_n_cleanups;

static void check_clean_up(void)
{
	while (check_n_cleanups > 0)
		check_cleanups[--check_n_cleanups]();
}

__attribute__((unused)) static void check_at_end(void (*fn)(void))
{
	if (!check_n_cleanups)
		atexit(check_clean_up);
	check_cleanups[check_n_cleanups++] = fn;
}

__attribute__((unused, noreturn)) static void check_failed(void)
{
	static atomic_flag failed = ATOMIC_FLAG_INIT;

	while (atomic_flag_test_and_set(&failed))
		pause(); /* another thread was first */
	check_clean_up();
	_exit(1);
}

#define CHECK(cond)                                                            \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, \
				__LINE__, #cond);                              \
			check_failed();                                        \
		}                                                              \
	} while (0)

/* Both as integers; prints them. */
#define CHECK_EQ(a, b)                                                         \
	do {                                                                   \
		long long check_a = (long long)(a);                            \
		long long check_b = (long long)(b);                            \
		if (check_a != check_b) {                                      \
			fprintf(stderr,                                        \
				"%s:%d: CHECK_EQ failed: %s = %lld, not "      \
				"%s = %lld\n",                                 \
				__FILE__, __LINE__, #a, check_a, #b, check_b); \
			check_failed();                                        \
		}                                                              \
	} while (0)

#define CHECK_STR(a, b)                                                 \
	do {                                                            \
		const char *check_a = (a), *check_b = (b);              \
		if (strcmp(check_a, check_b) != 0) {                    \
			fprintf(stderr,                                 \
				"%s:%d: CHECK_STR failed: \"%s\", not " \
				"\"%s\"\n",                             \
				__FILE__, __LINE__, check_a, check_b);  \
			check_failed();                                 \
		}                                                       \
	} while (0)

__attribute__((unused)) static void short_wait(void)
{
	struct timespec t = { 0, 2000000 };

	nanosleep(&t, NULL);
}

/* Waits for a condition, at most about 20 s. */
#define CHECK_SOON(cond)                                      \
	do {                                                  \
		for (int i_ = 0; i_ < 10000 && !(cond); i_++) \
			short_wait();                         \
		CHECK(cond);                                  \
	} while (0)

#define SKIP(...)                                         \
	do {                                              \
		fprintf(stderr, "skipped: " __VA_ARGS__); \
		fputc('\n', stderr);                      \
		exit(77);                                 \
	} while (0)

/* A fresh folder, removed at exit; below TMPDIR or /tmp. Call once. */
__attribute__((unused)) static const char *check_tmpdir(void)
{
	const char *base = getenv("TMPDIR");

	snprintf(check_dir, sizeof(check_dir), "%s/ckptfs-unit-XXXXXX",
		 base && *base ? base : "/tmp");
	CHECK(mkdtemp(check_dir));
	check_owner = getpid();
	check_at_end(check_remove_dir);
	return check_dir;
}

#endif
