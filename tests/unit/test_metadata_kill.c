/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process is killed at any moment, also while it opens: what txn_commit()
 * had returned is there for the next one, and the durable state is sound.
 */
#include <poll.h>
#include <signal.h>

#include "tests/unit/metadata_fixture.h"

#define ROUNDS 16

static struct world w;

static void name_of(char *name, size_t len, uint64_t i)
{
	snprintf(name, len, "f%llu", (unsigned long long)i);
}

/* Says the number of each file that is committed, until it is killed. */
static void run(int fd, uint64_t i)
{
	struct dentry_rec d;
	char name[32];

	world_open(&w);
	/* The one before us may have committed one without saying it. */
	name_of(name, sizeof(name), i);
	i += !view_lookup(meta_accepted(w.m), META_ROOT_INO, name, &d);
	for (;; i++) {
		name_of(name, sizeof(name), i);
		make_file(w.m, META_ROOT_INO, name);
		if (write(fd, &i, sizeof(i)) != sizeof(i))
			_exit(1);
		if (i % 40 == 0)
			advance_all(w.m);
	}
}

/* All up to `last` must be there, at most one more. */
static void verify(uint64_t last)
{
	struct dentry_rec d;
	char name[32];
	uint64_t n;

	world_open(&w);
	CHECK(w.opened.start != META_POWER_CUT);
	for (uint64_t i = 1; i <= last + 2; i++) {
		int err;

		name_of(name, sizeof(name), i);
		err = view_lookup(meta_accepted(w.m), META_ROOT_INO, name, &d);
		CHECK(i > last ? (i == last + 1 || err == -ENOENT) : !err);
	}
	CHECK_EQ(meta_fsck(w.m, NULL, NULL, &n), 0);
	CHECK_EQ(n, 0);
	world_close(&w);
	_exit(0);
}

/* What there is as of D is a prefix. */
static void verify_prefix(void)
{
	struct dentry_rec d;
	char name[32];
	bool end = false;
	struct view *v;

	world_open(&w);
	CHECK_EQ(meta_durable_view(w.m, &v), 0);
	for (uint64_t i = 1; i < 100000; i++) {
		int err;

		name_of(name, sizeof(name), i);
		err = view_lookup(v, META_ROOT_INO, name, &d);
		CHECK(!err || err == -ENOENT);
		CHECK(err || !end);
		end = err;
	}
	view_free(v);
	world_close(&w);
	_exit(0);
}

/* RocksDB's threads do not survive a fork: this process never opens it. */
static void in_child(void (*fn)(uint64_t), uint64_t arg)
{
	pid_t pid = fork();
	int status;

	CHECK(pid >= 0);
	if (!pid) {
		fn(arg);
		_exit(0);
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
}

static void prefix_child(uint64_t arg)
{
	(void)arg;
	verify_prefix();
}

/*
 * Starts one and kills it once it has said n numbers, or after `ms` (it may
 * still be opening then). Returns the last number it said.
 */
static uint64_t round_of(uint64_t last, int n, int ms)
{
	int fds[2], status;
	uint64_t i;
	pid_t pid;

	CHECK(!pipe(fds));
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(fds[0]);
		run(fds[1], last + 1);
	}
	close(fds[1]);
	struct pollfd pfd = { .fd = fds[0], .events = POLLIN };
	while (n-- && poll(&pfd, 1, ms) == 1 &&
	       read(fds[0], &i, sizeof(i)) == sizeof(i))
		last = i;
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status));
	while (read(fds[0], &i, sizeof(i)) == sizeof(i))
		last = i;
	close(fds[0]);
	return last;
}

int main(void)
{
	const char *dir = check_tmpdir();
	uint64_t last = 0;

	snprintf(w.accepted, sizeof(w.accepted), "%s/accepted", dir);
	snprintf(w.durable, sizeof(w.durable), "%s/durable", dir);
	CHECK(!mkdir(w.accepted, 0700) && !mkdir(w.durable, 0700));
	w.config = (struct meta_config){ .accepted_dir = w.accepted,
					 .durable_dir = w.durable,
					 .keep_events = true };
	srand(1);
	for (int i = 0; i < ROUNDS; i++) {
		/* half of them die while they open */
		last = i % 2 ? round_of(last, 1, rand() % 60)
			     : round_of(last, rand() % 400, 10000);
		in_child(verify, last);
	}
	CHECK(last > 100);
	in_child(prefix_child, 0);
	return 0;
}
