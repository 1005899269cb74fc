/* SPDX-License-Identifier: Apache-2.0 */
/* Putting an accepted database that does not belong out of the way. */
#ifndef CKPT_METADATA_ASIDE_H
#define CKPT_METADATA_ASIDE_H

#include "metadata/metadata.h"

/* dir/db becomes dir/kept-aside-N; an older one is deleted: it is DRAM. */
MUST_CHECK int aside_keep(const char *dir);
/* Deletes dir/db, which may not be there. It must not be open. */
MUST_CHECK int aside_delete(const char *dir);
/* Bytes of the files below dir. */
uint64_t aside_usage(const char *dir);

#endif
