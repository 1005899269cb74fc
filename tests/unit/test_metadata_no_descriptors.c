/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A moment without descriptors, while RocksDB wants one for its next log: the
 * commits of then fail, those after it do not.
 */
#include <sys/resource.h>

#include "metadata/internal.h"
#include "tests/unit/metadata_fixture.h"

#define LEN ((size_t)60000)

static struct world w;

static int put(int i)
{
	static char value[LEN];
	struct txn *t = txn_begin(w.m);
	char name[32];
	uint64_t seq;

	snprintf(name, sizeof(name), "user.n%d", i);
	txn_put_xattr(t, META_ROOT_INO, name, value, LEN);
	return txn_commit(t, &seq);
}

/* Every descriptor below the limit is taken, and that is the limit. */
static void take_all(const struct rlimit *was)
{
	struct rlimit low = *was;
	int fd = dup(0);

	CHECK(fd >= 0);
	low.rlim_cur = (rlim_t)fd + 1;
	CHECK(!setrlimit(RLIMIT_NOFILE, &low));
}

int main(void)
{
	struct rlimit limit;
	int err = 0;

	world_init(&w);
	CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
	take_all(&limit);
	for (int i = 0; i < 4000 && !err; i++)
		err = put(i);
	CHECK_EQ(err, -EMFILE);
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));
	for (int i = 0; i < 10; i++)
		CHECK_EQ(put(5000 + i), 0);
	CHECK_EQ(meta_advance(w.m, meta_accepted_seq(w.m), NULL, 0, NULL, 0),
		 0);
	world_close(&w);
	return 0;
}
