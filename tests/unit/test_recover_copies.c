/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of copies of versions that no state knows, as an import that died
 * leaves them: gone after the next start, on whatever tier the copy was.
 */
#include "tests/unit/engine_fixture.h"

int main(void)
{
	struct copy_rec remote = { .tier = COPY_REMOTE,
				   .kind = COPY_OBJECT,
				   .size = 1 };
	struct copy_rec file = {
		.tier = COPY_NVME, .kind = COPY_FILE, .size = 1, .file = 77
	};
	struct copy_rec got;
	struct engine *e;

	CHECK(snprintf(nvme, sizeof(nvme), "%s/nvme", check_tmpdir()) <
	      (int)sizeof(nvme));
	e = start();
	remote.version = meta_new_version(engine_meta(e));
	file.version = meta_new_version(engine_meta(e));
	CHECK_EQ(meta_put_copy(engine_meta(e), &remote, true), 0);
	CHECK_EQ(meta_put_copy(engine_meta(e), &file, true), 0);
	engine_stop(e, -1);
	e = start();
	CHECK_EQ(meta_copy(engine_meta(e), remote.version, COPY_REMOTE, &got),
		 -ENOENT);
	CHECK_EQ(meta_copy(engine_meta(e), file.version, COPY_NVME, &got),
		 -ENOENT);
	engine_stop(e, -1);
	return 0;
}
