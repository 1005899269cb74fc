/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One write through the engine, without FUSE: created, written, closed,
 * sealed, flushed, recorded; read back after a restart; unlinked; and the
 * same after the process died with unsealed content in DRAM.
 */
#include <fcntl.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/unit/engine_fixture.h"

static void fill(struct engine *e, uint64_t ino, size_t len, int seed)
{
	char *buf = malloc(len);
	int fd;

	memset(buf, seed, len);
	CHECK(file_borrow_write(e, ino, &fd) == 0);
	CHECK(pwrite(fd, buf, len, 0) == (ssize_t)len);
	file_return_fd(e, ino, true, fd);
	free(buf);
}

static void close_file(struct engine *e, uint64_t ino, uint64_t fh)
{
	CHECK(file_flush(e, ino, fh) == 0);
	file_release(e, ino, fh);
}

static void expect(struct engine *e, const char *name, size_t len, int seed)
{
	struct dentry_rec d;
	struct inode_rec rec;
	struct open_reply reply;
	char *buf = malloc(len + 1);
	int fd;

	CHECK(view_lookup(meta_accepted(engine_meta(e)), META_ROOT_INO, name,
			  &d) == 0);
	CHECK(engine_stat(e, d.ino, &rec, NULL) == 0);
	CHECK(rec.size == len);
	CHECK(file_open(e, d.ino, O_RDONLY, true, &reply) == 0);
	CHECK(file_borrow_read(e, d.ino, 0, len, true, &fd) == 0);
	CHECK(pread(fd, buf, len + 1, 0) == (ssize_t)len);
	for (size_t i = 0; i < len; i++)
		CHECK(buf[i] == (char)seed);
	file_return_fd(e, d.ino, false, fd);
	close_file(e, d.ino, reply.fh);
	free(buf);
}

static void unlink_file(struct engine *e, const char *name)
{
	struct dentry_rec d;
	struct inode_rec rec;
	struct txn *t = engine_txn_begin(e);
	const struct view *v = meta_accepted(engine_meta(e));
	uint64_t seq;

	CHECK(view_lookup(v, META_ROOT_INO, name, &d) == 0);
	CHECK(view_inode(v, d.ino, &rec) == 0);
	txn_del_dentry(t, META_ROOT_INO, name, &d);
	engine_drop_link(e, t, &rec, 1);
	CHECK(engine_txn_commit(e, t, &seq) == 0);
}

_Noreturn static void die_with_unsealed_content(void)
{
	struct engine *e = start();
	uint64_t fh, ino;

	ino = create(e, "sealed", &fh);
	fill(e, ino, 5 << 20, 3);
	close_file(e, ino, fh);
	ino = create(e, "unsealed", &fh);
	fill(e, ino, 100000, 4);
	_exit(0);
}

/* This program anew, in a process that had no threads. */
static void another_dies(void)
{
	char *words[] = { "engine_write", nvme, NULL };
	pid_t pid;
	int status;

	CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, words, environ) ==
	      0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
	struct engine *e;
	struct file_state fs;
	uint64_t big, small, fh;

	if (argc == 2) {
		snprintf(nvme, sizeof(nvme), "%s", argv[1]);
		die_with_unsealed_content();
	}
	CHECK(snprintf(nvme, sizeof(nvme), "%s/nvme", check_tmpdir()) <
	      (int)sizeof(nvme));
	e = start();
	big = create(e, "big", &fh);
	fill(e, big, 9u << 20, 1);
	close_file(e, big, fh);
	small = create(e, "small", &fh);
	fill(e, small, 1000, 2);
	close_file(e, small, fh);
	expect(e, "big", 9u << 20, 1);
	CHECK(engine_drain(e, LEVEL_NVME, 20000) == 0);
	CHECK(engine_file_state(e, big, &fs) == 0);
	CHECK(fs.level == LEVEL_NVME && fs.in_dram && fs.on_nvme);
	engine_stop(e, -1);

	e = start();
	expect(e, "big", 9u << 20, 1);
	expect(e, "small", 1000, 2);
	engine_stop(e, -1);

	another_dies();
	e = start();
	expect(e, "sealed", 5u << 20, 3);
	expect(e, "unsealed", 100000, 4);
	unlink_file(e, "big");
	CHECK(engine_drain(e, LEVEL_NVME, 20000) == 0);
	expect(e, "unsealed", 100000, 4);
	engine_stop(e, -1);
	return 0;
}
