/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An unlink fails at its commit, while the file is closed by somebody else and
 * the settler looks at it: its content is not given up.
 */
#include <string.h>

#include "tests/unit/engine_fixture.h"

#define LEN ((size_t)100000)

static char data[LEN];

static void store(struct engine *e, uint64_t ino)
{
	int fd;

	memset(data, 7, LEN);
	CHECK_EQ(file_borrow_write(e, ino, &fd), 0);
	CHECK_EQ(pwrite(fd, data, LEN, 0), LEN);
	file_return_fd(e, ino, true, fd);
}

/* As fs/ does it, up to the commit. */
static struct txn *begin_unlink(struct engine *e, uint64_t ino, uint64_t fh)
{
	const struct view *v = meta_accepted(engine_meta(e));
	struct txn *t = engine_txn_begin(e);
	struct dentry_rec d;
	struct inode_rec rec;

	CHECK_EQ(view_lookup(v, META_ROOT_INO, "shard", &d), 0);
	CHECK_EQ(view_inode(v, ino, &rec), 0);
	CHECK_EQ(file_flush(e, ino, fh), 0); /* another thread's close */
	file_release(e, ino, fh);
	engine_drop_link(e, t, &rec, 1);
	txn_del_dentry(t, META_ROOT_INO, "shard", &d);
	return t;
}

static void read_back(struct engine *e, uint64_t ino)
{
	struct open_reply reply;
	static char got[LEN];
	int fd;

	CHECK_EQ(file_open(e, ino, O_RDONLY, true, &reply), 0);
	CHECK_EQ(file_borrow_read(e, ino, 0, LEN, true, &fd), 0);
	CHECK_EQ(pread(fd, got, LEN, 0), LEN);
	CHECK(!memcmp(got, data, LEN));
	file_return_fd(e, ino, false, fd);
	CHECK_EQ(file_flush(e, ino, reply.fh), 0);
	file_release(e, ino, reply.fh);
}

static void one(bool commit)
{
	const struct timespec a_while = { 0, 200000000 };
	struct engine *e = start();
	uint64_t fh, seq, ino = create(e, "shard", &fh);
	struct txn *t;

	store(e, ino);
	t = begin_unlink(e, ino, fh);
	nanosleep(&a_while, NULL); /* the settler's */
	if (commit) {
		txn_put_dentry(t, META_ROOT_INO, "", ino, S_IFREG);
		CHECK(engine_txn_commit(e, t, &seq) < 0);
	} else {
		engine_txn_abort(e, t);
	}
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 20000), 0);
	read_back(e, ino);
	engine_stop(e, -1);
}

int main(void)
{
	const char *dir = check_tmpdir();

	for (int commit = 0; commit < 2; commit++) {
		CHECK(snprintf(nvme, sizeof(nvme), "%s/nvme%d", dir, commit) <
		      (int)sizeof(nvme));
		one(commit);
	}
	return 0;
}
