/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timed operations on many names of one directory, for scripts/bench:
 *
 *   names OP DIR N [THREADS]
 *
 * does OP for each of N names, shared out to THREADS threads (default 1), and
 * prints the seconds. OP is
 *   create  create, write 4 KiB, close      fsync   the same with an fsync
 *   stat    unlink    mkdir    rmdir        rename  f… to g…
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_THREADS 64

struct share {
	pthread_t thread;
	int (*op)(unsigned long i);
	unsigned long first, end;
};

static int dir; /* descriptor of DIR */
static char block[4096];

static void die(const char *what)
{
	fprintf(stderr, "names: %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static const char *name_of(char kind, unsigned long i, char name[24])
{
	snprintf(name, 24, "%c%07lu", kind, i);
	return name;
}

static int write_file(unsigned long i, int sync)
{
	char name[24];
	int fd = openat(dir, name_of('f', i, name),
			O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	if (fd < 0)
		return -1;
	if (write(fd, block, sizeof(block)) != (ssize_t)sizeof(block))
		return -1;
	if (sync && fsync(fd))
		return -1;
	return close(fd);
}

static int op_create(unsigned long i)
{
	return write_file(i, 0);
}

static int op_fsync(unsigned long i)
{
	return write_file(i, 1);
}

static int op_stat(unsigned long i)
{
	char name[24];
	struct stat st;

	return fstatat(dir, name_of('f', i, name), &st, 0);
}

static int op_unlink(unsigned long i)
{
	char name[24];

	return unlinkat(dir, name_of('f', i, name), 0);
}

static int op_mkdir(unsigned long i)
{
	char name[24];

	return mkdirat(dir, name_of('d', i, name), 0755);
}

static int op_rmdir(unsigned long i)
{
	char name[24];

	return unlinkat(dir, name_of('d', i, name), AT_REMOVEDIR);
}

static int op_rename(unsigned long i)
{
	char from[24], to[24];

	return renameat(dir, name_of('f', i, from), dir, name_of('g', i, to));
}

static void *run_share(void *arg)
{
	const struct share *s = arg;

	for (unsigned long i = s->first; i < s->end; i++)
		if (s->op(i))
			die("operation");
	return NULL;
}

static double run(int (*op)(unsigned long), unsigned long n,
		  unsigned long n_threads)
{
	struct share shares[MOST_THREADS];
	double began = now_s();

	for (unsigned long t = 0; t < n_threads; t++) {
		shares[t] = (struct share){ .op = op,
					    .first = n * t / n_threads,
					    .end = n * (t + 1) / n_threads };
		if (n_threads == 1)
			run_share(&shares[t]);
		else if (pthread_create(&shares[t].thread, NULL, run_share,
					&shares[t]))
			die("pthread_create");
	}
	for (unsigned long t = 0; n_threads > 1 && t < n_threads; t++)
		pthread_join(shares[t].thread, NULL);
	return now_s() - began;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*op)(unsigned long i);
	} ops[] = {
		{ "create", op_create }, { "fsync", op_fsync },
		{ "stat", op_stat },     { "unlink", op_unlink },
		{ "mkdir", op_mkdir },   { "rmdir", op_rmdir },
		{ "rename", op_rename },
	};
	unsigned long n, n_threads;

	if (argc < 4)
		goto usage;
	n = strtoul(argv[3], NULL, 10);
	n_threads = argc > 4 ? strtoul(argv[4], NULL, 10) : 1;
	if (!n || !n_threads || n_threads > MOST_THREADS)
		goto usage;
	dir = open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		die(argv[2]);
	for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		if (strcmp(argv[1], ops[i].name) == 0) {
			printf("%.9f\n", run(ops[i].op, n, n_threads));
			return 0;
		}
usage:
	fputs("usage: names OP DIR N [THREADS]\n", stderr);
	return 2;
}
