/* SPDX-License-Identifier: Apache-2.0 */
/* An engine without FUSE, and a file made in it as fs/ makes one. */
#ifndef CKPT_TESTS_UNIT_ENGINE_FIXTURE_H
#define CKPT_TESTS_UNIT_ENGINE_FIXTURE_H

#include "engine/engine.h"
#include "tests/unit/check.h"

static char nvme[PATH_MAX];

/* flush_rate: bytes a second; 0: as fast as it goes. */
__attribute__((unused)) static struct engine *start_slow(uint64_t flush_rate)
{
	struct engine_config c = {
		.nvme_dir = nvme,
		.mountpoint = "/test",
		.dram = 64u << 20,
		.flush_rate = flush_rate,
		.fsync = LEVEL_NVME,
	};
	struct engine *e = NULL;
	char why[300];
	int r = engine_start(&c, why, sizeof(why), &e);

	if (r < 0)
		fprintf(stderr, "%s\n", why);
	CHECK(r == 0);
	return e;
}

__attribute__((unused)) static struct engine *start(void)
{
	return start_slow(0);
}

__attribute__((unused)) static uint64_t create(struct engine *e,
					       const char *name, uint64_t *fh)
{
	struct meta *m = engine_meta(e);
	uint64_t ino = meta_new_ino(m), seq;
	struct inode_rec rec = { .ino = ino,
				 .mode = S_IFREG | 0644,
				 .nlink = 1 };
	struct open_reply reply = { 0 };
	struct txn *t;

	CHECK(file_create(e, ino, O_WRONLY, 0, &reply) == 0);
	t = engine_txn_begin(e);
	txn_put_inode(t, &rec);
	txn_put_dentry(t, META_ROOT_INO, name, ino, S_IFREG);
	file_log_create(e, t, ino);
	CHECK(engine_txn_commit(e, t, &seq) == 0);
	*fh = reply.fh;
	return ino;
}

#endif
