/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The accepted database fills its tmpfs: a create is refused, an unlink is
 * not, nothing breaks, and once D has passed the unlinks there is room again.
 */
#include "tests/unit/metadata_fixture.h"

static int try_create(struct meta *m, int i)
{
	struct inode_rec rec = { .ino = meta_new_ino(m),
				 .mode = S_IFREG | 0644,
				 .nlink = 1 };
	struct txn *t = txn_begin(m);
	char name[32];

	snprintf(name, sizeof(name), "f%d", i);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, name, rec.ino, rec.mode);
	return txn_commit(t, NULL);
}

static int fill(struct meta *m, int *n)
{
	int err = 0;

	while (!err && *n < 10000000)
		err = try_create(m, (*n)++);
	--*n;
	return err;
}

static void follow(struct meta *m)
{
	while (meta_nvme_seq(m) < meta_accepted_seq(m)) {
		uint64_t target;

		CHECK_EQ(meta_log_bound(m, UINT64_MAX, 4 << 20, &target), 0);
		CHECK_EQ(meta_advance(m, target, NULL, 0, NULL, 0), 0);
	}
}

int main(void)
{
	struct world w;
	struct inode_rec root;
	int n = 0;

	world_init(&w);
	world_close(&w);
	if (mount("tmpfs", w.accepted, "tmpfs", 0, "size=64m,mode=0700"))
		SKIP("cannot mount a tmpfs: %s", strerror(errno));
	world_open(&w);
	for (int round = 0; round < 2; round++) {
		int first = n;

		CHECK_EQ(fill(w.m, &n), -ENOSPC);
		CHECK(n - first > 1000);
		CHECK_EQ(try_create(w.m, n), -ENOSPC);
		CHECK_EQ(view_inode(meta_accepted(w.m), META_ROOT_INO, &root),
			 0);
		for (int i = first; i < n; i++) {
			char name[32];

			snprintf(name, sizeof(name), "f%d", i);
			unlink_file(w.m, META_ROOT_INO, name);
			if (i % 5000 == 0)
				follow(w.m);
		}
		follow(w.m);
	}
	CHECK_EQ(try_create(w.m, n), 0);
	world_restart(&w);
	CHECK_EQ(w.opened.start, META_CARRIED_ON);
	CHECK_EQ(try_create(w.m, n + 1), 0);
	world_close(&w);
	CHECK(!umount(w.accepted));
	return 0;
}
