/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of directories in the accepted state, remembered. A bounded,
 * direct-mapped table; all of it is void once a directory has moved or gone.
 */
#ifndef CKPT_METADATA_PATH_H
#define CKPT_METADATA_PATH_H

#include "metadata/metadata.h"

#define PATH_SLOTS 4096

struct path_slot {
	uint64_t ino, generation;
	char *path;
};

struct path_cache {
	struct mutex lock;
	uint64_t generation;     /* guarded by lock */
	struct path_slot *slots; /* guarded by lock; NULL: no memory */
};

void path_cache_init(struct path_cache *c);
void path_cache_fini(struct path_cache *c);
/* All paths are void from now on; after the commit that moved something. */
void path_cache_drop(struct path_cache *c);

#endif
